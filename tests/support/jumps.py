"""Targets with jumps and integers, whose draws and conditional distributions are known."""

from __future__ import annotations

import torch
from torch import Tensor

from hmcvi import Density
from hmcvi.kernels import Categorical, Counts, EmbeddedDensity
from tests.support.problems import F64


class Staircase:
    """x₁ on [0, 5) with height h_j in the cell [j, j+1), one of them zero; x₂ | x₁ exponential of mean s_j.

    log_scale: x₂ is given by its logarithm, in which log γ is smooth.
    """

    heights = torch.tensor([1.0, 4.0, 0.5, 0.0, 2.0], dtype=F64) / 7.5
    scales = torch.tensor([1.0, 0.4, 2.0, 1.0, 0.7], dtype=F64)

    def __init__(self, log_scale: bool) -> None:
        self.log_scale = log_scale
        self.density = Density(self.log_prob)
        self.discontinuous = torch.tensor([True, not log_scale])

    def _cell(self, first: Tensor) -> Tensor:
        return first.clamp(0, 4).long()

    def log_prob(self, z: Tensor) -> Tensor:
        first, second = z.unbind(-1)
        cell = self._cell(first)
        scale = self.scales.to(z)[cell]
        size = second.exp() if self.log_scale else second
        value = self.heights.to(z)[cell].log() - scale.log() - size / scale
        inside = (first >= 0) & (first < 5)
        if self.log_scale:
            return (value + second).where(inside, -torch.inf)
        return value.where(inside & (second >= 0), -torch.inf)

    def draw(self, count: int) -> Tensor:
        cell = torch.multinomial(self.heights, count, replacement=True)
        first = cell + torch.rand(count, dtype=F64)
        second = -self.scales[cell] * torch.rand(count, dtype=F64).log()
        return torch.stack([first, second.log() if self.log_scale else second], -1)

    def uniforms(self, z: Tensor) -> Tensor:
        """Independent and uniform for exact draws.  [N, 2] -> [N, 3], the third a check of independence"""
        first, second = z.unbind(-1)
        cell = self._cell(first)
        below = self.heights.cumsum(0) - self.heights
        one = below[cell] + (first - cell) * self.heights[cell]
        two = -torch.expm1(-(second.exp() if self.log_scale else second) / self.scales[cell])
        return torch.stack([one, two, (one + two) % 1], -1)


class CountsAndClasses:
    """x ~ N(0, I), counts n_j ~ Poisson(exp(a_jᵀx + b_j)), classes c_k ~ softmax(s (x_1 + log(1 + n_1))).

    20 dimensions unless told otherwise; counts hang on all that is continuous, classes on x_1 and n_1.
    """

    num_classes = 4

    def __init__(self, continuous: int = 6, counts: int = 10, classes: int = 4, seed: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.weight = 0.2 * torch.randn(counts, continuous, generator=generator, dtype=F64)
        self.bias = torch.linspace(-0.5, 2.0, counts, dtype=F64)
        self.slopes = torch.randn(self.num_classes, generator=generator, dtype=F64)
        self.density = EmbeddedDensity(
            self.log_prob,
            shapes={"x": (continuous,), "n": (counts,), "c": (classes,)},
            discrete={"n": Counts(), "c": Categorical(self.num_classes)},
        )
        self.shapes = (continuous, counts, classes)
        self.discontinuous = self.density.discontinuous

    def rate(self, x: Tensor) -> Tensor:
        return (x @ self.weight.T + self.bias).exp()

    def class_log_prob(self, x: Tensor, n: Tensor) -> Tensor:
        return ((x[..., :1] + n[..., :1].to(x).log1p()) * self.slopes).log_softmax(-1)

    def log_prob(self, v: dict[str, Tensor]) -> Tensor:
        x, n, c = v["x"], v["n"], v["c"]
        poisson = torch.distributions.Poisson(self.rate(x), validate_args=False).log_prob(n)
        return -0.5 * x.square().sum(-1) + poisson.sum(-1) + self.class_log_prob(x, n).gather(-1, c).sum(-1)

    def draw(self, count: int) -> Tensor:
        """Positions: integers at random points of their intervals.  [count, d]"""
        continuous, _, classes = self.shapes
        x = torch.randn(count, continuous, dtype=F64)
        n = torch.poisson(self.rate(x)).long()
        c = torch.multinomial(self.class_log_prob(x, n).exp(), classes, replacement=True)
        discrete = self.density.layout.discrete
        n, c = (
            discrete[name].embed(value, 1 - torch.rand(value.shape, dtype=F64))
            for name, value in (("n", n), ("c", c))
        )
        return torch.cat([x, n, c], -1)

    def uniforms(self, z: Tensor) -> Tensor:
        """Distribution functions of x, of n and c given x (their jumps filled at random), and of the places
        in the intervals.  [N, d] -> [N, d + d_discrete]"""
        v = self.density.layout.unflatten(z)
        x, n, c = v["x"], v["n"], v["c"]
        normal = torch.special.ndtr(x)
        # P(Poisson(λ) < n) = Q(n, λ), the upper incomplete gamma function
        rate = self.rate(x)
        below = torch.special.gammaincc(n.to(F64).clamp(min=1), rate).where(n > 0, 0.0)
        upto = torch.special.gammaincc(n + 1.0, rate)
        poisson = below + torch.rand_like(below) * (upto - below)
        share = self.class_log_prob(x, n).exp()
        total = share.cumsum(-1)
        category = total.gather(-1, c) - torch.rand(c.shape, dtype=F64) * share.gather(-1, c)
        places = [self._place(z, name, v[name]) for name in ("n", "c")]
        return torch.cat([normal, poisson, category, *places], -1)

    def _place(self, z: Tensor, name: str, n: Tensor) -> Tensor:
        kind = self.density.layout.discrete[name]
        low, high = (kind.embed(n, share, dtype=F64) for share in (0.0, 1.0))
        return (z[..., self.density.layout.slices[name]] - low) / (high - low)


PURE, MIXED, LARGE = Staircase(log_scale=False), Staircase(log_scale=True), CountsAndClasses()
THREE = CountsAndClasses(continuous=1, counts=1, classes=1)
