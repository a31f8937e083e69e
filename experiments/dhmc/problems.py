"""A density with jumps and a posterior of counts, both with answers known by quadrature."""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import cached_property

import torch
from numpy.polynomial import legendre
from torch import Tensor
from torch.nn.functional import softplus

from hmcvi.density import Density
from hmcvi.kernels import (
    Counts,
    DiscontinuousHMC,
    EmbeddedDensity,
    EventDrivenHMC,
    FactoredDensity,
    Gibbs,
    Kernel,
    RandomWalkMetropolis,
)

F64 = torch.float64
DHMC, FACTORED = "DHMC", "DHMC by factors"
EVENTS, METROPOLIS = "event-driven", "Metropolis within Gibbs"


class Problem(ABC):
    """A target, the kernels that compete on it, and the exact means of some quantities."""

    name: str
    density: Density
    shown: str  # the quantity whose distribution is drawn

    @abstractmethod
    def kernels(self) -> dict[str, Kernel]:
        """The competitors, with step sizes and lengths from a few pilot runs of each."""

    @abstractmethod
    def initial(self, num_chains: int, generator: torch.Generator) -> Tensor:
        """Scattered initial states.  [num_chains, d]"""

    @abstractmethod
    def quantities(self, position: Tensor) -> dict[str, Tensor]:
        """What is estimated, {name: [...]} from positions [..., d]."""

    @abstractmethod
    def exact(self) -> dict[str, float]:
        """The means of the quantities."""

    @abstractmethod
    def distribution(self) -> tuple[Tensor, Tensor]:
        """Points and the exact density, or probabilities, of the quantity shown.  [k], [k]"""


