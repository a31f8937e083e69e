"""Learned densities that reverse the steps of the momentum: r(v | z, t, x), Gaussian or more flexible."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from hmcvi.chain import Context, Phase, weigh
from hmcvi.density import Density, NormalDensity, standard_log_prob
from hmcvi.dynamics.metrics import Metric
from hmcvi.flows.builders import flow_chain
from hmcvi.flows.coordinates import transport_of_base
from hmcvi.internal.checks import one_of
from hmcvi.networks import ConditionalMLP

SPREAD = 0.1  # of the centres of an untrained mixture, which costs it about 1e-4 nats in each dimension


class MomentumModel(nn.Module):
    """A density of the whitened momentum whose parameters a network outputs; N(0, I) if they are zero.

    forward(white [..., d], outputs [..., num_outputs]) -> log density  [...]
    """

    num_outputs: int

    def forward(self, white: Tensor, outputs: Tensor) -> Tensor:
        raise NotImplementedError

    def start(self, output: nn.Linear) -> None:
        """Initialise the output layer of the network, which is zero unless this changes it."""


class GaussianMomentum(MomentumModel):
    """N(loc, scale²), outputs = (loc, log scale)."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.num_outputs = 2 * dim

    def forward(self, white: Tensor, outputs: Tensor) -> Tensor:
        loc, log_scale = outputs.chunk(2, -1)
        return standard_log_prob((white - loc) * (-log_scale).exp()) - log_scale.sum(-1)


class MixtureMomentum(MomentumModel):
    """Σ_k π_k N(loc_k, scale_k²), outputs = K times (loc, log scale, log π up to a constant).

    Equal components would keep equal gradients, so their means are initialised a little apart, around zero.
    """

    def __init__(self, dim: int, num_components: int = 5) -> None:
        super().__init__()
        if num_components < 1:
            raise ValueError(f"a mixture has at least one component, got {num_components}")
        self.component, self.num_components = GaussianMomentum(dim), num_components
        self.num_outputs = num_components * (self.component.num_outputs + 1)

    def forward(self, white: Tensor, outputs: Tensor) -> Tensor:
        each = outputs.unflatten(-1, (self.num_components, -1))
        log_share = each[..., -1].log_softmax(-1)
        return (log_share + self.component(white[..., None, :], each[..., :-1])).logsumexp(-1)

    def start(self, output: nn.Linear) -> None:
        dim = self.component.num_outputs // 2
        centres = SPREAD * torch.randn(self.num_components, dim)
        with torch.no_grad():
            output.bias.unflatten(0, (self.num_components, -1))[:, :dim] = centres - centres.mean(0)


class FlowMomentum(MomentumModel):
    """f(ω) ~ N(0, I) for ω = (white − loc) / scale and a masked autoregressive flow f given features,

        log r = log N(f(ω); 0, I) + log|det ∂f/∂ω| − Σ log scale,   outputs = (loc, log scale, features).

    f has two affine layers with the order of the variables reversed between them, and is the identity before
    training.  Only its fast direction is used.  [Papamakarios et al. 2017]
    """

    def __init__(self, dim: int, num_features: int = 200) -> None:
        super().__init__()
        if dim < 2:
            raise ValueError(
                f"reverse='flow' conditions momenta on each other: dim must be at least 2, got {dim}; "
                "use reverse='mixture'"
            )
        self.sizes = (dim, dim, num_features)
        self.num_outputs = sum(self.sizes)
        self.flow = flow_chain(dim, num_features, num_flows=2, flow="iaf", hidden=(max(dim, num_features),))

    def forward(self, white: Tensor, outputs: Tensor) -> Tensor:
        loc, log_scale, features = outputs.split(self.sizes, -1)
        initial, target = Phase((white - loc) * (-log_scale).exp()), NormalDensity()
        return weigh(self.flow, initial, log_scale.sum(-1), target, Context(features)).log_weight


MOMENTUM_MODELS: dict[str, Callable[[int, Sequence[int]], MomentumModel]] = {
    "gaussian": lambda dim, hidden: GaussianMomentum(dim),
    "mixture": lambda dim, hidden: MixtureMomentum(dim),
    "flow": lambda dim, hidden: FlowMomentum(dim, *hidden[-1:]),
}


def _force(state: Phase, target: Density) -> Tensor:
    """∇log γ(z), squashed because forces have long tails.  [..., d]"""
    grad = state.evaluate(target).grad
    assert grad is not None
    return grad.asinh()


def _standardised(state: Phase, target: Density) -> Tensor:
    """e = T⁻¹(z): the position in units of the base.  [..., d]"""
    return transport_of_base(target).inv(state.position)


# what a reverse model may see of the state whose momentum it prices; never that momentum itself
FEATURES: dict[str, Callable[[Phase, Density], Tensor]] = {
    "position": lambda state, target: state.position,
    "force": _force,
    "standardised": _standardised,
}


class ReverseMomentum(nn.Module):
    """r(v | s, t, x), or r(v | s, u, t, x) with the refreshed momentum u: a density of the whitened momentum,

        L⁻¹v ~ law(outputs),   outputs = network([u,] s, t; x),   M = L Lᵀ.

    sees: the parts of s, among `FEATURES`: the position z, the force ∇log γ(z), the position standardised by
    the base.  Together they tell where in the posterior a chain is, and so which momentum brought it there.
    law: a `MomentumModel`; `GaussianMomentum` if None.  (The name is part of the keys of saved weights.)
    Untrained, r is N(0, M), the distribution of the momentum at stationarity; a mixture is close to it.
    t is time/T in (0, 1 + 1/T].
    """

    def __init__(
        self,
        dim: int,
        context_dim: int,
        hidden: Sequence[int] = (200, 200),
        sees_refreshed: bool = False,
        law: MomentumModel | None = None,
        sees: Sequence[str] = ("position",),
    ) -> None:
        super().__init__()
        self.sees, self.sees_refreshed = _checked(sees), sees_refreshed
        self.uses_force = True if "force" in self.sees else None  # as of a `Step`
        inputs = (len(self.sees) + sees_refreshed) * dim + 1
        self.law = law or GaussianMomentum(dim)
        self.net = ConditionalMLP(inputs, context_dim, hidden, self.law.num_outputs)
        self.law.start(self.net.output)

    def features(self, state: Phase, target: Density) -> Tensor:
        """s, the parts that are seen of the state.  [..., number of parts · d]"""
        return torch.cat([FEATURES[name](state, target) for name in self.sees], -1)

    def log_prob(
        self,
        momentum: Tensor,
        features: Tensor,
        metric: Metric,
        time: float,
        context: Context,
        refreshed: Tensor | None = None,
    ) -> Tensor:
        """log r  [...]"""
        inputs = [features, torch.full_like(features[..., :1], time)]
        if self.sees_refreshed:
            assert refreshed is not None
            inputs.append(metric.whiten(refreshed))
        return self.law(metric.whiten(momentum), self.net(context, *inputs)) - metric.log_det()


def _checked(sees: Sequence[str]) -> tuple[str, ...]:
    """The names of features, refused if there are none, unknown ones or repetitions."""
    if isinstance(sees, str) or not sees or len(set(sees)) < len(sees):
        raise ValueError(
            f"reverse_sees must be a list of different features ({', '.join(FEATURES)}), got {sees!r}"
        )
    for name in sees:
        one_of("reverse_sees", name, FEATURES)
    return tuple(sees)
