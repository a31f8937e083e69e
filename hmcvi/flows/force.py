"""Chains that move by cheap forces and are weighed exactly."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from hmcvi.chain import Chain, Context, Phase, Step, Transition
from hmcvi.density import Density
from hmcvi.internal.checks import choose


class ApproximateForce(Chain):
    """A chain that moves by the forces of an approximation γ̃ of its target, weighed by the target γ itself.

    Kicks and drifts preserve volume whatever the force is, and all other prices are ratios of normalised
    distributions, which may depend on γ̃ as they like.  So E[w] = ∫γ stays exact, as long as log γ is exact
    where the chain ends; only how much a chain gains depends on γ̃.

    approximate(γ) -> γ̃, a deterministic function of the position with the same base, such as `HalfProducts`.
    """

    def __init__(self, steps: Iterable[Step], approximate: Callable[[Density], Density]) -> None:
        super().__init__(steps)
        self.approximate = approximate

    def forward(self, state: Phase, target: Density, context: Tensor | Context | None = None) -> Transition:
        # log γ and its gradient, if they are known, belong to the target: the steps ask γ̃ for their own
        transition = super().forward(
            state._replace(log_prob=None, grad=None), self.approximate(target), context
        )
        end = transition.state._replace(log_prob=None, grad=None)
        return transition._replace(state=end)


class HalfProducts(Density):
    """The same log density with its matrix products in bfloat16, forwards and backwards.

    Values have about three digits.  Double precision is left as it is.
    """

    def __init__(self, target: Density) -> None:
        super().__init__(target._log_prob, base=target.base, dim=target.dim)
        self.target = target

    def _log_prob(self, position: Tensor) -> Tensor:
        with torch.autocast(position.device.type, torch.bfloat16):
            return self.target._log_prob(position).to(position.dtype)

    def parameters(self, position: Tensor) -> list[Tensor]:
        return self.target.parameters(position)


FORCES: dict[str, Callable[[Density], Density] | None] = {"full": None, "bf16": HalfProducts}


def with_force(chain: Chain, force: str) -> Chain:
    """The chain with its forces computed as "full" (itself) or "bf16" (matrix products in bfloat16)."""
    approximate = choose("force", force, FORCES)
    return chain if approximate is None else ApproximateForce([chain], approximate)
