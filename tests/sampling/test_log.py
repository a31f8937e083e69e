"""Checkpoints of draws grow by the new draws alone, and what is damaged costs time, never draws."""

from __future__ import annotations

import hashlib
import io
import struct
from pathlib import Path
from typing import Any

import pytest
import torch

from hmcvi.internal.storage import CheckpointError
from hmcvi.kernels import HMC
from hmcvi.sampling import Draws, SamplingWarning, draws, sample
from hmcvi.sampling.log import MAGIC, DrawsLog, Piece, _record, read_log
from hmcvi.sampling.record import Record
from tests.support.sampling_runs import BANANA, assert_same_draws, init, quick

KERNEL = HMC(BANANA, 0.3, 3)


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The checkpoint of six draws in several records."""
    monkeypatch.setattr(draws, "CHECKPOINT_SECONDS", 0.0)
    quick(KERNEL, 6, checkpoint=tmp_path / "run.pt", num_warmup=5)
    return tmp_path / "run.pt"


def records(path: Path) -> list[int]:
    """Where the records begin, and the end of the file."""
    content, places = path.read_bytes(), [len(MAGIC)]
    while places[-1] < len(content):
        header, body = struct.unpack_from("<QQ", content, places[-1])
        places.append(places[-1] + 16 + header + body + 32)
    return places


def test_a_checkpoint_grows_by_the_new_draws(path: Path) -> None:
    before = path.read_bytes()
    longer = quick(KERNEL, 9, checkpoint=path, num_warmup=5)
    assert path.read_bytes().startswith(before)  # nothing was written anew
    assert_same_draws(longer, quick(KERNEL, 9, num_warmup=5))
    assert_same_draws(Draws.load(path, KERNEL), longer)


def test_a_record_takes_no_memory_of_its_own() -> None:
    record = Record(1000, 1)
    state = KERNEL.init(init())
    for _ in range(1000):
        record.observe({"accepted": state.log_prob > 0})
        record.keep(state)
    position, stats = record.first(1000)
    parts = list(_record({}, Piece(position[:, 100:], {n: v[:, 100:] for n, v in stats.items()}, {})))
    views = [part for part in parts if isinstance(part, memoryview)]
    assert sum(map(len, views)) == 900 * sum(t[0, 0].nbytes * len(t) for t in (position, *stats.values()))
    address = torch.frombuffer(views[0], dtype=torch.uint8).data_ptr()
    assert address == position[:, 100:].transpose(0, 1).data_ptr()  # what is written is what was recorded
    assert sum(len(part) for part in parts if not isinstance(part, memoryview)) < 10_000


def test_any_cut_goes_on_from_the_draws_before(path: Path) -> None:
    content, expected, places = path.read_bytes(), quick(KERNEL, 6, num_warmup=5), records(path)
    assert len(places) > 6
    for cut in [place + more for place in places[1:-1] for more in (0, 1, 20, 2000)]:
        path.write_bytes(content[:cut])
        assert_same_draws(quick(KERNEL, 6, checkpoint=path, num_warmup=5), expected)


def test_any_flipped_bit_is_found(path: Path) -> None:
    content, places = path.read_bytes(), records(path)
    expected = quick(KERNEL, 6, num_warmup=5)
    for place in range(places[2] + 5, len(content), 397):
        damaged = bytearray(content)
        damaged[place] ^= 4
        path.write_bytes(damaged)
        with pytest.warns(SamplingWarning, match="damaged or was cut off: going on from the"):
            assert len(Draws.load(path)) < 6
        assert_same_draws(quick(KERNEL, 6, checkpoint=path, num_warmup=5), expected)
        assert_same_draws(Draws.load(path), expected)  # repaired
    for place in range(len(MAGIC), places[1], 97):
        damaged = bytearray(content)
        damaged[place] ^= 4
        path.write_bytes(damaged)
        with pytest.raises(CheckpointError, match="no whole record"):
            Draws.load(path)


def test_a_file_that_vanishes_is_made_anew(path: Path) -> None:
    def callback(index: int, *_: object) -> None:
        if index == 7:
            path.unlink()

    found = quick(KERNEL, 10, checkpoint=path, num_warmup=5, callback=callback)
    assert_same_draws(found, quick(KERNEL, 10, num_warmup=5))
    assert_same_draws(Draws.load(path), found)


def test_a_file_saved_by_hand_becomes_a_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "run.pt"
    quick(KERNEL, 3, num_warmup=5).save(path)
    found = quick(KERNEL, 6, checkpoint=path, num_warmup=5)
    assert_same_draws(found, quick(KERNEL, 6, num_warmup=5))
    assert path.read_bytes().startswith(MAGIC)


EDITS: dict[str, Any] = {
    "position": torch.zeros(2, 2),
    "start": {"position": 3},
    "end": None,
    "stats": {"a": torch.zeros(3)},
    "shapes": 5,
}


@pytest.mark.parametrize("field", EDITS)
@pytest.mark.parametrize("value", ["edit", None, "text", 3, [1], {"a": 1}, torch.zeros(1)], ids=str)
def test_edited_fields_give_one_clear_error(tmp_path: Path, field: str, value: Any) -> None:
    path = tmp_path / "run.pt"
    quick(KERNEL, 3).save(path)
    content = torch.load(path, weights_only=True)
    if field == "shapes" and value is None:
        return
    torch.save(
        {**content, field: EDITS[field] if isinstance(value, str) and value == "edit" else value}, path
    )
    with pytest.raises(CheckpointError):
        Draws.load(path, KERNEL).resume(1, progress=False)


def test_records_of_something_else_are_refused(tmp_path: Path) -> None:
    for about in ({"position": ["torch.float64", 10**12]}, {"position": ["os.system", 1]}, {"a": 1}, 7):
        buffer = io.BytesIO()
        torch.save({"head": {}, "end": {}, "tensors": about}, buffer)
        header = buffer.getvalue()
        lengths = struct.pack("<QQ", len(header), 0)
        whole = lengths + header
        (tmp_path / "run.pt").write_bytes(MAGIC + whole + hashlib.sha256(whole).digest())
        with pytest.raises(CheckpointError):
            read_log(tmp_path / "run.pt")


def test_the_log_knows_its_size(path: Path) -> None:
    _, log = read_log(path)
    assert isinstance(log, DrawsLog) and (log.size, log.count) == (path.stat().st_size, 6)
    with pytest.raises(ValueError, match="another init, kernel"):
        sample(KERNEL, init(), 6, seed=5, progress=False, checkpoint=path)
