"""A run in pieces is the run in one, bit for bit: resumed, saved and loaded, killed and repeated."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from hmcvi.kernels import HMC, RandomWalkMetropolis
from hmcvi.sampling import Draws, Warmup, draws, run
from tests.support.sampling_runs import BANANA, KERNELS, assert_same_draws, init, quick

over_kernels = pytest.mark.parametrize("name", KERNELS)
FRESH = """
import sys
import hmcvi.sampling.draws
from hmcvi.sampling import Draws
from tests.support.sampling_runs import BANANA, KERNELS, quick
task, path, out = sys.argv[1:]
if task == "run":  # slow enough to be killed in the middle, checkpoints as often as there are draws
    import time
    hmcvi.sampling.draws.CHECKPOINT_SECONDS = 0.0
    quick(KERNELS["Compose"](BANANA), 120, 30, thin=2, checkpoint=path, callback=lambda *_: time.sleep(0.003))
else:
    Draws.load(path, KERNELS[task](BANANA)).resume(15, progress=False).save(out)
"""


def fresh_process(*arguments: str | Path) -> subprocess.Popen[str]:
    root = Path(__file__).parents[2]
    command = [sys.executable, "-c", FRESH, *map(str, arguments)]
    return subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@over_kernels
@pytest.mark.parametrize("thin", [1, 3])
def test_resuming_goes_on_as_if_nothing_had_been(name: str, thin: int, tmp_path: Path) -> None:
    kernel, path = KERNELS[name](BANANA), tmp_path / "draws.pt"
    whole = quick(kernel, 12, 30, thin=thin)
    part = quick(kernel, 5, 30, thin=thin)
    assert_same_draws(part.resume(4, progress=False).resume(3, progress=False), whole)
    part.save(path)
    assert_same_draws(Draws.load(path), part)
    assert_same_draws(Draws.load(path, KERNELS[name](BANANA)).resume(7, progress=False), whole)
    assert len(part) == 5


@pytest.mark.slow
def test_resuming_in_a_fresh_process(tmp_path: Path) -> None:
    name = "HMC with persistence"
    quick(KERNELS[name](BANANA), 5, 40, warmup=Warmup(mass="dense")).save(tmp_path / "a.pt")
    process = fresh_process(name, tmp_path / "a.pt", tmp_path / "b.pt")
    _, err = process.communicate()
    assert process.returncode == 0, err
    whole = quick(KERNELS[name](BANANA), 20, 40, warmup=Warmup(mass="dense"))
    assert_same_draws(Draws.load(tmp_path / "b.pt"), whole)


@pytest.mark.slow
def test_killed_at_a_random_moment_and_repeated(tmp_path: Path) -> None:
    """Twice into the same file; not seeded: every run of the suite tries other moments, and all must do."""
    path, lengths = tmp_path / "run.pt", []
    for _ in range(2):
        process = fresh_process("run", path, "-")
        while not path.exists() and process.poll() is None:
            time.sleep(0.01)
        time.sleep(random.SystemRandom().uniform(0, 1.0))
        process.send_signal(signal.SIGKILL)
        process.communicate()
        lengths.append(len(Draws.load(path)))
    assert lengths == sorted(lengths)
    resumed = quick(KERNELS["Compose"](BANANA), 120, 30, thin=2, checkpoint=path)
    assert_same_draws(resumed, quick(KERNELS["Compose"](BANANA), 120, 30, thin=2))
    assert_same_draws(Draws.load(path), resumed)


@pytest.mark.parametrize("moment", ["callback", "step"])
def test_an_interrupt_loses_nothing_that_was_kept(
    moment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the callback, or within a transition after its random numbers were drawn."""
    kernel, path, steps = KERNELS["Compose"](BANANA), tmp_path / "run.pt", []
    monkeypatch.setattr(draws, "CHECKPOINT_SECONDS", 1e9)

    def interrupt(index: int, *_: object) -> None:
        if index == 6:
            raise KeyboardInterrupt

    step = RandomWalkMetropolis.step

    def interrupted_step(*arguments):  # type: ignore[no-untyped-def]
        result = step(*arguments)
        steps.append(1)
        if len(steps) == 2 * 7 + 2:  # in the middle of a thinned draw
            raise KeyboardInterrupt
        return result

    if moment == "step":
        monkeypatch.setattr(RandomWalkMetropolis, "step", interrupted_step)
    callback = interrupt if moment == "callback" else None
    with pytest.raises(KeyboardInterrupt):
        quick(kernel, 20, thin=2, checkpoint=path, callback=callback)
    monkeypatch.undo()
    assert len(Draws.load(path)) == 7
    assert_same_draws(quick(kernel, 20, thin=2, checkpoint=path), quick(kernel, 20, thin=2))


def test_an_interrupt_after_warmup_keeps_what_it_chose(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel, path = HMC(BANANA, 0.1), tmp_path / "run.pt"

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(run, "extend_by", interrupted)
    with pytest.raises(KeyboardInterrupt):
        quick(kernel, 10, 60, checkpoint=path)
    monkeypatch.undo()
    monkeypatch.setattr(run, "warm_up", None)
    resumed = quick(kernel, 10, 60, checkpoint=path)
    monkeypatch.undo()
    assert_same_draws(resumed, quick(kernel, 10, 60))


def test_a_finished_run_is_returned_and_can_be_prolonged(tmp_path: Path) -> None:
    kernel, path = HMC(BANANA, 0.1, 3), tmp_path / "run.pt"
    first = quick(kernel, 10, checkpoint=path)
    assert_same_draws(quick(kernel, 10, checkpoint=path), first)
    assert_same_draws(quick(kernel, 25, checkpoint=path), quick(kernel, 25))
    with pytest.raises(ValueError, match="25 draws already, more than 10"):
        quick(kernel, 10, checkpoint=path)


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 1},
        {"thin": 2},
        {"num_warmup": 21},
        {"warmup": Warmup(target_acceptance=0.9)},
        {"init": init() + 1},
        {"kernel": HMC(BANANA, 0.1, 4)},
        {"kernel": HMC(BANANA, 0.2, 3)},
        {"kernel": HMC(BANANA, 0.1, 3, jitter=0.5)},
        {"kernel": HMC(BANANA, 0.1, 3, persistence=0.5)},
    ],
)
def test_a_checkpoint_of_another_run_is_refused(change: dict, tmp_path: Path) -> None:
    path, settings = tmp_path / "run.pt", {"kernel": HMC(BANANA, 0.1, 3), "num_warmup": 20}
    quick(**settings, num_samples=3, checkpoint=path)
    before = path.read_bytes()
    with pytest.raises(ValueError, match="another init, kernel, warm-up, thin or seed"):
        quick(**settings | change, num_samples=3, checkpoint=path)
    assert path.read_bytes() == before


def test_the_callers_random_numbers_are_left_alone() -> None:
    torch.manual_seed(3)
    before = torch.get_rng_state()
    for make in KERNELS.values():
        quick(make(BANANA), 2, 3).resume(2, progress=False)
    assert torch.equal(torch.get_rng_state(), before)


def test_seeds_make_the_run() -> None:
    kernel = HMC(BANANA, 0.3, 3)
    one, again, other = (quick(kernel, 5, 10, seed=seed) for seed in (1, 1, 2))
    assert_same_draws(one, again)
    assert not torch.equal(one.position, other.position)
