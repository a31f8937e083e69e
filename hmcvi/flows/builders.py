"""Normalizing-flow posteriors from Pyro's transforms."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.distributions import Transform

from hmcvi.chain import Chain
from hmcvi.flows.bijection import Bijection
from hmcvi.internal.checks import at_least, one_of
from hmcvi.networks import zero_


def _transforms() -> Any:
    from pyro.distributions import transforms

    return transforms


def _planar(dim: int, context_dim: int, hidden: Sequence[int]) -> Any:
    if not context_dim:
        return _transforms().planar(dim)
    transform = _transforms().conditional_planar(dim, context_dim, list(hidden))
    # the network gives (b, u, w); a unit w and u = 0 move z by less than a third, a small w would move it far
    output = zero_(transform.nn.layers[-1])
    with torch.no_grad():
        output.bias[1 + dim :] = torch.nn.functional.normalize(torch.randn(dim), dim=0)
    return transform


def _iaf(dim: int, context_dim: int, hidden: Sequence[int]) -> Any:
    from pyro.nn import AutoRegressiveNN, ConditionalAutoRegressiveNN

    in_order: Any = torch.arange(dim)  # Pyro's default is a random order, which the reversal may undo
    if context_dim:
        network = ConditionalAutoRegressiveNN(dim, context_dim, list(hidden), permutation=in_order)
        return _identity_at_first(_transforms().ConditionalAffineAutoregressive(network))
    network = AutoRegressiveNN(dim, list(hidden), permutation=in_order)
    return _identity_at_first(_transforms().AffineAutoregressive(network))


def _coupling(dim: int, context_dim: int, hidden: Sequence[int]) -> Any:
    if dim < 2:
        raise ValueError(f"a coupling flow splits its variables: dim must be at least 2, got {dim}")
    if context_dim:
        transform = _transforms().conditional_affine_coupling(dim, context_dim, hidden_dims=list(hidden))
    else:
        transform = _transforms().affine_coupling(dim, hidden_dims=list(hidden))
    return _identity_at_first(transform)


def _identity_at_first(transform: Any) -> Any:
    """Set shift and log-scale to zero, so that training begins with the encoder's own posterior."""
    network = transform.arn if hasattr(transform, "arn") else transform.nn
    zero_(network.layers[-1])
    return transform


FLOWS: dict[str, Callable[[int, int, Sequence[int]], Any]] = {
    "planar": _planar,
    "iaf": _iaf,
    "coupling": _coupling,
}


def flow_chain(
    dim: int,
    context_dim: int,
    num_flows: int,
    flow: str = "iaf",
    hidden: Sequence[int] = (200, 200),
) -> Chain:
    """A normalizing flow of num_flows transforms z ↦ f(z; x), the variables in reverse order between them.

    flow: planar [Rezende & Mohamed 2015], iaf [Kingma et al. 2016], coupling [Dinh et al. 2017].
    context_dim = 0 gives flows that do not depend on x.
    """
    one_of("flow", flow, FLOWS)
    at_least(0, num_flows=num_flows)
    steps: list[Bijection] = []
    for index in range(num_flows):
        if index > 0 and flow != "planar":
            steps.append(Bijection(reversal(dim)))
        steps.append(Bijection(FLOWS[flow](dim, context_dim, hidden)))
    return Chain(steps)


def reversal(dim: int) -> Transform:
    """The reversed order z ↦ (z_d, …, z_1)."""
    return _transforms().Permute(torch.arange(dim - 1, -1, -1))
