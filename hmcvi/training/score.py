"""Bound and likelihood of a trained model on a test set, batch by batch, so that it can be interrupted."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hmcvi.internal.processes import ALONE, Processes
from hmcvi.models import VAE
from hmcvi.training.checkpoint import load, save
from hmcvi.training.config import Config, EvaluateConfig
from hmcvi.training.evaluate import Estimate, prepare
from hmcvi.training.interrupt import InterruptGuard
from hmcvi.training.progress import Progress

TEST_SEED = 2
BATCH = 100
CACHED = 1000  # samples decoded at once: twice as fast as 10,000, whose pixels leave the cache


Quantities = dict[str, Tensor]  # of each image, means over draws; variances are those of these means  [N]


class Scores(NamedTuple):
    """What an evaluation found: its figures, and the bound (and NLL) of each image."""

    summary: dict[str, Any]
    settings: str  # scores with the same settings are of the same images, binarised alike
    per_image: Quantities

    def save(self, path: Path) -> None:
        save({"settings": self.settings, **{name: v.float() for name, v in self.per_image.items()}}, path)


def score(
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
    evaluate, how = config.evaluate, config.data.binarize
    test, draws = test[: evaluate.max_images], evaluate.num_draws if how == "dynamic" else 1
    settings = (
        f"{len(test)} images of {config.data.name}, {how} {draws}, bound of {evaluate.bound_samples}, "
        f"NLL of {evaluate.nll_samples} for {evaluate.nll_draws or 'all'}, seed {seed}"
    )
    if processes.size > 1:
        store = store.with_name(f"{store.stem}-{processes.rank + 1}-of-{processes.size}.pt")
    kept = load(store) if store.exists() else {}
    done: list[Quantities] = kept["batches"] if kept.get("settings") == settings else []
    places = range(processes.rank, -(-len(test) // BATCH), processes.size)
    batches = test.split(BATCH)
    print(f"evaluating on {len(test):,} test images, {draws} draws of each", flush=True)
    model.eval()
    saved, devices = time.monotonic(), [config.train.device] if "cuda" in config.train.device else []
    with (
        torch.random.fork_rng(devices),
        Progress("evaluation", len(places), 1, len(done), unit="batch") as progress,
    ):
        for place in places[len(done) :]:
            torch.manual_seed(seed * 10**6 + place)
            x = torch.stack([prepare(batches[place], how) for _ in range(draws)]).to(config.train.device)
            done.append(_score_batch(model, x, evaluate))
            progress.advance()
            progress.report(len(done), {"bound": _joined(done)["bound"].mean().item()})
            due = time.monotonic() - saved > config.train.checkpoint_seconds
            if due or guard.requested is not None:
                save({"settings": settings, "batches": done}, store)
                saved = time.monotonic()
            guard.check()
    parts = processes.gather(done)
    store.unlink(missing_ok=True)
    quantities = _joined([parts[place % len(parts)][place // len(parts)] for place in range(len(batches))])
    per_image: Quantities = {name: quantities[name] for name in ("bound", "nll") if name in quantities}
    return Scores(_summary(quantities, evaluate, draws), settings, per_image)


@torch.no_grad()
def _score_batch(model: VAE, x: Tensor, evaluate: EvaluateConfig) -> Quantities:
    """Bound and, if asked for, NLL with its variance from importance sampling alone and its ESS.

    x: [J, B, D] -> [B]
    """
    bound = model.bound(x.flatten(0, 1), evaluate.bound_samples).unflatten(0, x.shape[:2])
    quantities = _over_draws("bound", bound)
    if evaluate.nll_samples:
        chunk = max(1, CACHED // x.shape[1])
        some = x[: evaluate.nll_draws]
        estimates = [model.importance_nll(draw, evaluate.nll_samples, chunk=chunk) for draw in some]
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


def _summary(quantities: Quantities, evaluate: EvaluateConfig, num_draws: int) -> dict[str, Any]:
    bound = Estimate.of(quantities["bound"])
    summary = {
        "bound": bound.mean,
        "bound_se": bound.std_error,
        "bound_repeat_se": _repeat_se(quantities.get("bound_variance")),
        "num_failed": bound.num_failed,
        "num_images": len(quantities["bound"]),
        "nll": None,
        "nll_se": None,
        "nll_samples": evaluate.nll_samples,
    }
    if evaluate.nll_samples:
        nll = Estimate.of(quantities["nll"])
        summary |= {
            "nll": nll.mean,
            "nll_se": nll.std_error,
            "nll_draws": min(num_draws, evaluate.nll_draws or num_draws),
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
