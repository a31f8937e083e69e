"""Where the time of a training step goes: data, encoder, forces, reverse models, bound, backward, optimiser.

Three steps of `train.py`: that of its default configuration (the bundled digits), that of
configs/hmcvi-mnist.yaml on random images, and the second with compiled trajectories, whose forces cannot be
told from the rest of a trajectory.  Every part is a function that is timed where it stands; time spent in a
part within a part counts for the inner one only.  One record per step: milliseconds and shares of the parts,
and what the timing itself costs, as the ratio of a timed step to one that is not, taking turns.
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any
from unittest.mock import patch

from benchmarks.measuring import Record, quickly, ratios, repeatable, seconds, set_threads, spread, take_turns
from benchmarks.workers import ROOT

PIXELS = 784
CASES = ("digits", "mnist", "mnist_compiled")


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"of {', '.join(CASES)}; default: all")
    repeatable(parser, 9, threads=1)
    quickly(parser)


class Stopwatch:
    """Seconds spent in parts that may lie within each other, each second counted once."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self._clock = clock
        self._open: list[str] = []
        self._since = 0.0

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        self._charge()
        self._open.append(name)
        try:
            yield
        finally:
            self._charge()
            self._open.pop()

    def wrap(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            with self.part(name):
                return function(*args, **kwargs)

        return wrapped

    def _charge(self) -> None:
        now = self._clock()
        if self._open:
            self.seconds[self._open[-1]] += now - self._since
        self._since = now


def parts(compiled: bool) -> list[tuple[Any, str, str]]:
    """(where a function is, its name, the part it belongs to)"""
    import torch

    from hmcvi import Density
    from hmcvi.flows.hamiltonian import Leapfrog
    from hmcvi.kernels.variational.momentum import (
        DrawMomentum,
        DropMomentum,
        RefreshMomentum,
        ReverseMomentum,
    )
    from hmcvi.networks import GaussianEncoder
    from hmcvi.objectives import Bound
    from hmcvi.training import loop

    forces = [] if compiled else [(Density, "value_and_grad", "forces")]
    return [
        *forces,
        (loop, "prepare", "data"),
        (GaussianEncoder, "forward", "encoder"),
        (Leapfrog, "forward", "trajectories" if compiled else "trajectories without forces"),
        (ReverseMomentum, "log_prob", "reverse models"),
        *((step, "forward", "momenta") for step in (DrawMomentum, RefreshMomentum, DropMomentum)),
        (Bound, "forward", "bound"),
        (torch.Tensor, "backward", "backward"),
        (torch.nn.utils, "clip_grad_norm_", "optimiser"),
        (torch.optim.Adam, "step", "optimiser"),
        (loop, "add_refinement", "diagnostics"),
    ]


def trainer(case: str, quick: bool) -> Any:
    import torch

    from benchmarks.training import make_trainer
    from hmcvi.data import load_images
    from hmcvi.training import load_config

    if case == "digits":
        return make_trainer(load_config(ROOT / "configs" / "hmcvi.yaml"), load_images("digits").train)
    batch = 20 if quick else 500
    settings = [f"train.compile={case == 'mnist_compiled'}", f"train.batch_size={batch}"]
    torch.manual_seed(0)
    grey = 0.3 * torch.rand(batch, PIXELS)
    return make_trainer(load_config(ROOT / "configs" / "hmcvi-mnist.yaml", settings), grey)


def measure(case: str, repeats: int, quick: bool) -> Record:
    made = trainer(case, quick)
    number = 1 if quick else 20 if case == "digits" else 3  # steps in a turn

    def step() -> None:
        made.batch = 0  # the same images every time
        made.train_batch()

    def timed() -> dict[str, float]:
        watch = Stopwatch()
        with ExitStack() as stack:
            for owner, name, part in parts(case.endswith("compiled")):
                stack.enter_context(patch.object(owner, name, watch.wrap(part, getattr(owner, name))))
            for _ in range(number):
                with watch.part("rest"):
                    step()
        return {part: own / number for part, own in watch.seconds.items()}

    def plain() -> dict[str, float]:
        return {"step": seconds(step, number)}

    step()
    runs = take_turns({"plain": plain, "timed": timed}, repeats)
    whole = [sum(run.values()) for run in runs["timed"]]
    names = sorted(runs["timed"][0], key=lambda name: -sum(run[name] for run in runs["timed"]))
    return {
        "step": case,
        "ms": spread(1e3 * run["step"] for run in runs["plain"]),
        "parts": {
            name: {
                "ms": spread(1e3 * run[name] for run in runs["timed"]),
                "share": spread(ratios((run[name] for run in runs["timed"]), whole), 3),
            }
            for name in names
        },
        "timed_over_plain": spread(ratios(whole, (run["step"] for run in runs["plain"]))),
    }


def run(args: argparse.Namespace) -> Iterator[Record]:
    if unknown := set(args.cases) - set(CASES):
        raise SystemExit(f"no case {', '.join(sorted(unknown))}; there are {', '.join(CASES)}")
    set_threads(args.threads)
    for case in args.cases or CASES:
        yield {"threads": args.threads, "repeats": args.repeats, **measure(case, args.repeats, args.quick)}
