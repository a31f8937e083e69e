"""Means over images: of any quantity while a model is trained, of bound and likelihood once it is."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hmcvi.data import binarize, threshold
from hmcvi.internal.processes import ALONE, Processes
from hmcvi.internal.seeds import seed_all
from hmcvi.models import VAE
from hmcvi.sampling.progress import LINES, Progress
from hmcvi.training.checkpoint import CheckpointError, load, save
from hmcvi.training.config import Config
from hmcvi.training.interrupt import InterruptGuard
from hmcvi.training.likelihood import annealing_problem
from hmcvi.training.scores import Estimate, Quantities, Scores, joined, score_batch, scores_of, settings_of

VALIDATION_SEED, TEST_SEED = 1, 2
BATCH, TEST_BATCH = 500, 100  # images


def prepare(x: Tensor, how: str) -> Tensor:
    """Images as the model sees them: stochastically binarised, thresholded, or grey."""
    return {"dynamic": binarize, "threshold": threshold, "none": lambda x: x}[how](x)


def seed_batch(seed: int, place: int) -> None:
    """Seed torch for a batch of test images, by its place."""
    seed_all(seed, "evaluation", place)


@torch.no_grad()
def average(
    quantity: Callable[[Tensor], Tensor],
    images: Tensor,
    how: str = "dynamic",
    num_draws: int = 1,
    seed: int = 0,
    device: str | torch.device = "cpu",
) -> Estimate:
    """The mean of quantity(x) [...] over images [N, D] and `num_draws` binarisations of each.

    Draws derive from the seed alone, so that models are compared on the same ones, and the random
    numbers of a training in progress are left untouched.
    """
    device = torch.device(device)
    per_draw = []
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        seed_all(seed)
        for _ in range(num_draws):
            batches = (prepare(batch, how).to(device) for batch in images.split(BATCH))
            per_draw.append(torch.cat([quantity(x).double().cpu() for x in batches]))
    return Estimate.of(torch.stack(per_draw).mean(0))


def evaluate(
    model: VAE,
    test: Tensor,
    config: Config,
    guard: InterruptGuard,
    store: Path,
    processes: Processes = ALONE,
    seed: int = TEST_SEED,
    shows_progress: bool = True,
) -> Scores:
    """Means over images [N, D] and `num_draws` draws of each, with standard errors over images.

    A draw is a binarisation and a chain, or a chain alone for images that are not binarised at random.  The
    random numbers of a batch derive from the seed and its place in the test set, so that models are compared
    on the same binarisations.  Processes take turns in the batches.  Finished ones are kept in the file
    `store`, one for each process, and not computed again.
    """
    evaluation, how = config.evaluate, config.data.binarize
    test, draws = test[: evaluation.max_images], evaluation.num_draws
    kept = _Kept(store, settings_of(config, len(test), seed), config.train.checkpoint_seconds, processes)
    batches = test.split(TEST_BATCH)
    places = range(processes.rank, len(batches), processes.size)
    if shows_progress:
        print(f"evaluating on {len(test):,} test images, {draws} draws of each", flush=True)
    model.eval()
    with (
        torch.random.fork_rng([config.train.device] if "cuda" in config.train.device else []),
        Progress(
            "evaluation",
            len(places),
            unit="batch",
            done=len(kept.batches),
            shown=shows_progress,
            lines=LINES,
        ) as progress,
    ):
        for place in places[len(kept.batches) :]:
            seed_batch(seed, place)
            x = torch.stack([prepare(batches[place], how) for _ in range(draws)]).to(config.train.device)
            kept.batches.append(score_batch(model, x, evaluation))
            progress.advance(1, {"bound": joined(kept.batches)["bound"]})
            kept.save_if_due(guard)
            guard.check()
    parts = processes.gather(kept.batches)
    kept.remove()
    quantities = joined([parts[place % len(parts)][place // len(parts)] for place in range(len(batches))])
    scores = scores_of(quantities, config, seed)
    if problem := annealing_problem(scores.summary, model, test[:TEST_BATCH], evaluation):
        del scores.per_image["nll"]
        scores.summary.update({"nll": None, "nll_se": None, "nll_problem": problem})
    return scores


class _Kept:
    """The finished batches of an evaluation, in memory and, every so many seconds, in a file."""

    def __init__(self, path: Path, settings: str, seconds: float, processes: Processes) -> None:
        if processes.size > 1:
            path = path.with_name(f"{path.stem}-{processes.rank + 1}-of-{processes.size}.pt")
        self.path, self.settings, self.seconds = path, settings, seconds
        self.batches: list[Quantities] = _batches(path, settings)
        self.saved = time.monotonic()

    def save_if_due(self, guard: InterruptGuard) -> None:
        if time.monotonic() - self.saved > self.seconds or guard.requested is not None:
            try:
                save({"settings": self.settings, "batches": self.batches}, self.path)
            except CheckpointError as error:
                if guard.requested is not None:
                    raise
                print(f"warning: {error}; the evaluation goes on, and tries again", flush=True)
            self.saved = time.monotonic()

    def remove(self) -> None:
        with contextlib.suppress(OSError):
            self.path.unlink(missing_ok=True)


def _batches(path: Path, settings: str) -> list[Quantities]:
    """The finished batches of an evaluation with these settings; a file that is damaged has none."""
    try:
        state = load(path) if path.exists() else {}
    except CheckpointError as error:
        print(f"warning: {error}; the evaluation begins anew", flush=True)
        return []
    batches = state.get("batches")
    if state.get("settings") != settings or not isinstance(batches, list):
        return []
    return batches if all(_is_batch(batch) for batch in batches) else []


def _is_batch(batch: Any) -> bool:
    """{name: [B]}, as `score_batch` gives it."""
    return (
        isinstance(batch, dict)
        and "bound" in batch
        and all(isinstance(value, Tensor) and value.shape == batch["bound"].shape for value in batch.values())
    )
