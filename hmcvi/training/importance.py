"""The likelihood of several binarisations of an image from one set of importance samples."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from hmcvi.models import VAE, ImportanceEstimate
from hmcvi.models.likelihood import log_normal

CHUNK = 1000  # samples decoded at once; their logits stay in the cache of a processor


@torch.no_grad()
def shared_importance_nll(
    model: VAE, x: Tensor, num_samples: int = 5000, num_centre: int = 5
) -> ImportanceEstimate:
    """−log p(x_j) of J binarisations of each of B images.  x: [J, B, D] -> [J, B]

    Decoding is nearly all the work of importance sampling, and a decoded sample serves all binarisations:

        z_s ~ q(z) = (1/J) Σ_i N(mean of five refined samples for x_i, scale of the encoder for x_i)
        p(x_j) ≈ (1/S) Σ_s p(x_j|z_s) N(z_s; 0, I) / q(z_s)

    which is unbiased for every j.  S samples in equal parts from the J proposals, rounded up.
    [Wolf et al. 2016, appendix B; the mixture is the balance heuristic of Veach & Guibas 1995]
    """
    if model.likelihood != "bernoulli":
        raise ValueError(f"binarised images have a bernoulli likelihood, the model's is {model.likelihood}")
    flat = x.flatten(0, 1)
    scale = model.encoder(flat)[1].unflatten(0, x.shape[:2])
    loc = model.refine(flat, num_centre).mean(0).unflatten(0, x.shape[:2])
    sizes = _sizes(num_samples, len(x))
    log_weights = torch.stack(
        [
            torch.cat([_log_weights(model, x[:, b], loc[:, b], scale[:, b], size) for size in sizes])
            for b in range(x.shape[1])
        ],
        -1,
    )
    total = len(log_weights)
    ess = 1 / log_weights.softmax(0).square().sum(0)
    return ImportanceEstimate(
        math.log(total) - log_weights.logsumexp(0), (1 / ess - 1 / total).clamp(min=0).sqrt(), ess
    )


def _log_weights(model: VAE, x: Tensor, loc: Tensor, scale: Tensor, size: int) -> Tensor:
    """log p(x_j, z_s) − log q(z_s) for `size` samples of each proposal.

    x: [J, D]; loc, scale: [J, d] -> [size · J, J]
    """
    z = (loc + scale * torch.randn(size, *loc.shape, dtype=loc.dtype, device=loc.device)).flatten(0, 1)
    logits = model.decoder(z)
    log_likelihood = logits @ x.mT - F.softplus(logits).sum(-1, keepdim=True)
    log_prior = log_normal(z, torch.zeros_like(z), torch.ones_like(z))
    log_proposal = log_normal(z[:, None], loc, scale).logsumexp(-1) - math.log(len(loc))
    return log_likelihood + (log_prior - log_proposal)[:, None]


def _sizes(num_samples: int, num_proposals: int) -> list[int]:
    """Samples of each proposal, chunk by chunk."""
    each, chunk = -(-num_samples // num_proposals), max(1, CHUNK // num_proposals)
    return [min(chunk, each - start) for start in range(0, each, chunk)]
