"""Progress: a bar on a terminal, lines of text or silence elsewhere."""

from __future__ import annotations

import sys

import pytest
import torch

from hmcvi import Density, sample
from hmcvi.kernels import HMC
from hmcvi.sampling import progress as module
from hmcvi.sampling.convergence import bulk_ess, rhat
from hmcvi.sampling.progress import Convergence, Progress


def test_lines_where_there_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """Of nine epochs in about four lines: the first, the last, and every second."""
    with Progress("vae", 9, unit="epoch", parts=3, lines=4) as progress:
        for epoch in range(1, 10):
            for _ in range(3):
                progress.advance()
            progress.show({"bound": -100 - epoch, "images/s": torch.tensor([1000.0, 2000.0])})
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("/")[0] for line in lines] == [f"vae  epoch {epoch}" for epoch in (1, 2, 4, 6, 8, 9)]
    assert "bound -109  images/s 1,500  min left 0.0" in lines[-1]


def test_what_was_done_before_takes_no_time(capsys: pytest.CaptureFixture[str]) -> None:
    """Nor is anything divided by it: this run was stopped just before its last report."""
    with Progress("vae", 2, unit="epoch", parts=3, done=6, lines=4) as progress:
        progress.show({"bound": 1.0})
    assert capsys.readouterr().out == "vae  epoch 2/2  bound 1  min left 0.0\n"


@pytest.mark.parametrize("options", [{"shown": False, "lines": 4}, {}, {"shown": False}])
def test_silence(capsys: pytest.CaptureFixture[str], options: dict[str, int]) -> None:
    with Progress("sampling", 3, **options) as progress:  # type: ignore[arg-type]
        assert progress.silent
        progress.advance(3, {"accept": torch.ones(4)})
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(("lines", "stream"), [(4, "out"), (0, "err")])
def test_a_bar_on_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, lines: int, stream: str
) -> None:
    monkeypatch.setattr(getattr(sys, f"std{stream}"), "isatty", lambda: True)
    with Progress("sampling", 4, parts=5, done=2, lines=lines) as progress:
        progress.advance(18, {"accept": torch.tensor([0.5, 1.0]), "step": 0.1})
        progress.say("a warning")
    shown = getattr(capsys.readouterr(), stream)
    assert "sampling: 100%" in shown and "20/20" in shown and "accept=0.75, step=0.1" in shown
    assert "a warning\n" in shown


def test_a_run_shows_how_well_it_has_converged(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setattr(module, "LOOK_SECONDS", 0.0)
    monkeypatch.setattr(module, "REFRESH_SECONDS", 0.0)
    kernel = HMC(Density(lambda z: -0.5 * z.square().sum(-1)), 0.9, 2)
    sample(kernel, torch.randn(8, 2, generator=torch.Generator().manual_seed(0)), 300)
    shown = capsys.readouterr().err
    assert "R-hat=1.0" in shown and "ESS/s=" in shown


class Clock:
    """A hundredth of a second passes at every reading, and `cost` seconds while draws are looked at."""

    def __init__(self, cost: float) -> None:
        self.now, self.cost, self.looks = 0.0, cost, 0
        self.draws = torch.randn(4, 50, 3, generator=torch.Generator().manual_seed(0))

    def monotonic(self) -> float:
        self.now += 0.01
        return self.now

    def look(self) -> torch.Tensor:
        self.now, self.looks = self.now + self.cost, self.looks + 1
        return self.draws


@pytest.mark.parametrize("cost", [0.001, 0.5, 3.0])
def test_looks_take_a_hundredth_of_the_time(cost: float, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(cost)
    monkeypatch.setattr(module, "time", clock)
    watch = Convergence(clock.look)
    while clock.now < 2000:
        numbers = watch.numbers()
    assert clock.looks >= 5 and (clock.looks - 1) * cost < 0.01 * clock.now
    assert float(numbers["R-hat"]) == float(rhat(clock.draws).max())
    assert float(numbers["ESS/s"]) <= float(bulk_ess(clock.draws).min())


def test_few_draws_are_not_looked_at() -> None:
    watch = Convergence(lambda: torch.zeros(1, 500, 2))
    watch._next = 0.0
    assert watch.numbers() == {}
