"""Draws outlive their file, and go on with their own density alone."""

from __future__ import annotations

import shutil
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from hmcvi import Density, sample
from hmcvi.internal.storage import CheckpointError
from hmcvi.kernels import HMC
from hmcvi.sampling import Draws, SamplingWarning, draws
from hmcvi.sampling.log import DrawsLog
from tests.support.sampling_runs import BANANA, KERNELS, assert_same_draws, init, quick

KERNEL = HMC(BANANA, 0.3, 3)


def run(num_samples: int, path: Path, callback: Any = None) -> tuple[Draws, list[str]]:
    """A run and its warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = sample(
            KERNEL, init(), num_samples, progress=False, check=False, checkpoint=path, callback=callback
        )
    return found, [str(warning.message) for warning in caught]


def test_a_folder_that_goes_away_costs_no_draw(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draws, "CHECKPOINT_SECONDS", 0.0)
    folder = tmp_path / "folder"
    folder.mkdir()

    def callback(index: int, *_: object) -> None:
        if index == 3:
            shutil.rmtree(folder)
        if index == 6:
            folder.mkdir()

    found, said = run(10, folder / "run.pt", callback)
    assert_same_draws(found, quick(KERNEL, 10))
    assert_same_draws(Draws.load(folder / "run.pt"), found)  # tried again
    assert len(said) == 3 and all("sampling goes on" in message for message in said)


def test_draws_that_no_disk_takes_are_returned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise CheckpointError("No space left on device")

    monkeypatch.setattr(DrawsLog, "append", full)
    found, said = run(10, tmp_path / "run.pt")
    assert_same_draws(found, quick(KERNEL, 10))
    assert "No space left" in said[-1] and "they are returned" in said[-1]


@pytest.mark.parametrize("full", [False, True])
def test_what_is_raised_carries_the_draws(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, full: bool
) -> None:
    if full:
        monkeypatch.setattr(DrawsLog, "append", lambda *_: 1 / 0)

    def callback(index: int, *_: object) -> None:
        if index == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as stop:
        run(10, tmp_path / "run.pt", callback)
    assert_same_draws(stop.value.draws, quick(KERNEL, 5))  # type: ignore[attr-defined]
    assert "5 draws" in stop.value.__notes__[0]


def test_where_warnings_are_errors_they_carry_the_draws(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(draws, "CHECKPOINT_SECONDS", 0.0)

    def callback(index: int, *_: object) -> None:
        monkeypatch.setattr(DrawsLog, "append", lambda *_: 1 / 0)

    with pytest.raises(SamplingWarning, match="division by zero") as stop:
        sample(KERNEL, init(), 10, progress=False, checkpoint=tmp_path / "run.pt", callback=callback)
    assert len(stop.value.draws) == 1  # type: ignore[attr-defined]


OTHER = Density(lambda z: BANANA.log_prob(z) - 0.01 * z[..., 0])


@pytest.mark.parametrize("name", KERNELS)
def test_another_density_is_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / "run.pt"
    quick(KERNELS[name](BANANA), 3, checkpoint=path)
    before = path.read_bytes()
    with pytest.raises(CheckpointError, match="the draws are of another density: log_prob was"):
        quick(KERNELS[name](OTHER), 6, checkpoint=path)
    with pytest.raises(CheckpointError, match="another density"):
        Draws.load(path, KERNELS[name](OTHER)).resume(1, progress=False)
    assert path.read_bytes() == before


def test_data_that_changed_are_found_in_memory_too() -> None:
    data = torch.ones(3, dtype=torch.float64)
    found = quick(HMC(Density(lambda z: -0.5 * (z - data).square().sum(-1)), 0.3, 2), 3)
    found.resume(1, progress=False)
    data[0] = 2
    with pytest.raises(CheckpointError, match="another density"):
        found.resume(1, progress=False)


def test_rounding_and_random_densities_go_on(tmp_path: Path) -> None:
    path = tmp_path / "run.pt"
    quick(KERNEL, 3, checkpoint=path)
    near = Density(lambda z: BANANA.log_prob(z) * (1 + 1e-9))
    Draws.load(path, HMC(near, 0.3, 3)).resume(1, progress=False)
    noisy = HMC(Density(lambda z: BANANA.log_prob(z) + torch.randn(())), 0.3, 3)
    quick(noisy, 3).resume(1, progress=False)
