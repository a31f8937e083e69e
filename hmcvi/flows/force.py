"""Chains that move by cheap forces and are weighed exactly."""

from __future__ import annotations

from collections.abc import Iterable
from typing import overload

from torch import Tensor

from hmcvi.chain import Chain, Context, Phase, Step, Transition
from hmcvi.density import Density
from hmcvi.dynamics.forces import Approximation, ForcedDensity, Subset, force_of


class ApproximateForce(Chain):
    """A chain that moves by the forces of an approximation γ̃ of its target, weighed by the target γ itself.

    Kicks and drifts preserve volume whatever the force is, and all other prices are ratios of normalised
    distributions, which may depend on γ̃ as they like.  So E[w] = ∫γ stays exact, as long as log γ is exact
    where the chain ends; only how much a chain gains depends on γ̃.

    approximate(γ) -> γ̃, a deterministic function of the position with the same base, such as `HalfProducts`
        and `Surrogate`; or a `Subset`, whose random choice is part of the chain's randomness, independent of
        its state.  If it is a network, the bound trains it with the rest of the chain.
    """

    approximate_force = True

    def __init__(self, steps: Iterable[Step], approximate: Approximation | Subset) -> None:
        super().__init__(steps)
        self.approximate = approximate

    def forward(self, state: Phase, target: Density, context: Tensor | Context | None = None) -> Transition:
        context, approximate = Context.of(context), self.approximate
        if isinstance(approximate, Subset):
            approximate = approximate.draw(context.randomness)
        # log γ and its gradient, if they are known, belong to the target: the steps ask γ̃ for their own
        start = state._replace(log_prob=None, grad=None)
        transition = super().forward(start, approximate(target), context)
        end = transition.state._replace(log_prob=None, grad=None)
        return transition._replace(state=end)


@overload
def with_force(moved: Chain, force: str | Approximation | Subset) -> Chain: ...
@overload
def with_force(moved: Density, force: str | Approximation | Subset) -> Density: ...
def with_force(moved: Chain | Density, force: str | Approximation | Subset) -> Chain | Density:
    """A chain, or the density of a Hamiltonian kernel, with forces that are cheaper to compute.

    "full": itself.  "bf16": matrix products in bfloat16.  "surrogate(rank)": by a last layer of low rank in
    the decoder.  "subset(k)": by k of the observations, for chains alone.  A function γ -> γ̃: those of γ̃.
    Weights and acceptance stay exact.
    """
    approximate = force_of(force) if isinstance(force, str) else force
    if approximate is None:
        return moved
    if isinstance(moved, Chain):
        return ApproximateForce([moved], approximate)
    if isinstance(approximate, Subset):
        raise ValueError(
            "a kernel keeps the force of its state, which a subset that is chosen anew would change: choose "
            "one for all, force=lambda density: density.subset(kept)"
        )
    return ForcedDensity(moved, approximate(moved))
