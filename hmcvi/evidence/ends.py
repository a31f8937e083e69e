"""log Z from what draws of tempered chains say of both ends of the path."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor

from hmcvi.evidence.bases import BaseDistribution
from hmcvi.evidence.result import (
    Evidence,
    EvidenceWarning,
    PerItem,
    effective_samples,
    log_mean_exp,
    warn_if_few,
)
from hmcvi.evidence.tempering import Continuous, Temperatures
from hmcvi.sampling.autocorrelation import mean_error

MOST_ERRORS = 6.0  # between the mean of the base and what chains see of it; errors of few draws are rough


def tempered_evidence(
    position: Tensor,
    delta: Tensor,
    log_zeta: float | Tensor,
    temperatures: Temperatures | None = None,
    diagnostics: dict[str, Tensor] | None = None,
) -> Evidence:
    """log Z = log ζ + log Σ_n w_1(z_n) − log Σ_n w_0(z_n), w_β(z) = p(β | z); expectations with weights w_1.

    position: [draws, chains, *items, d] of tempered chains, however they were run; delta: Δ(z), [draws,
    chains, *items]; temperatures: Continuous() if None.  The error is that of the mean of
    w_1 / w̄_1 − w_0 / w̄_0 over correlated draws.  E[z | β = 0] by weights w_0, to be compared with the mean of
    the base, is diagnostics["base_mean"], its error "base_mean_error".  [Graham 2018, (5.28), (5.30), (5.36)]
    """
    log_ends = (Continuous() if temperatures is None else temperatures).log_ends(delta.double())
    return ratio_of_ends(position, *log_ends, log_zeta, diagnostics or {})


def ratio_of_ends(
    position: Tensor,
    log_w0: Tensor,
    log_w1: Tensor,
    log_zeta: float | Tensor,
    diagnostics: dict[str, Tensor],
) -> Evidence:
    """The estimate from log-weights of both ends, [draws, chains, *items]."""
    flat0, flat1 = log_w0.flatten(0, 1), log_w1.flatten(0, 1)
    mean0, mean1 = log_mean_exp(flat0), log_mean_exp(flat1)
    for end, mean in enumerate((mean0, mean1)):
        if (mean == -torch.inf).any():
            raise ValueError(
                f"no draw is at β = {end}, there is nothing to count: take estimate='all', "
                "weights='adapted', fewer temperatures or more draws"
            )
    error = mean_error((log_w1 - mean1).exp() - (log_w0 - mean0).exp())
    ess = effective_samples(flat1) / error.time.clamp(min=1)
    warn_if_few(ess, len(flat1))
    share0 = (log_w0 - mean0).exp()[..., None]
    base_mean = (share0 * position).mean((0, 1))
    off = mean_error(share0 * (position - base_mean)).variance.sqrt()
    diagnostics = {**diagnostics, "base_mean": base_mean, "base_mean_error": off}
    per_item = PerItem(torch.as_tensor(log_zeta) + mean1 - mean0, error.variance.sqrt(), ess)
    return Evidence.of(per_item, diagnostics, position.flatten(0, 1), flat1)


def compared_with_base(evidence: Evidence, q: BaseDistribution) -> Evidence:
    """The same estimate, with a warning where E[z | β = 0] is not the mean of the base, if that is known.

    That it is does not show that the chains have converged, but that it is not shows that they have not.
    [Graham 2018, (5.30)]
    """
    mean, seen = q.mean(), evidence.diagnostics["base_mean"]
    if mean is None:
        return evidence
    errors = (seen - mean).abs() / evidence.diagnostics["base_mean_error"]
    if (errors > MOST_ERRORS).any():
        warnings.warn(
            "at β = 0 the chains do not have the mean of the base, which in one coordinate is "
            f"{errors.max():.3g} errors away: they have not converged along the path and log_z cannot be "
            "trusted; draw more, give a better log_zeta, or a base nearer to the target "
            "(hmcvi.evidence.refit)",
            EvidenceWarning,
            stacklevel=4,
        )
    return evidence
