"""Progress: a bar on a terminal, lines of text or silence elsewhere."""

from __future__ import annotations

import sys

import pytest
import torch

from hmcvi.sampling.progress import Progress


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
