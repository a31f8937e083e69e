"""The command line itself: what is where, and how it ends."""

from __future__ import annotations

import argparse
import runpy
import sys

import pytest

import hmcvi.cli
from experiments import EXPERIMENTS
from experiments.__main__ import main as run_experiment
from hmcvi.commands import COMMANDS, inpaint, main
from hmcvi.training import ConfigError, Interrupted


def test_old_addresses_lead_to_the_same_command() -> None:
    assert hmcvi.cli.main is main


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (["experiment", "dhmc", "--out", "a b"], "`python -m experiments dhmc --out 'a b'`"),
        (["table1", "--report", "results"], "`python -m experiments table1 --report results`"),
        (["experiment"], "`python -m experiments`"),
    ],
)
def test_commands_that_have_moved_say_where_to(
    old: list[str], new: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(old) == 2
    out, err = capsys.readouterr()
    assert not out and len(err.splitlines()) == 1
    assert new in err and "checkout of the repository" in err


@pytest.mark.parametrize(
    ("run", "names"), [(main, COMMANDS), (run_experiment, EXPERIMENTS)], ids=["hmcvi", "experiments"]
)
def test_help_lists_every_command_with_a_line(run, names, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        run(["--help"])
    assert stop.value.code == 0
    lines = capsys.readouterr().out.splitlines()
    for name in names:
        assert any(line.split()[:1] == [name] and len(line.split()) > 5 for line in lines), name
    with pytest.raises(SystemExit) as stop:
        run(["nothing"])
    assert stop.value.code == 2 and "'nothing'" in capsys.readouterr().err
    assert run([]) == 2
    listed = capsys.readouterr().err
    assert all(name in listed for name in names)


@pytest.mark.parametrize(
    ("ending", "code", "message"),
    [
        (None, 0, ""),
        (ConfigError("--images must be at least 1, got 0"), 2, "error: --images must be at least 1, got 0\n"),
        (KeyboardInterrupt(), 130, "\nstopped\n"),
        (Interrupted(2), 130, ""),
    ],
    ids=["well", "mistake", "Ctrl-C", "Ctrl-C, saved"],
)
def test_how_a_command_ends(
    ending: BaseException | None,
    code: int,
    message: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def run(args: argparse.Namespace) -> int:
        if ending is not None:
            raise ending
        return args.value

    monkeypatch.setattr(inpaint, "configure", lambda parser: parser.add_argument("value", type=int))
    monkeypatch.setattr(inpaint, "run", run)
    assert main(["inpaint", "0"]) == code
    assert capsys.readouterr().err == message


@pytest.mark.filterwarnings("ignore:.* found in sys.modules")
@pytest.mark.parametrize("module", ["hmcvi", "hmcvi.cli", "experiments"])
def test_modules_run_as_programs(
    module: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", [module, "--help"])
    with pytest.raises(SystemExit) as stop:
        runpy.run_module(module, run_name="__main__")
    assert stop.value.code == 0 and capsys.readouterr().out.startswith("usage: ")
