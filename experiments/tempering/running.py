"""Estimates of log Z by tempered chains from more and more of their draws."""

from __future__ import annotations

from torch import Tensor

from hmcvi.evidence import Continuous
from hmcvi.evidence.tempering import Temperatures


def running_estimates(
    delta: Tensor, log_zeta: float | Tensor, temperatures: Temperatures | None = None
) -> Tensor:
    """log ζ + log Σ_{m≤n} w_1(z_m) − log Σ_{m≤n} w_0(z_m) for all n.  [draws, ...] -> [draws, ...]

    temperatures: of the chains; continuous if None.
    """
    log_w0, log_w1 = (Continuous() if temperatures is None else temperatures).log_ends(delta.double())
    return log_zeta + log_w1.logcumsumexp(0) - log_w0.logcumsumexp(0)
