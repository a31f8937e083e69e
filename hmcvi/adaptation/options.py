"""What warm-up may tune."""

from __future__ import annotations

from dataclasses import dataclass

from hmcvi.dynamics.metrics import DiagonalMetric, IdentityMetric, Metric, SpectralMetric


@dataclass(frozen=True)
class Warmup:
    """What warm-up may tune.

    target_acceptance: sets the step size; None: what suits the kernel (0.234 for a random walk; 0.8 for HMC,
        more where curvature changes from place to place).
    mass: "diagonal", "dense" or "fixed"; None: dense where the kernel has a full metric already, or where HMC
        runs alone and its draws suffice for one, else diagonal; in more than 150 dimensions diagonal but for
        the few directions that differ most in draws and gradients.
    noncentring: whether HMC that runs alone learns coordinates where scales change from place to place, if
        some proposals then have next to no acceptance.
    """

    target_acceptance: float | None = None
    mass: str | None = None
    noncentring: bool = True

    def __post_init__(self) -> None:
        if self.target_acceptance is not None and not 0 < self.target_acceptance < 1:
            raise ValueError(f"target_acceptance must lie in (0, 1), got {self.target_acceptance}")
        if self.mass not in (None, "diagonal", "dense", "fixed"):
            raise ValueError(f"mass must be diagonal, dense or fixed, got {self.mass!r}")

    def is_dense(self, metric: Metric) -> bool | None:
        """Whether the mass is a full matrix; None: where the draws suffice for one."""
        if self.mass is None:
            return None if isinstance(metric, IdentityMetric | DiagonalMetric | SpectralMetric) else True
        return self.mass == "dense"
