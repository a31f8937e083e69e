from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

import hmcvi.commands.train as script
from hmcvi.training import InterruptGuard, Run, load_config

ROOT = Path(__file__).parents[2]
SMALL = [
    "model.hidden=[16]",
    "chain.hidden=[16]",
    "chain.num_hmc=2",
    "chain.num_leapfrog=2",
    "train.pretrain_epochs=2",
    "train.epochs=2",
    "train.batch_size=200",
    "evaluate.num_draws=1",
    "evaluate.nll_samples=20",
    "evaluate.validation_nll_samples=5",
    "evaluate.images_every=2",
]
PAPER = ROOT / "configs" / "hmcvi.yaml"  # whose chain may have every kind of acceptance
CHAIN = ["chain.accept=simple", "chain.partial=true", "chain.mass=nn"]


@pytest.fixture
def small(tmp_path: Path) -> list[str]:
    """Overrides of a training run that takes a second."""
    return [*SMALL, f"runs={tmp_path}", "name=run"]


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of both stages, to look at; whoever writes to it takes a copy."""
    return run_in_process([*SMALL, *CHAIN, f"runs={tmp_path_factory.mktemp('finished')}", "name=run"])


def start_train(*arguments: str) -> subprocess.Popen[str]:
    """`python train.py …` as a process that can be killed."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, str(ROOT / "train.py"), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )


def train(*arguments: str) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of `python train.py …`, without a process of its own."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = script.main(arguments)
    return code, out.getvalue(), err.getvalue()


def run_in_process(overrides: Sequence[str], config: str | Path = PAPER) -> Path:
    run = Run.create(load_config(config, overrides))
    with InterruptGuard() as guard:
        run.train(guard)
    return run.folder
