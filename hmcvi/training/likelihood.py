"""−log p(x) of images: by importance sampling, or by annealing from a Gaussian at the refined posterior."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution, Independent, Normal

from hmcvi.chain import Chain
from hmcvi.evidence import EvidenceWarning, ais
from hmcvi.models import VAE
from hmcvi.models.vae import ImportanceEstimate
from hmcvi.networks import ConvDecoder, GaussianDecoder
from hmcvi.training.config import EvaluateConfig

LIMIT = 0.1  # share of images that may have few effective chains before AIS counts as failed
AT_FLOOR = 1.01  # times the smallest scale
NUM_REFINED = 50  # samples of the refined posterior whose moments the base of annealing has
CACHED = 1000  # samples decoded at once: twice as fast as 10,000, whose pixels leave the cache


def estimate_nll(model: VAE, x: Tensor, evaluation: EvaluateConfig) -> ImportanceEstimate:
    """−log p(x) by the method of the settings.  x: [B, D] -> [B]"""
    if evaluation.nll == "ais":
        return annealed_nll(model, x, evaluation.ais_chains, evaluation.ais_temperatures)
    return model.importance_nll(x, evaluation.nll_samples, chunk=max(1, CACHED // len(x)))


def annealed_nll(model: VAE, x: Tensor, num_chains: int, num_temperatures: int) -> ImportanceEstimate:
    """−log p(x) by AIS from `refined_base`, with the random numbers of torch.  x: [B, D] -> [B]

    The estimate of −log p(x) is biased upwards, less with more temperatures.
    """
    seed = int(torch.randint(2**31, ()))
    with warnings.catch_warnings():  # the summary says how many images have few effective chains
        warnings.simplefilter("ignore", EvidenceWarning)
        evidence = ais(
            refined_base(model, x), model.posterior(x), num_temperatures, num_chains, schedule="adaptive",
            seed=seed, progress=False,
        )  # fmt: skip
    each = evidence.per_item
    return ImportanceEstimate(-each.log_z, each.std_error, each.ess)


@torch.no_grad()
def refined_base(model: VAE, x: Tensor) -> Distribution:
    """A Gaussian with the means and variances of refined samples, or q0(z|x) if no chain refines it.  [B]

    The encoder of a chain is a place to start from and may be far from the posterior.  Given its moments,
    which other random numbers have found, annealing from the Gaussian is as unbiased as from any other.
    """
    encoded = model.encode(x)
    if isinstance(model.chain, Chain) and not len(model.chain.steps):
        return encoded
    samples = model.refine(x, NUM_REFINED)
    loc, scale = samples.mean(0), samples.std(0)
    known = (loc + scale.log()).isfinite()
    loc, scale = loc.where(known, encoded.mean), scale.where(known, encoded.stddev)
    return Independent(Normal(loc, scale, validate_args=False), 1, validate_args=False)


def num_nll_samples(evaluation: EvaluateConfig) -> int:
    """Weights behind the estimate of an image: samples, or chains; 0 if none was asked for."""
    return (
        evaluation.ais_chains
        if evaluation.nll == "ais" and evaluation.nll_samples
        else evaluation.nll_samples
    )


def annealing_problem(
    summary: Mapping[str, Any], model: VAE, x: Tensor, evaluation: EvaluateConfig
) -> str | None:
    """What made AIS fail, and what to do about it; None if it did not fail.  x: [B, D]"""
    if evaluation.nll != "ais" or summary["nll"] is None:
        return None
    num_bad, num_images = max(summary["nll_num_few"], summary["nll_num_failed"]), summary["num_images"]
    if num_bad <= LIMIT * num_images:
        return None
    reason = "the Gaussian that it starts from is too far from the posterior for so few temperatures"
    if (floored := share_at_floor(model, x)) > LIMIT:
        reason = (
            f"{floored:.0%} of the decoder's scales stand at their floor of {_floor(model):g}, so that the "
            "posteriors are too sharp for steps that the path can take"
        )
    return (
        f"annealing failed for {num_bad} of {num_images} images, whose {evaluation.ais_chains} chains have "
        f"hardly one effective weight, or none that is finite: {reason}. Evaluate again with more "
        f"temperatures (evaluate.ais_temperatures={10 * evaluation.ais_temperatures}), or compare the bounds"
    )


@torch.no_grad()
def share_at_floor(model: VAE, x: Tensor) -> float:
    """The share of pixels to which a Gaussian decoder gives the smallest scale it can.  x: [B, D]"""
    if model.likelihood != "gaussian" or not _floor(model):
        return 0.0
    like = next(model.parameters())
    _, scale = model.decoder(model.encoder(x.to(like))[0])
    return (scale < AT_FLOOR * _floor(model)).double().mean().item()


def _floor(model: VAE) -> float:
    """The smallest scale of the built-in decoders; 0 for others."""
    decoder = model.decoder
    return decoder.min_scale if isinstance(decoder, GaussianDecoder | ConvDecoder) else 0.0
