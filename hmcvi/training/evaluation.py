"""Bound and likelihood of a model on images: means over images, and the evaluation of a trained model."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hmcvi.data import binarize, threshold
from hmcvi.internal.processes import ALONE, Processes
from hmcvi.models import VAE
from hmcvi.sampling.progress import LINES, Progress
from hmcvi.training.checkpoint import load, save
from hmcvi.training.config import Config, EvaluateConfig
from hmcvi.training.interrupt import InterruptGuard

VALIDATION_SEED, TEST_SEED = 1, 2
BATCH, TEST_BATCH = 500, 100  # images
CACHED = 1000  # samples decoded at once: twice as fast as 10,000, whose pixels leave the cache

Quantities = dict[str, Tensor]  # of each image, means over draws; variances are those of these means  [N]


class Estimate(NamedTuple):
    """A mean over images and its standard error over images, in nats."""

    mean: float
    std_error: float
    num_failed: int  # images left out because their value is not finite

    @classmethod
    def of(cls, per_image: Tensor) -> Estimate:
        """per_image: [N]"""
        finite = per_image[per_image.isfinite()]
        std_error = (
            finite.std(correction=min(1, len(finite) - 1)).item() / len(finite) ** 0.5 if len(finite) else 0.0
        )
        mean = finite.mean().item() if len(finite) else float("-inf")
        return cls(mean, std_error, len(per_image) - len(finite))


def prepare(x: Tensor, how: str) -> Tensor:
    """Images as the model sees them: stochastically binarised, thresholded, or grey."""
    return {"dynamic": binarize, "threshold": threshold, "none": lambda x: x}[how](x)


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
        torch.manual_seed(seed)
        for _ in range(num_draws):
            batches = (prepare(batch, how).to(device) for batch in images.split(BATCH))
            per_draw.append(torch.cat([quantity(x).double().cpu() for x in batches]))
    return Estimate.of(torch.stack(per_draw).mean(0))


class Scores(NamedTuple):
    """What an evaluation found: its figures, and the bound (and NLL) of each image."""

    summary: dict[str, Any]
    settings: str  # scores with the same settings are of the same images, binarised alike
    per_image: Quantities

    def save(self, path: Path) -> None:
        save({"settings": self.settings, **{name: v.float() for name, v in self.per_image.items()}}, path)


def evaluate(
    model: VAE,
    test: Tensor,
    config: Config,
    guard: InterruptGuard,
    store: Path,
    processes: Processes = ALONE,
    seed: int = TEST_SEED,
) -> Scores:
    """Means over images [N, D] and `num_draws` binarisations of each, with standard errors over images.

    The random numbers of a batch derive from the seed and its place in the test set, so that models are
    compared on the same binarisations.  Processes take turns in the batches.  Finished ones are kept in the
    file `store`, one for each process, and not computed again.
    """
    evaluation, how = config.evaluate, config.data.binarize
    test, draws = test[: evaluation.max_images], evaluation.num_draws if how == "dynamic" else 1
    settings = (
        f"{len(test)} images of {config.data.name}, {how} {draws}, bound of {evaluation.bound_samples}, "
        f"NLL of {evaluation.nll_samples} for {evaluation.nll_draws or 'all'}, seed {seed}"
    )
    kept = _Kept(store, settings, config.train.checkpoint_seconds, processes)
    batches = test.split(TEST_BATCH)
    places = range(processes.rank, len(batches), processes.size)
    print(f"evaluating on {len(test):,} test images, {draws} draws of each", flush=True)
    model.eval()
    with (
        torch.random.fork_rng([config.train.device] if "cuda" in config.train.device else []),
        Progress("evaluation", len(places), unit="batch", done=len(kept.batches), lines=LINES) as progress,
    ):
        for place in places[len(kept.batches) :]:
            torch.manual_seed(seed * 10**6 + place)
            x = torch.stack([prepare(batches[place], how) for _ in range(draws)]).to(config.train.device)
            kept.batches.append(_score_batch(model, x, evaluation))
            progress.advance(1, {"bound": _joined(kept.batches)["bound"]})
            kept.save_if_due(guard)
            guard.check()
    parts = processes.gather(kept.batches)
    kept.remove()
    quantities = _joined([parts[place % len(parts)][place // len(parts)] for place in range(len(batches))])
    per_image: Quantities = {name: quantities[name] for name in ("bound", "nll") if name in quantities}
    return Scores(_summary(quantities, evaluation, draws), settings, per_image)


class _Kept:
    """The finished batches of an evaluation, in memory and, every so many seconds, in a file."""

    def __init__(self, path: Path, settings: str, seconds: float, processes: Processes) -> None:
        if processes.size > 1:
            path = path.with_name(f"{path.stem}-{processes.rank + 1}-of-{processes.size}.pt")
        self.path, self.settings, self.seconds = path, settings, seconds
        state = load(path) if path.exists() else {}
        self.batches: list[Quantities] = state["batches"] if state.get("settings") == settings else []
        self.saved = time.monotonic()

    def save_if_due(self, guard: InterruptGuard) -> None:
        if time.monotonic() - self.saved > self.seconds or guard.requested is not None:
            save({"settings": self.settings, "batches": self.batches}, self.path)
            self.saved = time.monotonic()

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)


@torch.no_grad()
def _score_batch(model: VAE, x: Tensor, evaluation: EvaluateConfig) -> Quantities:
    """Bound and, if asked for, NLL with its variance from importance sampling alone and its ESS.

    x: [J, B, D] -> [B]
    """
    bound = model.bound(x.flatten(0, 1), evaluation.bound_samples).unflatten(0, x.shape[:2])
    quantities = _over_draws("bound", bound)
    if evaluation.nll_samples:
        chunk = max(1, CACHED // x.shape[1])
        some = x[: evaluation.nll_draws]
        estimates = [model.importance_nll(draw, evaluation.nll_samples, chunk=chunk) for draw in some]
        nll, std_error, ess = (torch.stack(parts) for parts in zip(*estimates, strict=True))
        quantities |= _over_draws("nll", nll)
        quantities |= {"nll_sampling_variance": std_error.square().mean(0) / len(nll), "nll_ess": ess.mean(0)}
    return {name: quantity.double().cpu() for name, quantity in quantities.items()}


def _over_draws(name: str, values: Tensor) -> Quantities:
    """The mean over draws and, if there are several, its variance given the image.  [J, B] -> [B]"""
    mean = {name: values.double().mean(0)}
    return mean if len(values) == 1 else {**mean, f"{name}_variance": values.double().var(0) / len(values)}


def _joined(batches: list[Quantities]) -> Quantities:
    return {name: torch.cat([batch[name] for batch in batches]) for name in batches[0]}


def _summary(quantities: Quantities, evaluation: EvaluateConfig, num_draws: int) -> dict[str, Any]:
    bound = Estimate.of(quantities["bound"])
    summary = {
        "bound": bound.mean,
        "bound_se": bound.std_error,
        "bound_repeat_se": _repeat_se(quantities.get("bound_variance")),
        "num_failed": bound.num_failed,
        "num_images": len(quantities["bound"]),
        "nll": None,
        "nll_se": None,
        "nll_samples": evaluation.nll_samples,
    }
    if evaluation.nll_samples:
        nll = Estimate.of(quantities["nll"])
        summary |= {
            "nll": nll.mean,
            "nll_se": nll.std_error,
            "nll_draws": min(num_draws, evaluation.nll_draws or num_draws),
            "nll_repeat_se": _repeat_se(quantities.get("nll_variance")),
            "nll_sampling_se": _repeat_se(quantities["nll_sampling_variance"]),
            "nll_ess": quantities["nll_ess"].median().item(),
        }
    return summary


def _repeat_se(variance: Tensor | None) -> float | None:
    """Standard error of the mean over these same images, were the draws repeated.  [N]"""
    if variance is None:
        return None
    finite = variance[variance.isfinite()]
    return finite.sum().sqrt().item() / max(1, len(finite))
