"""Training by several processes: the weights of one, and a lost worker is replaced."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from hmcvi.internal.context import Randomness, Share
from hmcvi.internal.processes import Processes
from hmcvi.training.checkpoint import load
from tests.training.conftest import PAPER, ROOT, SMALL, run_in_process

SETTINGS = [
    *SMALL,
    "chain.accept=nn",
    "chain.partial=true",
    "chain.mass=nn",
    "train.batch_size=201",
    "train.average=0.9",
    "train.checkpoint_seconds=0.05",
]


def torchrun(*arguments: str, restarts: int = 0) -> subprocess.Popen[str]:
    launcher = ["torch.distributed.run", "--standalone", "--nproc-per-node=2", f"--max-restarts={restarts}"]
    return subprocess.Popen(
        [sys.executable, "-m", *launcher, "--monitor-interval=0.1", str(ROOT / "train.py"), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


@pytest.fixture(scope="module")
def by_two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    for _ in range(2):  # gloo now and then aborts a worker while another launcher starts beside it
        folder = tmp_path_factory.mktemp("two")
        out, err = (
            process := torchrun("--config", str(PAPER), *SETTINGS, f"runs={folder}", "name=run")
        ).communicate(timeout=300)
        if "SIGABRT" not in err:
            break
    assert process.returncode == 0, err[-2000:]
    assert out.count("run folder") == out.count("refinement brought") == 1  # the first process speaks for all
    return folder / "run"


@pytest.mark.slow
def test_two_processes_find_the_weights_of_one(tmp_path: Path, by_two: Path) -> None:
    alone = run_in_process([*SETTINGS, f"runs={tmp_path}", "name=run"])
    for stage in ("vae.pt", "chain.pt"):
        one, other = load(by_two / stage)["model"], load(alone / stage)["model"]
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
    bounds = [
        [stage["bound"] for stage in json.loads((run / "summary.json").read_text())["stages"]]
        for run in (by_two, alone)
    ]
    assert bounds[0] == pytest.approx(bounds[1], abs=1e-3)
    names = {"config.yaml", "checkpoint.pt", "vae.pt", "chain.pt", "summary.json"}
    written = {path.name for path in by_two.iterdir()}
    assert names <= written
    assert len(written - names) == len({path.name for path in alone.iterdir()} - names)  # no more events


@pytest.mark.slow
def test_a_lost_worker_is_replaced(tmp_path: Path, by_two: Path) -> None:
    """Killed at a random moment, the run ends with the same weights, bit for bit."""
    process = torchrun("--config", str(PAPER), *SETTINGS, f"runs={tmp_path}", "name=run", restarts=3)
    while not (tmp_path / "run" / "checkpoint.pt").exists():
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    # not seeded: every run of the suite tries other moments, and all must do
    time.sleep(random.SystemRandom().uniform(0, 1.5))
    for worker in children(process.pid)[-1:]:
        os.kill(worker, signal.SIGKILL)
    _, err = process.communicate(timeout=300)
    assert process.returncode == 0, err[-2000:]
    for stage in ("vae.pt", "chain.pt"):
        one, other = load(tmp_path / "run" / stage)["model"], load(by_two / stage)["model"]
        assert all(torch.equal(one[name], other[name]) for name in one), stage


def children(process: int) -> list[int]:
    """Of a process, in the order of their birth."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        if int(fields[1]) == process:
            found.append(int(path.parent.name))
    return sorted(found)


def test_a_run_that_may_restart_needs_a_name(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import train

    monkeypatch.setenv("TORCHELASTIC_MAX_RESTARTS", "3")
    assert train.main([]) == 2
    assert "the run needs a name=... by which it is found again" in capsys.readouterr().err


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_shares_make_the_batch(size: int) -> None:
    """Every datum belongs to one process, which draws for it what one process alone would."""
    total = 11
    shares = [Processes(rank, size).share(total) for rank in range(size)]
    assert [start for start, _ in shares] == [0, *(stop for _, stop in shares[:-1])]
    assert shares[-1][1] == total
    for method, shape in (("normal", (3, total, 2)), ("uniform", (3, total))):
        torch.manual_seed(0)
        whole = getattr(Randomness(), method)(torch.empty(shape))
        parts = []
        for start, stop in shares:
            torch.manual_seed(0)
            own = torch.empty(3, stop - start, *shape[2:])
            parts.append(getattr(Share(start, stop, total), method)(own))
        assert torch.equal(torch.cat(parts, 1), whole)


def test_misuse_says_what_to_do() -> None:
    with pytest.raises(ValueError, match="a share 3, …, 3 − 1 of a batch of 5 is empty or beyond it"):
        Share(3, 3, 5)
    with pytest.raises(ValueError, match="a share of 2 data"):
        Share(0, 2, 5).normal(torch.empty(3, 4))


@pytest.mark.slow
def test_a_worker_that_hangs_is_named_and_replaced(tmp_path: Path, by_two: Path) -> None:
    """Stopped, it neither works nor dies; the others notice within a minute."""
    process = torchrun("--config", str(PAPER), *SETTINGS, f"runs={tmp_path}", "name=run", restarts=3)
    while not (tmp_path / "run" / "checkpoint.pt").exists():
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    hung = children(process.pid)[-1]
    os.kill(hung, signal.SIGSTOP)
    began = time.monotonic()
    while Path(f"/proc/{hung}").exists() and "T" in Path(f"/proc/{hung}/stat").read_text().rpartition(")")[2]:
        assert time.monotonic() - began < 120
        time.sleep(0.2)
    _, err = process.communicate(timeout=300)
    assert process.returncode == 0, err[-2000:]
    assert f"worker 1 (process {hung} on" in err and "has not answered for" in err
    for stage in ("vae.pt", "chain.pt"):
        one, other = load(tmp_path / "run" / stage)["model"], load(by_two / stage)["model"]
        assert all(torch.equal(one[name], other[name]) for name in one), stage


@pytest.mark.slow
def test_a_launcher_that_is_terminated_saves(tmp_path: Path, by_two: Path) -> None:
    process = torchrun("--config", str(PAPER), *SETTINGS, f"runs={tmp_path}", "name=run")
    while not (tmp_path / "run" / "checkpoint.pt").exists():
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=120)
    assert process.returncode != 0 and "stopped and saved; continue with" in out, err[-2000:]
    again = torchrun("--resume", str(tmp_path / "run"))
    _, err = again.communicate(timeout=300)
    assert again.returncode == 0, err[-2000:]
    for stage in ("vae.pt", "chain.pt"):
        one, other = load(tmp_path / "run" / stage)["model"], load(by_two / stage)["model"]
        assert all(torch.equal(one[name], other[name]) for name in one), stage
