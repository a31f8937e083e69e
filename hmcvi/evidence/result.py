"""Evidence: what an estimator of log Z returns."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from hmcvi.evidence.pareto import MAX_PARETO_K

UNKNOWN = torch.tensor(torch.nan)
TRUSTED = 10.0  # effective samples under which an error bar means little


class EvidenceWarning(UserWarning):
    """An estimate rests on few effective samples, and its error bar cannot be trusted."""


class PerItem(NamedTuple):
    """Estimates for each data item, all [*items]; without items all []."""

    log_z: Tensor
    std_error: Tensor  # of log_z; NaN where a single chain leaves it unknown
    ess: Tensor  # effective number of samples


@dataclass(frozen=True, eq=False, repr=False)
class Evidence:
    """An estimate of log Z of all data items together, and what it rests on.

    With items, Z = Π_i Z_i is the joint evidence; each Z_i is in `per_item`.  position [draws, *items, d]
    with log_weight [draws, *items] are weighted draws of the target, None where an estimator has none.
    Estimators from weights have k̂ of each item [*items] as diagnostics["pareto_k"].
    """

    log_z: Tensor  # []
    std_error: Tensor  # of log_z  []
    ess: Tensor  # the smallest of the items  []
    per_item: PerItem
    diagnostics: Mapping[str, Tensor]
    position: Tensor | None = None
    log_weight: Tensor | None = None
    pareto_k: Tensor = UNKNOWN  # the largest of the items, see `pareto_k`; NaN if unknown  []

    @classmethod
    def of(
        cls,
        per_item: PerItem,
        diagnostics: Mapping[str, Tensor],
        position: Tensor | None = None,
        log_weight: Tensor | None = None,
    ) -> Evidence:
        log_z, variance = per_item.log_z.sum(), per_item.std_error.square().sum()
        k = diagnostics.get("pareto_k", UNKNOWN)
        known = k[~k.isnan()]
        return cls(
            log_z,
            variance.sqrt(),
            per_item.ess.min(),
            per_item,
            diagnostics,
            position,
            log_weight,
            known.max() if len(known) else UNKNOWN,
        )

    def __repr__(self) -> str:
        items = f" over {self.per_item.log_z.numel()} items" if self.per_item.log_z.ndim else ""
        tail = "" if self.pareto_k.isnan() else f", pareto_k={self.pareto_k:.2f}"
        return f"Evidence(log_z={self.log_z:.6g} ± {self.std_error:.2g}{items}, ess={self.ess:.4g}{tail})"

    def summary(self) -> str:
        """The estimate in words, with what speaks against trusting it."""
        items = f" of {self.per_item.log_z.numel()} items" if self.per_item.log_z.ndim else ""
        worst = " (the worst item)" if self.per_item.log_z.ndim else ""
        lines = [
            f"log Z{items}: {self.log_z:.6g} ± {self.std_error:.2g}",
            f"effective samples{worst}: {self.ess:.4g}",
        ]
        if not self.pareto_k.isnan():
            lines.append(f"Pareto k of the weights{worst}: {self.pareto_k:.2f}")
        if heavy := heavy_tail(self.diagnostics.get("pareto_k", UNKNOWN)):
            lines.append(heavy)
        return "\n".join(lines)

    def expectation(self, function: Callable[[Tensor], Tensor]) -> Tensor:
        """Σ_n w_n f(z_n) / Σ_n w_n ≈ E[f(z)] under the target.  f: [..., d] -> [..., *shape]"""
        if self.position is None or self.log_weight is None:
            raise ValueError("this estimator has no draws of the target: take expectations from another one")
        value, share = function(self.position), self.log_weight.softmax(0)
        share = share.reshape(share.shape + (1,) * (value.ndim - share.ndim)).to(value)
        return (share * value).sum(0)


def log_mean_exp(log_weight: Tensor) -> Tensor:
    """log mean_n e^{l_n}.  [N, ...] -> [...]"""
    return log_weight.logsumexp(0) - math.log(len(log_weight))


def effective_samples(log_weight: Tensor) -> Tensor:
    """(Σ w)² / Σ w².  [N, ...] -> [...]  [Kish 1965]"""
    return (2 * log_weight.logsumexp(0) - (2 * log_weight).logsumexp(0)).exp()


def from_weights(log_weight: Tensor) -> PerItem:
    """log mean w of independent weights; its error by the delta method.  [N, *items]

    Var(log mean w) ≈ Var(w) / (N Z²) = (N / ESS − 1) / (N − 1)
    """
    log_weight = log_weight.where(~log_weight.isnan(), -torch.inf)
    count, ess = len(log_weight), effective_samples(log_weight)
    unknown = torch.full_like(ess, torch.nan)
    variance = (count / ess - 1).clamp(min=0) / (count - 1) if count > 1 else unknown
    return PerItem(log_mean_exp(log_weight), variance.sqrt(), ess)


def heavy_tail(k: Tensor) -> str:
    """A sentence about weights whose k̂ is too large, empty if there are none.  [*items]"""
    heavy = k > MAX_PARETO_K
    if not heavy.any():
        return ""
    where = f" for {int(heavy.sum())} of {k.numel()} items" if k.ndim else ""
    return (
        f"The weights have a heavy tail (k > {MAX_PARETO_K}){where}: a few samples that were not drawn could "
        "change the estimate by more than its error; widen the base or anneal over more temperatures."
    )


def too_few(ess: Tensor, num_samples: int) -> Tensor:
    """Whether an estimate rests on a handful of its samples.  [*items] -> [*items]"""
    return ~(ess >= min(TRUSTED, num_samples / 10))


def warn_if_few(ess: Tensor, num_samples: int) -> None:
    """Warn where an estimate rests on a handful of its samples."""
    low = too_few(ess, num_samples)
    if low.any():
        where = f" for {int(low.sum())} of {ess.numel()} items" if ess.ndim else ""
        least = ess.nan_to_num(nan=0.0).min()
        warnings.warn(
            f"only {least:.3g} of {num_samples} samples are effective{where}: the base is narrower than the "
            "target or far from it, and neither log_z nor its error can be trusted; widen the base, anneal "
            "over more temperatures, or take more samples",
            EvidenceWarning,
            stacklevel=3,
        )


def mean_acceptance(info: Mapping[str, Tensor]) -> Tensor:
    """The mean acceptance rate of all chains in one transition; NaN for kernels that report none.  []"""
    return info.get("acceptance_rate", info.get("accepted", torch.tensor(torch.nan))).double().mean()
