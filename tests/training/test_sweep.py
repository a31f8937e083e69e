"""Sweeps: a run for each combination of values, one after another or as commands for a scheduler."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
import torch

from hmcvi.training import ConfigError
from hmcvi.training.checkpoint import load
from hmcvi.training.sweep import points
from tests.training.conftest import PAPER, SMALL, run_in_process, train

PAPERS = ["--config", str(PAPER)]


def test_a_run_for_each_value_is_the_run_of_that_value(tmp_path: Path) -> None:
    sweep = ["--sweep", "chain.num_hmc=1,2", "name=s", f"runs={tmp_path}"]
    code, out, err = train(*PAPERS, *SMALL, *sweep)
    assert code == 0, err
    assert {path.name for path in tmp_path.iterdir()} == {"s-num_hmc=1", "s-num_hmc=2"}
    assert "gain over s-num_hmc=1, paired" in out and "chain.num_hmc=2" in out
    alone = run_in_process([*SMALL, "chain.num_hmc=2", "name=alone", f"runs={tmp_path}"])
    one, other = (load(folder / "chain.pt")["model"] for folder in (tmp_path / "s-num_hmc=2", alone))
    assert all(torch.equal(one[name], other[name]) for name in other)
    weights = (tmp_path / "s-num_hmc=1" / "chain.pt").read_bytes()
    code, out, err = train(*PAPERS, *SMALL, *sweep)  # goes on with what is finished: nothing to train
    assert code == 0 and (tmp_path / "s-num_hmc=1" / "chain.pt").read_bytes() == weights


def test_commands_for_a_scheduler_make_the_same_runs(tmp_path: Path) -> None:
    arguments = [*PAPERS, *SMALL, "train.epochs=1", f"runs={tmp_path}", "name=j"]
    code, out, err = train(*arguments, "--sweep", "chain.mass=identity,nn", "seeds=0,4", "--jobs")
    assert code == 0, err
    commands = [shlex.split(line) for line in out.splitlines()]
    assert len(commands) == 4 and all(command[:2] == ["hmcvi", "train"] for command in commands)
    assert not list(tmp_path.iterdir())
    assert train(*commands[-1][2:])[0] == 0
    assert {path.name for path in tmp_path.iterdir()} == {"j-mass=nn-seed4", "j-mass=nn-seeds.json"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--sweep", "chain.num_hmc"], "KEY=A,B"),
        (["--sweep", "chain.num_hmc=1,1"], "must differ"),
        (["--sweep", "seed=1,2"], "use seeds=0,1,2"),
        (["--sweep", "chain.num_hcm=1,2"], "did you mean chain.num_hmc?"),
        (["--sweep", "chain.num_hmc=1,-2"], "got -2"),
        (["--jobs", "name=a"], "add --sweep"),
        (["--jobs", "--sweep", "chain.num_hmc=1,2"], "needs a name"),
        (["--resume", "somewhere", "--sweep", "chain.num_hmc=1,2"], "--resume is for one run"),
    ],
)
def test_bad_sweeps_leave_nothing_behind(arguments: list[str], message: str, tmp_path: Path) -> None:
    code, _, err = train(*arguments, f"runs={tmp_path}")
    assert code == 2 and message in err and len(err.splitlines()) == 1
    assert not list(tmp_path.iterdir())


def test_values_become_names() -> None:
    assert [point.suffix for point in points(["model.hidden=[8],[8,8]", "data.name=npz:a/b"])] == [
        "-hidden=8-name=npz_a_b",
        "-hidden=8_8-name=npz_a_b",
    ]
    assert points([])[0].suffix == ""
    with pytest.raises(ConfigError, match="name cannot be swept"):
        points(["name=a,b"])
