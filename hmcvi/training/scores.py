"""Bound and likelihood of each test image, and the figures that sum them up."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hmcvi.chain import Chain
from hmcvi.evidence.result import too_few
from hmcvi.models import VAE
from hmcvi.training.checkpoint import save
from hmcvi.training.config import Config, EvaluateConfig
from hmcvi.training.likelihood import estimate_nll, num_nll_samples

Quantities = dict[str, Tensor]  # of each image, means over draws; variances are those of these means  [N]
PER_IMAGE = ("bound", "bound_without_chain", "nll", "nll_ess")


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


class Scores(NamedTuple):
    """What an evaluation found: its figures, and bound and NLL of each image."""

    summary: dict[str, Any]
    settings: str  # scores with the same settings are of the same images, binarised alike
    per_image: Quantities
    seed: int  # of the evaluation

    def save(self, path: Path) -> None:
        save(
            {
                "settings": self.settings,
                "seed": self.seed,
                **{name: v.float() for name, v in self.per_image.items()},
            },
            path,
        )


def settings_of(config: Config, num_images: int, seed: int) -> str:
    """All that the scores of a model depend on, beside its weights."""
    evaluation = config.evaluate
    samples = f"{evaluation.nll_samples}"
    if evaluation.nll == "ais" and evaluation.nll_samples:
        samples = f"AIS, {evaluation.ais_chains} chains, {evaluation.ais_temperatures} temperatures"
    return (
        f"{num_images} images of {config.data.name}, {config.data.binarize} {evaluation.num_draws}, bound of "
        f"{evaluation.bound_samples}, NLL of {samples} for {evaluation.nll_draws or 'all'}, seed {seed} split"
    )


@torch.no_grad()
def score_batch(model: VAE, x: Tensor, evaluation: EvaluateConfig) -> Quantities:
    """Bound, with the chain and without it, and, if asked for, NLL with its ESS and its variance from
    sampling alone.

    x: [J, B, D] -> [B].  Both bounds are of the same z0, so their difference is known better than either.
    """
    flat, shape, num_samples = x.flatten(0, 1), x.shape[:2], evaluation.bound_samples
    quantities: Quantities = {}
    if has_chain(model):
        with torch.random.fork_rng([x.device] if x.is_cuda else []), without_chain(model):
            alone = model.bound(flat, num_samples).unflatten(0, shape)
    bound = model.bound(flat, num_samples).unflatten(0, shape)
    quantities |= _over_draws("bound", bound)
    if has_chain(model):
        quantities |= _over_draws("bound_without_chain", alone)
        quantities |= _over_draws("refinement_gain", bound.double() - alone.double())
    if evaluation.nll_samples:
        estimates = [estimate_nll(model, draw, evaluation) for draw in x[: evaluation.nll_draws]]
        nll, std_error, ess = (torch.stack(parts) for parts in zip(*estimates, strict=True))
        quantities |= _over_draws("nll", nll)
        quantities |= {"nll_sampling_variance": std_error.square().mean(0) / len(nll), "nll_ess": ess.mean(0)}
    return {name: quantity.double().cpu() for name, quantity in quantities.items()}


def has_chain(model: VAE) -> bool:
    return not (isinstance(model.chain, Chain) and len(model.chain.steps) == 0)


@contextmanager
def without_chain(model: VAE) -> Iterator[None]:
    """Within it the model is a plain VAE with the same encoder and decoder."""
    chain, model.chain = model.chain, Chain()
    try:
        yield
    finally:
        model.chain = chain


def _over_draws(name: str, values: Tensor) -> Quantities:
    """The mean over draws and, if there are several, its variance given the image.  [J, B] -> [B]"""
    mean = {name: values.double().mean(0)}
    return mean if len(values) == 1 else {**mean, f"{name}_variance": values.double().var(0) / len(values)}


def joined(batches: list[Quantities]) -> Quantities:
    return {name: torch.cat([batch[name] for batch in batches]) for name in batches[0]}


def scores_of(quantities: Quantities, config: Config, seed: int) -> Scores:
    """The figures of all images."""
    per_image = {name: quantities[name] for name in PER_IMAGE if name in quantities}
    if "nll_sampling_variance" in quantities:
        per_image["nll_sampling_se"] = quantities["nll_sampling_variance"].sqrt()
    settings = settings_of(config, len(quantities["bound"]), seed)
    return Scores({**_summary(quantities, config.evaluate), "settings": settings}, settings, per_image, seed)


def _summary(quantities: Quantities, evaluation: EvaluateConfig) -> dict[str, Any]:
    summary = {
        **_figure("bound", quantities),
        "num_failed": Estimate.of(quantities["bound"]).num_failed,
        "num_images": len(quantities["bound"]),
        "nll": None,
        "nll_se": None,
        "nll_method": evaluation.nll,
        "nll_samples": num_nll_samples(evaluation),
    }
    if "refinement_gain" in quantities:
        summary |= _figure("bound_without_chain", quantities) | _figure("refinement_gain", quantities)
    if "nll" in quantities:
        num_draws = evaluation.num_draws
        summary |= {
            **_figure("nll", quantities),
            "nll_draws": min(num_draws, evaluation.nll_draws or num_draws),
            "nll_sampling_se": _repeat_se(quantities["nll_sampling_variance"]),
            "nll_ess": quantities["nll_ess"].median().item(),
            "nll_num_failed": Estimate.of(quantities["nll"]).num_failed,
            "nll_num_few": int(too_few(quantities["nll_ess"], num_nll_samples(evaluation)).sum()),
        }
    return summary


def _figure(name: str, quantities: Quantities) -> dict[str, float | None]:
    """The mean over images, its standard error, and that of a repetition with the same images."""
    mean, std_error, _ = Estimate.of(quantities[name])
    repeat_se = _repeat_se(quantities.get(f"{name}_variance"))
    return {name: mean, f"{name}_se": std_error, f"{name}_repeat_se": repeat_se}


def _repeat_se(variance: Tensor | None) -> float | None:
    """Standard error of the mean over these same images, were the draws repeated.  [N]"""
    if variance is None:
        return None
    finite = variance[variance.isfinite()]
    return finite.sum().sqrt().item() / max(1, len(finite))
