"""Chains spread over processes are those of one process, also when one of them is killed."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from hmcvi import Density
from hmcvi.internal.processes import Processes, connected
from hmcvi.kernels import HMC, DiagonalMetric, Kernel
from hmcvi.sampling import Draws
from hmcvi.sampling.spread import as_one, check_same_call, spread
from tests.support.problems import F64
from tests.support.sampling_runs import BANANA, KERNELS, init, quick
from tests.training.test_many_processes import children

ROOT = Path(__file__).parents[2]
CHAINS = 9  # which two processes cannot share equally
CENTRES = torch.linspace(-3, 3, CHAINS, dtype=F64)[:, None]
OWN = Density(lambda z, centre: -0.5 * (z - centre).square().sum(-1), CENTRES)  # each chain has its own
SPREAD: dict[str, Callable[[], Kernel]] = {
    "HMC of tuned length": lambda: KERNELS["HMC of tuned length"](BANANA),
    "HMC with persistence": lambda: KERNELS["HMC with persistence"](BANANA),
    "HMC, a density and a step per chain": lambda: HMC(
        OWN, torch.linspace(0.2, 0.4, CHAINS, dtype=F64)[:, None]
    ),
    "Compose": lambda: KERNELS["Compose"](BANANA),
    "Gibbs": lambda: KERNELS["Gibbs"](BANANA),
}
EVERY_KERNEL = """
import os, sys
from tests.sampling.test_many_processes import SPREAD, run
for name, make in SPREAD.items():
    run(make()).resume(3, progress=False).save(f"{sys.argv[1]}/{name} {os.environ['RANK']}")
"""
SLOWLY = """
import sys, time
import hmcvi.sampling.draws
from tests.sampling.test_many_processes import run, slow
hmcvi.sampling.draws.CHECKPOINT_SECONDS = 0.0
run(slow(0.0005), 40, checkpoint=sys.argv[1])
"""


def run(kernel: Kernel, num_samples: int = 12, **settings: object) -> Draws:
    return quick(kernel, num_samples, 40, init=init(CHAINS), **settings)


def slow(seconds: float) -> Kernel:
    def log_prob(z: torch.Tensor) -> torch.Tensor:
        time.sleep(seconds)
        return BANANA.log_prob(z)

    return HMC(Density(log_prob), 0.3)


def torchrun(script: str, *arguments: str | Path, restarts: int = 0) -> subprocess.Popen[str]:
    launcher = ["torch.distributed.run", "--standalone", "--nproc-per-node=2", f"--max-restarts={restarts}"]
    program = ["--monitor-interval=0.1", "--no-python", sys.executable, "-c", script, *map(str, arguments)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        [sys.executable, "-m", *launcher, *program],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def assert_near(one: Draws, other: Draws) -> None:
    """The same chains, up to rounding."""
    torch.testing.assert_close(one.position, other.position, rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(dict(one.stats), dict(other.stats), rtol=1e-5, atol=1e-6, equal_nan=True)
    assert torch.equal(one.end.generator, other.end.generator)


@pytest.mark.slow
def test_two_processes_draw_what_one_draws(tmp_path: Path) -> None:
    _, err = (process := torchrun(EVERY_KERNEL, tmp_path)).communicate(timeout=300)
    assert process.returncode == 0, err[-2000:]
    for name, make in SPREAD.items():
        first, second = (Draws.load(tmp_path / f"{name} {rank}", make()) for rank in range(2))
        assert torch.equal(first.position, second.position)  # every process has the draws of all
        alone = run(make(), 15)
        assert_near(first, alone)
        assert_near(first.resume(2, progress=False), alone.resume(2, progress=False))


@pytest.mark.slow
def test_a_lost_process_costs_no_draw(tmp_path: Path) -> None:
    """Killed at a random moment; not seeded, because all moments must do."""
    path = tmp_path / "draws.pt"
    process = torchrun(SLOWLY, path, restarts=3)
    while not path.exists():
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    time.sleep(random.SystemRandom().uniform(0, 0.5))
    for worker in children(process.pid)[-1:]:
        os.kill(worker, signal.SIGKILL)
    _, err = process.communicate(timeout=300)
    assert process.returncode == 0, err[-2000:]
    assert_near(Draws.load(path), run(slow(0.0), 40))


def test_processes_that_want_other_draws_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    start = run(KERNELS["LinearSlice"](BANANA), 1).start
    monkeypatch.setattr(Processes, "gather", lambda self, call: [call, call])
    check_same_call(start, 5, Processes(0, 2))
    monkeypatch.setattr(Processes, "gather", lambda self, call: ["another", call])
    with pytest.raises(ValueError, match=r"process 1 of 2 asks for other draws than the first one: all must"):
        check_same_call(start, 5, Processes(0, 2))


def test_a_program_with_connections_of_its_own_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dist, "is_torchelastic_launched", lambda: True)
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    with connected() as group:
        assert group.size == 1


def test_kernels_come_back_as_they_were() -> None:
    group = Processes(0, 2)
    for name in ("Compose", "Gibbs", "LinearSlice"):
        kernel = KERNELS[name](BANANA)
        assert as_one(spread(kernel, init(), group)).density is BANANA
    kernel = HMC(BANANA, 0.2, 3, persistence=0.5)
    back = as_one(spread(kernel, init(), group))
    assert type(back) is HMC
    assert {k: v for k, v in vars(back).items() if k != "step_size"} == {
        k: v for k, v in vars(kernel).items() if k != "step_size"
    }


def test_chains_that_cannot_be_spread_are_refused() -> None:
    group = Processes(0, 2)
    together = Density(lambda z: -0.5 * (z - z.mean(0)).square().sum(-1))
    with pytest.raises(ValueError, match=r"give tensors with one row per chain as Density\(log_prob, x\)"):
        spread(HMC(together, 0.1), init(), group)
    closed = Density(lambda z: -0.5 * (z - CENTRES).square().sum(-1))
    with pytest.raises(ValueError, match="is not what it is among all"):
        spread(HMC(closed, 0.1), init(CHAINS), group)
    with pytest.raises(ValueError, match="chains with a metric each"):
        spread(HMC(BANANA, 0.1, metric=DiagonalMetric(torch.zeros(4, 3, dtype=F64))), init(), group)
    with pytest.raises(ValueError, match="2 processes for 1 chains"):
        spread(HMC(BANANA, 0.1), init(1), group)
