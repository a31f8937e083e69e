"""Generators whose manifolds are known, and exact draws on them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from hmcvi.models import Generator
from hmcvi.models.inputs import HyperbolicSecant, Inputs, Logistic, Normal
from tests.support.problems import F64
from tests.support.targets import normal_cdf

OUTPUTS = 3
TIMES = torch.tensor([0.5, -1.0, 1.5], dtype=F64)


def series(form: str = "dense") -> Generator:
    """x_i = sin(x_{i−1}) + z₁ + e^{z₂/3} n_i, as "dense", "autoregressive" or "conditional"."""
    inputs: dict[str, Inputs] = {"z": HyperbolicSecant(2), "n": Normal(OUTPUTS)}

    def conditional(v: dict[str, Tensor], x: Tensor) -> Tensor:
        past = torch.cat([torch.ones_like(x[..., :1]), x[..., :-1]], -1)
        own = v["z"][..., :1] + (v["z"][..., 1:] / 3).exp() * v["n"]
        return past.broadcast_to(own.shape).sin() + own

    def observe(v: dict[str, Tensor]) -> Tensor:
        x: list[Tensor] = []
        for index in range(OUTPUTS):
            past = x[-1] if x else torch.ones_like(v["z"][..., 0])
            own = v["z"][..., 0] + (v["z"][..., 1] / 3).exp() * v["n"][..., index]
            x.append(past.sin() + own)
        return torch.stack(x, -1)

    if form == "conditional":
        return Generator(inputs, observe, structure="autoregressive", conditional=conditional)
    return Generator(inputs, observe, structure=form)


def regression(form: str = "elementwise") -> Generator:
    """x_i = tanh(z₁ t_i) + z₂ + e^{z₁ t_i/4} (n_i + n_i³/10): "elementwise", and so the others too."""

    def observe(v: dict[str, Tensor]) -> Tensor:
        slope, level = v["z"][..., :1] * TIMES, v["z"][..., 1:]
        return slope.tanh() + level + (slope / 4).exp() * (v["n"] + v["n"] ** 3 / 10)

    return Generator({"z": Normal(2), "n": Logistic(OUTPUTS)}, observe, structure=form)


def pairs(form: str = "elementwise") -> Generator:
    """Pairs x_i = B(z₁ t_i) (n_i + n_i³/10) + (z₁ t_i, z₂) with a matrix B of size two."""
    inputs: dict[str, Inputs] = {"z": HyperbolicSecant(2), "n": Normal(OUTPUTS, 2)}

    def observe(v: dict[str, Tensor]) -> Tensor:
        slope, level = (
            v["z"][..., :1, None] * TIMES[:, None],
            v["z"][..., 1:, None],
        )  # [..., N, 1], [..., 1, 1]
        one, two = (v["n"] + v["n"] ** 3 / 10).split(1, -1)
        first = slope + (slope / 4).exp() * one + 0.7 * two
        x = torch.cat([first, level + 0.5 * slope.sin() * one + two], -1)
        return x.flatten(-2)

    return Generator(inputs, observe, structure=form)


def wide(form: str = "elementwise", block: int = 1) -> Generator:
    """x = tanh(A z) + e^{z/4} m(z₁) (n + n³/10), more z than x; m mixes the outputs of a block."""
    shape = (OUTPUTS,) if block == 1 else (OUTPUTS, block)
    size = OUTPUTS * block
    matrix = torch.randn(size + 1, size, dtype=F64, generator=torch.Generator().manual_seed(0))

    def observe(v: dict[str, Tensor]) -> Tensor:
        z, own = v["z"], v["n"] + v["n"] ** 3 / 10
        if block > 1:
            own = (own + 0.5 * z[..., :1, None].tanh() * own.flip(-1)).flatten(-2)
        return (z @ matrix).tanh() + (z[..., :size] / 4).exp() * own

    return Generator({"z": Logistic(size + 1), "n": Normal(*shape)}, observe, structure=form)


def pair_series(form: str = "conditional") -> Generator:
    """Pairs x_i = tanh(x_{i−1}) + z₂ + R(z₁) n_i, R a rotation and stretch: "conditional" or "dense"."""
    inputs: dict[str, Inputs] = {"z": Normal(2), "n": Logistic(OUTPUTS, 2)}

    def mixed(z: Tensor, n: Tensor) -> Tensor:
        (angle, level), (one, two) = z.split(1, -1), n.split(1, -1)
        turned = [
            angle.cos() * one - angle.sin() * two,
            angle.sin() * one + (angle / 3).exp() * two,
        ]
        return level + torch.cat(turned, -1)

    def conditional(v: dict[str, Tensor], x: Tensor) -> Tensor:
        x = x.unflatten(-1, (OUTPUTS, 2))
        past = torch.cat([torch.ones_like(x[..., :1, :]), x[..., :-1, :]], -2)
        return (past.tanh() + mixed(v["z"][..., None, :], v["n"])).flatten(-2)

    def observe(v: dict[str, Tensor]) -> Tensor:
        x = [torch.ones_like(v["n"][..., 0, :])]
        for index in range(OUTPUTS):
            x.append(x[-1].tanh() + mixed(v["z"], v["n"][..., index, :]))
        return torch.cat(x[1:], -1)

    if form == "conditional":
        return Generator(inputs, observe, structure="autoregressive", conditional=conditional)
    return Generator(inputs, observe, structure=form)


class LinearNormal:
    """x = A z + d n + b, everything normal: z | x ~ N(K (x − b), S)."""

    matrix = torch.tensor([[1.0, 0.3], [-0.4, 0.8], [0.5, 0.5]], dtype=F64)
    scales = torch.tensor([0.5, 0.9, 0.7], dtype=F64)
    shift = torch.tensor([0.2, -1.0, 0.4], dtype=F64)

    def __init__(self, structure: str = "dense", extra_noise: float = 0.0) -> None:
        self.generator = Generator({"z": Normal(2), "n": Normal(OUTPUTS)}, self.observe, structure=structure)
        variances = self.scales**2 + extra_noise**2
        weighted = self.matrix.T / variances
        self.covariance = torch.linalg.inv(torch.eye(2, dtype=F64) + weighted @ self.matrix)
        self.gain = self.covariance @ weighted

    def observe(self, v: dict[str, Tensor]) -> Tensor:
        return v["z"] @ self.matrix.T + self.scales * v["n"] + self.shift

    def uniforms(self, z: Tensor, observed: Tensor) -> Tensor:
        """Independent and uniform if z ~ p(z | x).  [N, 2]"""
        centred = z - (observed - self.shift) @ self.gain.T
        root = torch.linalg.cholesky(self.covariance)
        return normal_cdf(torch.linalg.solve_triangular(root, centred.mT, upper=False).mT)

    def draw(self, count: int, observed: Tensor) -> Tensor:
        """u ~ p(u | x)  [count, 5]"""
        root = torch.linalg.cholesky(self.covariance)
        z = (observed - self.shift) @ self.gain.T + torch.randn(count, 2, dtype=F64) @ root.T
        return torch.cat([z, (observed - self.shift - z @ self.matrix.T) / self.scales], -1)


class Curve:
    """A manifold of two inputs u(t), t in [low, high], on which they have the density ρ |J|⁻¹ |du/dt|.

    Inputs are logistic around `centre`, so that the curve has no symmetry.
    """

    centre = torch.tensor([0.4, -0.3], dtype=F64)

    def __init__(
        self,
        constraint: Callable[[Tensor], Tensor],
        path: Callable[[Tensor], Tensor],
        low: float,
        high: float,
        inverse: Callable[[Tensor], Tensor],
    ) -> None:
        self._inverse = inverse
        self.generator = Generator(
            {"u": Logistic(2)}, lambda v: constraint(v["u"] + self.centre)[..., None], structure="dense"
        )
        grid = torch.linspace(low, high, 20_001, dtype=F64)
        self.position = lambda t: path(t) - self.centre
        t = (0.5 * (grid[1:] + grid[:-1])).requires_grad_()
        points = self.position(t)
        velocity = torch.stack(
            [torch.autograd.grad(p.sum(), t, retain_graph=True)[0] for p in points.unbind(-1)], -1
        )
        points = points.detach().requires_grad_()
        (jacobian,) = torch.autograd.grad(constraint(points + self.centre).sum(), points)
        log_prob = self.generator.density.log_prob(points.detach())
        density = log_prob.exp() * velocity.norm(dim=-1) / jacobian.norm(dim=-1)
        cdf = torch.cat([torch.zeros(1, dtype=F64), density.cumsum(0)])
        self._grid, self._cdf = grid, cdf / cdf[-1]

    def draw(self, count: int) -> Tensor:
        """[count, 2]"""
        return self.position(_interpolate(torch.rand(count, dtype=F64), self._cdf, self._grid))

    def uniform(self, position: Tensor) -> Tensor:
        """The distribution function of t.  [N, 2] -> [N]"""
        return _interpolate(self._inverse(position + self.centre), self._grid, self._cdf)


def ellipse() -> Curve:
    """u₁² + 4 u₂² = 1, by its angle."""
    return Curve(
        lambda u: u[..., 0] ** 2 + 4 * u[..., 1] ** 2 - 1,
        lambda t: torch.stack([t.cos(), t.sin() / 2], -1),
        -torch.pi,
        torch.pi,
        lambda u: torch.atan2(2 * u[..., 1], u[..., 0]),
    )


def hyperbola() -> Curve:
    """u₁² − u₂² = 1, both branches (± cosh s, sinh s), s = t ∓ 6.  [Graham 2018, (4.51)]"""
    return Curve(
        lambda u: u[..., 0] ** 2 - u[..., 1] ** 2 - 1,
        lambda t: torch.stack([t.sign() * (t - 6 * t.sign()).cosh(), (t - 6 * t.sign()).sinh()], -1),
        -12.0,
        12.0,
        lambda u: u[..., 1].asinh() + 6 * u[..., 0].sign(),
    )


def wave() -> Curve:
    """u₂ = sin 2u₁, by u₁: a line across it meets it again and again."""
    return Curve(
        lambda u: u[..., 1] - (2 * u[..., 0]).sin(),
        lambda t: torch.stack([t, (2 * t).sin()], -1),
        -12.0,
        12.0,
        lambda u: u[..., 0],
    )


def _interpolate(x: Tensor, known: Tensor, values: Tensor) -> Tensor:
    right = torch.searchsorted(known, x.contiguous()).clamp(1, len(known) - 1)
    share = (x - known[right - 1]) / (known[right] - known[right - 1])
    return values[right - 1] + share.clamp(0, 1) * (values[right] - values[right - 1])


CDFS: dict[type[Inputs], Callable[[Tensor], Tensor]] = {
    Normal: normal_cdf,
    Logistic: lambda u: torch.sigmoid(torch.pi / 3**0.5 * u),
    HyperbolicSecant: lambda u: 2 / torch.pi * torch.atan(torch.exp(torch.pi / 2 * u)),
}


def prior_uniforms(generator: Generator, inputs: Tensor) -> Tensor:
    """Independent and uniform if u ~ ρ.  [..., M]"""
    parts = generator.layout.unflatten(inputs)
    return generator.layout.flatten({n: CDFS[type(part)](parts[n]) for n, part in generator.inputs.items()})


GENERATORS: dict[str, Generator] = {
    **{f"series, {form}": series(form) for form in ("dense", "autoregressive", "conditional")},
    **{f"regression, {form}": regression(form) for form in ("dense", "elementwise", "autoregressive")},
    "pairs, in blocks": pairs(),
    "wide, elementwise": wide(),
    "wide, in blocks": wide(block=2),
    "pairs one after the other, in blocks": pair_series(),
}