class Staircase(Problem):
    """γ(x) = p(x_1, …, x_d) Π h(x_i): a path x_{i+1} ~ N(ρ x_i, 1 − ρ²) over a floor h with steps."""

    name, shown = "density with jumps", "x₁"
    dim, correlation = 10, 0.9
    jumps = torch.tensor([-1.5, -0.5, 0.5, 1.5], dtype=F64)
    heights = torch.tensor([1.0, 0.7, 1.3, 0.7, 1.2], dtype=F64)

    def __init__(self) -> None:
        self.density = Density(self.log_prob)

    def log_height(self, x: Tensor) -> Tensor:
        return self.heights.log()[torch.bucketize(x.contiguous(), self.jumps)]

    def log_move(self, old: Tensor, new: Tensor) -> Tensor:
        return -0.5 * (new - self.correlation * old).square() / (1 - self.correlation**2)

    def log_prob(self, z: Tensor) -> Tensor:
        path = -0.5 * z[..., 0].square() + self.log_move(z[..., :-1], z[..., 1:]).sum(-1)
        return path + self.log_height(z).sum(-1)

    def kernels(self) -> dict[str, Kernel]:
        return {
            DHMC: DiscontinuousHMC(self.density, [True] * self.dim, step_size=0.4, num_steps=15),
            FACTORED: DiscontinuousHMC(
                FactoredDensity(self.density, self.local, [range(0, self.dim, 2), range(1, self.dim, 2)]),
                [True] * self.dim,
                step_size=0.4,
                num_steps=15,
            ),
            EVENTS: EventDrivenHMC(self.density, *self.walls(), time=1.5, loc=0.0, scale=self.root()),
            METROPOLIS: Gibbs([(i, RandomWalkMetropolis(self.density, 0.8)) for i in range(self.dim)]),
        }

    def local(self, z: Tensor, index: Tensor) -> Tensor:
        """The floor under x_i, its marginal for i = 1, and the moves from x_{i−1} and to x_{i+1}."""
        moves = torch.nn.functional.pad(self.log_move(z[..., :-1], z[..., 1:]), (1, 1))
        first = torch.nn.functional.pad(-0.5 * z[..., :1].square(), (0, self.dim - 1))
        return (self.log_height(z) + first + moves[..., :-1] + moves[..., 1:]).gather(-1, index)

    def root(self) -> Tensor:
        """L of the path without floor, z = L x.  [d, d]"""
        steps = torch.arange(self.dim, dtype=F64)
        covariance = self.correlation ** (steps[:, None] - steps).abs()
        return torch.linalg.cholesky(covariance)

    def walls(self) -> tuple[Tensor, Tensor]:
        """Normals and offsets of all jumps of all coordinates."""
        normals = torch.eye(self.dim, dtype=F64).repeat_interleave(len(self.jumps), 0)
        return normals, self.jumps.repeat(self.dim)

    def initial(self, num_chains: int, generator: torch.Generator) -> Tensor:
        return torch.randn(num_chains, self.dim, dtype=F64, generator=generator)

    def quantities(self, position: Tensor) -> dict[str, Tensor]:
        first, middle = position[..., 0], position[..., self.dim // 2]
        return {
            "x₁": first,
            "x₁²": first.square(),
            "x₆": middle,
            "x₆²": middle.square(),
            "mean of x": position.mean(-1),
        }

    def exact(self) -> dict[str, float]:
        x, weight, marginals = self._marginals()
        means, squares = marginals * weight @ x, marginals * weight @ x.square()
        middle = self.dim // 2
        values = (means[0], squares[0], means[middle], squares[middle], means.mean())
        names = self.quantities(torch.zeros(self.dim))
        return {name: float(value) for name, value in zip(names, values, strict=True)}

    def distribution(self) -> tuple[Tensor, Tensor]:
        x, _, marginals = self._marginals()
        return x, marginals[0]

    def _marginals(self) -> tuple[Tensor, Tensor, Tensor]:
        """The marginals of x_i, from what the path before and after i says of it, by sums over Gauss–Legendre
        nodes between the jumps.  Nodes [k], weights [k], densities [d, k]"""
        edges = [-7.0, *self.jumps.tolist(), 7.0]
        nodes, weights = (torch.as_tensor(part, dtype=F64) for part in legendre.leggauss(60))
        half = torch.tensor(edges, dtype=F64).diff()[:, None] / 2
        x = (half * nodes + torch.tensor(edges[:-1], dtype=F64)[:, None] + half).flatten()
        weight = (half * weights).flatten()
        move = self.log_move(x[:, None], x).exp()  # [old, new]
        height = self.log_height(x).exp() * weight
        before = [(-0.5 * x.square()).exp()]
        after = [torch.ones_like(x)]
        for _ in range(self.dim - 1):
            before.append((before[-1] * height) @ move)
            after.append(move @ (after[-1] * height))
        marginals = torch.stack(before) * torch.stack(after).flip(0) * self.log_height(x).exp()
        return x, weight, marginals / (marginals @ weight)[:, None]


class Abundance(Problem):
    """Animals seen on repeated visits: y_ij ~ Binomial(N_i, p), N_i ~ Poisson(λ), both p and λ unknown.

    log λ ~ N(3, 1), logit p ~ N(0, 1).  Many animals seldom seen explain the counts as well as few often
    seen, so that N, λ and p move only together.  [the N-mixture model of Royle 2004]
    """

    name, shown = "posterior of counts", "N₁"
    density: EmbeddedDensity
    data = torch.tensor(
        [
            [7, 9, 6, 8, 7],
            [9, 6, 10, 7, 9],
            [4, 6, 7, 5, 6],
            [11, 8, 9, 12, 8],
            [6, 8, 5, 7, 8],
            [8, 5, 7, 9, 6],
        ],
        dtype=F64,
    )

    def __init__(self, seen: Tensor = data) -> None:
        self.seen = seen
        self.num_sites, self.num_visits = seen.shape
        self.density = EmbeddedDensity(
            self.log_prob,
            shapes={"log_rate": (), "logit": (), "N": (self.num_sites,)},
            discrete={"N": Counts()},
        )

    def log_ways(self, count: Tensor) -> Tensor:
        """Σ_j log (N_i choose y_ij) − log N_i! + constant, −inf if more than N_i were seen.  [..., sites]"""
        hidden = count[..., None] - self.seen
        ways = (self.num_visits - 1) * (count + 1).lgamma() - (hidden.clamp(min=0) + 1).lgamma().sum(-1)
        return ways.where((hidden >= 0).all(-1), -torch.inf)

    def log_prob(self, v: dict[str, Tensor]) -> Tensor:
        log_rate, logit, count = v["log_rate"], v["logit"], v["N"]
        return self.log_prior(log_rate, logit) + self.by_site(log_rate, logit, count).sum(-1)

    def by_site(self, log_rate: Tensor, logit: Tensor, count: Tensor) -> Tensor:
        """The factors that N_i is in.  [..., sites]"""
        per_animal = log_rate - self.num_visits * softplus(logit)
        return self.log_ways(count) + per_animal[..., None] * count

    def local(self, v: dict[str, Tensor], index: Tensor) -> Tensor:
        """The same by coordinates, of which N are those from the third on."""
        return self.by_site(v["log_rate"], v["logit"], v["N"]).gather(-1, index - 2)

    def log_prior(self, log_rate: Tensor, logit: Tensor) -> Tensor:
        """log p(λ, p), with the factors of the likelihood that know nothing of N."""
        prior = -0.5 * (log_rate - 3).square() - 0.5 * logit.square()
        return prior - self.num_sites * log_rate.exp() + self.seen.sum() * logit

    def kernels(self) -> dict[str, Kernel]:
        sites = range(2, 2 + self.num_sites)
        return {
            DHMC: DiscontinuousHMC(self.density, ["N"], step_size=0.1, num_steps=15),
            FACTORED: DiscontinuousHMC(
                FactoredDensity(self.density, self.local, ["N"]), ["N"], step_size=0.1, num_steps=15
            ),
            METROPOLIS: Gibbs(
                [
                    ([0, 1], RandomWalkMetropolis(self.density, 0.2)),
                    *((i, RandomWalkMetropolis(self.density, 0.4)) for i in sites),
                ]
            ),
        }

    def initial(self, num_chains: int, generator: torch.Generator) -> Tensor:
        """Between five and twenty animals never seen at each site."""
        hidden = torch.randint(5, 21, (num_chains, self.num_sites), generator=generator)
        count = self.seen.max(-1).values.long() + hidden
        log_rate = count.to(F64).mean(-1).log()
        share = self.seen.sum() / (self.num_visits * count.sum(-1))
        return self.density.layout.flatten({"log_rate": log_rate, "logit": share.logit(), "N": count})

    def quantities(self, position: Tensor) -> dict[str, Tensor]:
        v = self.density.layout.unflatten(position)
        count = v["N"].to(position.dtype)
        return {"log λ": v["log_rate"], "logit p": v["logit"], "N₁": count[..., 0], "Σ N": count.sum(-1)}

    def exact(self) -> dict[str, float]:
        log_rate, logit, weight, means, _ = self._quadrature
        return {
            "log λ": float(weight @ log_rate),
            "logit p": float(weight @ logit),
            "N₁": float(weight @ means[:, 0]),
            "Σ N": float(weight @ means.sum(-1)),
        }

    def distribution(self) -> tuple[Tensor, Tensor]:
        *_, probability = self._quadrature
        return torch.arange(len(probability), dtype=F64), probability

    @cached_property
    def _quadrature(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """The posterior of (log λ, logit p) on a grid, with N_i summed out up to 400.

        log λ, logit p, weights: [g]; E[N_i | λ, p, y]: [g, sites]; p(N_1 | y): [k]
        """
        axes = torch.linspace(0.5, 6.5, 101, dtype=F64), torch.linspace(-5.0, 5.0, 81, dtype=F64)
        log_rate, logit = (axis.flatten() for axis in torch.meshgrid(*axes, indexing="ij"))
        counts = torch.arange(401, dtype=F64)
        ways = self.log_ways(counts[:, None].expand(-1, self.num_sites))
        tilt = (log_rate - self.num_visits * softplus(logit))[:, None] * counts
        log_weight, means = self.log_prior(log_rate, logit), []
        for site in ways.unbind(-1):
            log_weight = log_weight + (site + tilt).logsumexp(-1)
            means.append((site + tilt).softmax(-1) @ counts)
        weight = log_weight.softmax(0)
        return log_rate, logit, weight, torch.stack(means, -1), weight @ (ways[:, 0] + tilt).softmax(-1)
