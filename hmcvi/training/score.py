"""Bound and likelihood of a trained model on a test set, batch by batch, so that it can be interrupted."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hmcvi.distributed import ALONE, Processes
from hmcvi.models import VAE
from hmcvi.training.checkpoint import load, save
from hmcvi.training.config import Config, EvaluateConfig
from hmcvi.training.evaluate import Estimate, prepare
from hmcvi.training.interrupt import InterruptGuard
from hmcvi.training.progress import Progress

TEST_SEED = 2
BATCH = 100
CACHED = 1000  # samples decoded at once: twice as fast as 10,000, whose pixels leave the cache


def score(
    model: VAE,
    test: Tensor,
    config: Config,
    guard: InterruptGuard,
    store: Path,
    processes: Processes = ALONE,
) -> dict[str, Any]:
    """Means over images [N, D] and `num_draws` binarisations of each, with standard errors over images.

    The random numbers of a batch derive from its place in the test set, so that models are compared on the
    same binarisations.  Processes take turns in the batches.  Finished ones are kept in the file `store`, one
    for each process, and not computed again.
    """
    evaluate, how = config.evaluate, config.data.binarize
    test, draws = test[: evaluate.max_images], evaluate.num_draws if how == "dynamic" else 1
    settings = f"{len(test)} {how} {draws} {evaluate.bound_samples} {evaluate.nll_samples}"
    if processes.size > 1:
        store = store.with_name(f"{store.stem}-{processes.rank + 1}-of-{processes.size}.pt")
    kept = load(store) if store.exists() else {}
    done: list[Tensor] = kept["batches"] if kept.get("settings") == settings else []
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
            torch.manual_seed(TEST_SEED * 10**6 + place)
            x = torch.stack([prepare(batches[place], how) for _ in range(draws)]).to(config.train.device)
            done.append(_score_batch(model, x, evaluate))
            progress.advance()
            progress.report(len(done), {"bound": torch.cat(done, -1)[0].mean().item()})
            due = time.monotonic() - saved > config.train.checkpoint_seconds
            if due or guard.requested is not None:
                save({"settings": settings, "batches": done}, store)
                saved = time.monotonic()
            guard.check()
    parts = processes.gather(done)
    store.unlink(missing_ok=True)
    in_order = [parts[place % len(parts)][place // len(parts)] for place in range(len(batches))]
    return _summary(torch.cat(in_order, -1), evaluate)


@torch.no_grad()
def _score_batch(model: VAE, x: Tensor, evaluate: EvaluateConfig) -> Tensor:
    """Bound, NLL, its sampling variance and ESS (the last three if asked for), means over draws.

    x: [J, B, D] -> [1 or 4, B]
    """
    bound = model.bound(x.flatten(0, 1), evaluate.bound_samples).unflatten(0, x.shape[:2])
    quantities = [bound]
    if evaluate.nll_samples:
        chunk = max(1, CACHED // x.shape[1])
        estimates = [model.importance_nll(draw, evaluate.nll_samples, chunk=chunk) for draw in x]
        nll, std_error, ess = (torch.stack(parts) for parts in zip(*estimates, strict=True))
        quantities += [nll, std_error.square() / len(x), ess]
    return torch.stack([quantity.double().mean(0).cpu() for quantity in quantities])


def _summary(per_image: Tensor, evaluate: EvaluateConfig) -> dict[str, Any]:
    bound = Estimate.of(per_image[0])
    summary = {
        "bound": bound.mean,
        "bound_se": bound.std_error,
        "num_failed": bound.num_failed,
        "num_images": per_image.shape[1],
        "nll": None,
        "nll_se": None,
        "nll_samples": evaluate.nll_samples,
    }
    if evaluate.nll_samples:
        nll, (_, _, variance, ess) = Estimate.of(per_image[1]), per_image
        summary |= {
            "nll": nll.mean,
            "nll_se": nll.std_error,
            "nll_sampling_se": variance.sum().sqrt().item() / len(variance),
            "nll_ess": ess.median().item(),
        }
    return summary
