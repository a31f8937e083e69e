"""The page about a run: it is drawn for every kind of run, and shows what mixed worst."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from hmcvi import Density
from hmcvi.kernels import HMC, RandomWalkMetropolis
from hmcvi.sampling.diagnostics import worst_entries
from hmcvi.sampling.report import report_figure
from tests.support.problems import F64
from tests.support.sampling_runs import init, quick

NORMAL = Density(lambda z: -0.5 * z.square().sum(-1))
NAMED = Density(
    lambda v: -0.5 * v["mu"].square() - 0.5 * v["theta"].square().sum((-2, -1)),
    shapes={"theta": (2, 3), "mu": ()},
)


@pytest.mark.parametrize("suffix", ["png", pytest.param("svg", marks=pytest.mark.slow)])
def test_is_written(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"page.{suffix}"
    quick(HMC(NAMED, 0.5, 3), 50, init=init(8, 7)).report(path)
    assert path.stat().st_size > 20_000


@pytest.mark.slow
@pytest.mark.parametrize(("chains", "num_samples"), [(1, 1), (1, 30), (2, 1), (2, 5), (70, 3), (70, 30)])
@pytest.mark.parametrize("dim", [1, 2, 6])
def test_every_size_can_be_drawn(tmp_path: Path, chains: int, num_samples: int, dim: int) -> None:
    quick(HMC(NORMAL, 0.5, 3), num_samples, init=init(chains, dim)).report(tmp_path / "page.png")


@pytest.mark.slow
def test_runs_without_energies_divergent_runs_and_stuck_ones(tmp_path: Path) -> None:
    for kernel in (RandomWalkMetropolis(NORMAL, 1.0), HMC(NORMAL, 30.0, 5)):
        quick(kernel, 60, init=init(4, 2)).report(tmp_path / "page.png")


@pytest.mark.slow
def test_half_precision(tmp_path: Path) -> None:
    start = torch.zeros(4, 2, dtype=torch.bfloat16)
    quick(HMC(NORMAL, 0.5, 3), 60, init=start).report(tmp_path / "page.png")


def test_shows_the_entries_with_the_largest_rhat() -> None:
    z = torch.randn(4, 200, 10, dtype=F64, generator=torch.Generator().manual_seed(0))
    z[0, :, 7] += 2.0
    z[0, :, 3] += 1.0
    names = [name for name, _ in worst_entries({"z": z}, 3)]
    assert names[:2] == ["z[7]", "z[3]"]
    assert torch.equal(worst_entries({"z": z}, 1)[0][1], z[..., 7])


def test_says_what_was_found() -> None:
    z = torch.randn(4, 200, 2, dtype=F64, generator=torch.Generator().manual_seed(0))
    for problems in ([], ["R-hat is 1.2 for z[0]: " + "draw longer " * 20, "5 transitions diverged"]):
        figure = report_figure({"z": z}, {}, problems)
        texts = [text.get_text() for part in figure.subfigs for text in part.texts]
        assert texts[0].startswith("4 chains of 200 draws, 2 numbers each")
        shown = " ".join(texts[1:])
        assert ("speaks against" in shown) == (not problems)
        assert all(problem.strip() in shown.replace("• ", "") for problem in problems)
