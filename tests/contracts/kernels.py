"""The registry of kernels: one line per public class and mode, and every law runs over it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.distributions import MultivariateNormal

from hmcvi import Density, Phase
from hmcvi.adaptation.parents import allowed
from hmcvi.dynamics.noncentring import Noncentring
from hmcvi.flows import three_stage, two_stage, with_force
from hmcvi.internal import random
from hmcvi.internal.layout import Layout
from hmcvi.kernels import (
    HMC,
    CholeskyMetric,
    Compose,
    ConditionalDraw,
    DiagonalMetric,
    DiscontinuousHMC,
    EllipticalSlice,
    EventDrivenHMC,
    FactoredDensity,
    GaussNewtonMetric,
    Gibbs,
    IndependentMetropolis,
    IntervalMetropolis,
    Kernel,
    LinearSlice,
    LowRankMetric,
    Metric,
    MetropolisIndependence,
    RandomWalkMetropolis,
    ReflectiveSlice,
    RiemannianHMC,
    SimulatorMetropolis,
)
from tests.contracts.graph import GraphHMC
from tests.support.problems import F64
from tests.support.targets import CUBE, PLANE, Target


class KernelExample(NamedTuple):
    """A kernel and what it claims.

    make(density, dim, dtype): the kernel for any density on R^dim, or on [0, 1]^dim if on_cube.
    reverse: the kernel that runs stationary chains backwards in time; a reversible one is its own.  Tests
        turn persistent momenta round.
    rejects: whether some proposals are rejected; a slice has none.
    traced: whether log_prob is written out once and then no longer called.
    """

    name: str
    make: Callable[[Density, int, torch.dtype], Kernel]
    reverse: Callable[[Kernel], Kernel] = lambda kernel: kernel
    rejects: bool = True
    on_cube: bool = False
    traced: bool = False

    def __str__(self) -> str:
        return self.name


def hmc(step: float = 0.9, **settings: object) -> Callable[[Density, int, torch.dtype], HMC]:
    """Steps so long that some of the proposals are rejected."""

    def make(density: Density, dim: int, dtype: torch.dtype) -> HMC:
        return HMC(density, **{"step_size": step * dim**-0.25, "num_steps": 3, **settings})

    return make


def with_metric(name: str, **settings: object) -> Callable[[Density, int, torch.dtype], HMC]:
    def make(density: Density, dim: int, dtype: torch.dtype) -> HMC:
        return hmc(metric=metric_of(name, dim, dtype), **settings)(density, dim, dtype)

    return make


def in_coordinates(**settings: object) -> Callable[[Density, int, torch.dtype], HMC]:
    """Scales and locations that depend on the last coordinate, and on the first."""

    def make(density: Density, dim: int, dtype: torch.dtype) -> HMC:
        return hmc(coordinates=noncentring(dim, dtype), **settings)(density, dim, dtype)

    return make


def noncentring(dim: int, dtype: torch.dtype) -> Noncentring:
    parents = torch.tensor([dim - 1, 0][: min(dim, 2)])
    own = allowed(parents.tolist(), dim).to(dtype)
    slopes = torch.linspace(0.2, -0.15, own.numel(), dtype=dtype).view_as(own) * own
    rows = torch.linspace(-0.2, 0.3, dim, dtype=dtype)
    bound = torch.linspace(-0.5, 1.0, dim, dtype=dtype)
    bound[1:2] = torch.inf
    return Noncentring(parents, rows, slopes.flip(0) * own, rows.flip(0), slopes, bound, rows.roll(1))


def metric_of(name: str, dim: int, dtype: torch.dtype) -> Metric:
    log_scale = torch.linspace(0.3, -0.1, dim, dtype=dtype)
    factor = torch.linspace(0.5, -0.4, dim, dtype=dtype)[:, None]
    if name == "diagonal":
        return DiagonalMetric(log_scale)
    if name == "low-rank":
        return LowRankMetric(log_scale, factor)
    root = torch.diag(log_scale.exp()) - 0.3 * torch.ones(dim, dim, dtype=dtype).tril(-1) / dim**0.5
    return CholeskyMetric(root)


def another(density: Density) -> Density:
    """A density near this one, to move by."""
    return Density(lambda z: density._log_prob(0.9 * z + 0.1) + 0.5 * z.sin().sum(-1), base=density.base)


def forced_walk_and_slice(density: Density, dim: int, dtype: torch.dtype) -> Compose:
    """Kernels of one density share its force."""
    return walk_and_slice(with_force(density, another), dim, dtype)


def wide_normal(dim: int, dtype: torch.dtype) -> MultivariateNormal:
    """About as wide as the targets, and not in their middle."""
    root = (1 + 0.5 / dim) * torch.eye(dim, dtype=dtype) + 0.3 * torch.ones(dim, dim, dtype=dtype).tril(
        -1
    ) / dim
    return MultivariateNormal(torch.full((dim,), 0.1, dtype=dtype), scale_tril=root)


def walk_and_slice(density: Density, dim: int, dtype: torch.dtype) -> Compose:
    """A persistent momentum handed past kernels that know nothing of it."""
    return Compose(
        HMC(density, 0.8 * dim**-0.25, 2, persistence=0.8),
        RandomWalkMetropolis(density, 1.5 / dim**0.5),
        LinearSlice(density, 2.0),
    )


def halves(density: Density, dim: int, dtype: torch.dtype) -> Gibbs:
    """HMC on the first coordinates, a slice on the others."""
    middle = max(1, dim // 2)
    blocks = [(slice(0, middle), HMC(density, 0.8 * dim**-0.25, 2))]
    if dim > 1:
        blocks.append((list(range(middle, dim)), LinearSlice(density, 2.0, max_step_out=1)))
    return Gibbs(blocks)


def backwards(kernel: Kernel) -> Kernel:
    """The parts of a composition, each reversible, in the opposite order."""
    if isinstance(kernel, Gibbs):
        return Gibbs([*zip(kernel.blocks, kernel.kernels, strict=True)][::-1])
    assert isinstance(kernel, Compose)
    return Compose(*kernel.kernels[::-1])


def sliced_draw(density: Density, dim: int, dtype: torch.dtype) -> ConditionalDraw:
    """A slice stands in for the exact draw, which no one density in particular has."""
    kernel = LinearSlice(density, 2.0)
    return ConditionalDraw(density, lambda z, generator: kernel.step(Phase(z), generator)[0].position)


def every_other_coordinate(metric: str | None = None) -> Callable[[Density, int, torch.dtype], Kernel]:
    """The last coordinate and every second before it are treated as if the density jumped in them."""

    def make(density: Density, dim: int, dtype: torch.dtype) -> Kernel:
        chosen = None if metric is None else metric_of(metric, dim, dtype)
        mask = torch.arange(dim).flip(0) % 2 == 0
        return DiscontinuousHMC(density, mask, 0.9 * dim**-0.25, 3, chosen)

    return make


def in_factors(together: bool) -> Callable[[Density, int, torch.dtype], Kernel]:
    """Factors that are not those of the density: barriers are wrong, acceptance puts it right."""

    def local(z: Tensor, index: Tensor) -> Tensor:
        return -0.5 * (0.9 * z.gather(-1, index) + 0.1).square()

    def make(density: Density, dim: int, dtype: torch.dtype) -> Kernel:
        independent = [range(dim - 1, -1, -2)] if together else []
        return every_other_coordinate()(FactoredDensity(density, local, independent), dim, dtype)

    return make


def between_walls(curved: bool) -> Callable[[Density, int, torch.dtype], Kernel]:
    """Walls at which these densities do not jump, and dynamics between them that are not theirs."""

    def make(density: Density, dim: int, dtype: torch.dtype) -> Kernel:
        normals = torch.eye(dim, dtype=dtype)[[0, -1]] + 0.1
        offsets = torch.tensor([0.2, -0.3], dtype=dtype)
        if not curved:
            return EventDrivenHMC(density, normals, offsets, 1.5 * dim**-0.5)
        return EventDrivenHMC(density, normals, offsets, 2.0 * dim**-0.5, 0.1, torch.linspace(1.1, 0.9, dim))

    return make


def riemannian(density: Density, dim: int, dtype: torch.dtype) -> RiemannianHMC:
    """A metric that has to do with none of the targets."""

    def bent(z: Tensor) -> Tensor:
        return z[..., :1].sin() + 0.2 * z.square().sum(-1, keepdim=True)

    metric = GaussNewtonMetric(bent, 1.3)
    return RiemannianHMC(density, metric, 0.9 * dim**-0.25, 1, max_iterations=25, tolerance=1e-3)


class WideInputs:
    """Independent variables N(0, scale²)."""

    def __init__(self, dim: int, scale: float = 1.5) -> None:
        self.scale, self.layout = scale, Layout({"u": (dim,)})
        self.density = Density(lambda u: -0.5 * (u / scale).square().sum(-1))

    def quantile(self, uniform: Tensor) -> Tensor:
        return self.scale * torch.special.ndtri(uniform)

    def draw(self, like: Tensor, generator: torch.Generator | None = None) -> Tensor:
        return self.scale * random.standard_normal(like, generator)

    def log_prob(self, position: Tensor) -> Tensor:
        return self.density.log_prob(position)


def second_half_afresh(density: Density, dim: int, dtype: torch.dtype) -> SimulatorMetropolis:
    return SimulatorMetropolis(density, WideInputs(dim), slice(dim - dim // 2, None), 1.5 / dim**0.5)


class Coordinates(WideInputs):
    """A generator whose outputs are the second half of its inputs."""

    structure, is_conditional, block = "elementwise", False, 1

    def __init__(self, dim: int) -> None:
        super().__init__(dim)
        self.dim, self.num_observed = dim, dim // 2

    def observed(self, inputs: Tensor) -> Tensor:
        return inputs[..., self.dim - self.num_observed :]


def within_intervals(density: Density, dim: int, dtype: torch.dtype) -> IntervalMetropolis:
    """Intervals wide enough to hold nearly all chains from where they start; others could not move."""
    observed = torch.full((dim // 2,), 0.2, dtype=dtype)
    return IntervalMetropolis(density, Coordinates(dim), observed, 6.0, 1.5 / dim**0.5)


KERNELS: list[KernelExample] = [
    KernelExample("HMC", hmc()),
    KernelExample(
        "HMC, a step per dimension",
        lambda density, dim, dtype: HMC(density, torch.linspace(0.7, 0.9, dim, dtype=dtype) * dim**-0.25, 3),
    ),
    KernelExample("HMC with a diagonal metric", with_metric("diagonal")),
    KernelExample("HMC with a low-rank metric", with_metric("low-rank")),
    KernelExample("HMC with a full metric", with_metric("full")),
    KernelExample("HMC with persistence", with_metric("full", persistence=0.9, num_steps=1)),
    KernelExample("HMC turning back", with_metric("diagonal", persistence=-0.5)),
    KernelExample("HMC of random length", hmc(jitter=0.7)),
    KernelExample("HMC, compiled", with_metric("full", compile=True), traced=True),
    KernelExample(
        "HMC of random length, compiled", hmc(jitter=0.7, persistence=0.6, compile=True), traced=True
    ),
    KernelExample("HMC in two stages", hmc(1.6, integrator=two_stage, num_steps=2)),
    KernelExample("HMC in three stages", hmc(2.2, integrator=three_stage, num_steps=1)),
    KernelExample("HMC in other coordinates", in_coordinates(jitter=0.7)),
    KernelExample("HMC in other coordinates, persistent", in_coordinates(metric=None, persistence=0.6)),
    KernelExample("HMC by another force", hmc(force=another)),
    KernelExample("HMC by another force, persistent", with_metric("full", force=another, persistence=0.8)),
    KernelExample(
        "HMC by another force, compiled",
        hmc(force=another, jitter=0.7, persistence=0.6, compile=True),
        traced=True,
    ),
    KernelExample(
        "RandomWalkMetropolis",
        lambda density, dim, dtype: RandomWalkMetropolis(
            density, 2.0 / dim**0.5, metric_of("full", dim, dtype)
        ),
    ),
    KernelExample(
        "IndependentMetropolis",
        lambda density, dim, dtype: IndependentMetropolis(density, wide_normal(dim, dtype)),
    ),
    KernelExample(
        "MetropolisIndependence",
        lambda density, dim, dtype: MetropolisIndependence(density, WideInputs(dim, 1 + 0.5 / dim)),
    ),
    KernelExample("LinearSlice", lambda density, dim, dtype: LinearSlice(density, width=3.0), rejects=False),
    KernelExample(
        "LinearSlice with steps out",
        lambda density, dim, dtype: LinearSlice(density, width=0.5, max_step_out=3),
        rejects=False,
    ),
    KernelExample(
        "LinearSlice along an axis",
        lambda density, dim, dtype: LinearSlice(density, torch.full((dim,), 1.0), 2, "axis"),
        rejects=False,
    ),
    KernelExample(
        "LinearSlice with doubling",
        lambda density, dim, dtype: LinearSlice(density, 0.3, max_step_out=3, expansion="doubling"),
        rejects=False,
    ),
    KernelExample(
        "ReflectiveSlice",
        lambda density, dim, dtype: ReflectiveSlice(density, width=1.5),
        rejects=False,
        on_cube=True,
    ),
    KernelExample(
        "ReflectiveSlice with steps out along an axis",
        lambda density, dim, dtype: ReflectiveSlice(density, 0.3, max_step_out=2, direction="axis"),
        rejects=False,
        on_cube=True,
    ),
    KernelExample(
        "EllipticalSlice",
        lambda density, dim, dtype: EllipticalSlice(
            density, wide_normal(dim, dtype).loc, wide_normal(dim, dtype).covariance_matrix
        ),
        rejects=False,
    ),
    KernelExample(
        "EllipticalSlice of variances",
        lambda density, dim, dtype: EllipticalSlice(density, 0.2, torch.linspace(0.6, 1.5, dim, dtype=dtype)),
        rejects=False,
    ),
    KernelExample("DiscontinuousHMC", every_other_coordinate()),
    KernelExample("DiscontinuousHMC with a metric", every_other_coordinate("diagonal")),
    KernelExample(
        "DiscontinuousHMC by another force",
        lambda density, dim, dtype: every_other_coordinate()(with_force(density, another), dim, dtype),
    ),
    KernelExample("DiscontinuousHMC in factors", in_factors(together=False)),
    KernelExample("DiscontinuousHMC in independent factors", in_factors(together=True)),
    KernelExample("RiemannianHMC", riemannian),
    KernelExample("EventDrivenHMC", between_walls(curved=True)),
    KernelExample("EventDrivenHMC in straight lines", between_walls(curved=False)),
    KernelExample(
        "ConstrainedHMC on a graph",
        lambda density, dim, dtype: GraphHMC(density, dim, 0.9 * dim**-0.25, 2),
    ),
    KernelExample("SimulatorMetropolis", second_half_afresh),
    KernelExample("IntervalMetropolis", within_intervals),
    KernelExample("Compose", walk_and_slice, reverse=backwards),
    KernelExample("Compose by another force", forced_walk_and_slice, reverse=backwards),
    KernelExample("Gibbs", halves, reverse=backwards),
    KernelExample(
        "Gibbs by another force",
        lambda density, dim, dtype: halves(with_force(density, another), dim, dtype),
        reverse=backwards,
    ),
    KernelExample("ConditionalDraw", sliced_draw, rejects=False),
]


def home(example: KernelExample) -> Target:
    return CUBE["cube in 2 dimensions"] if example.on_cube else PLANE["modes"]


def make(example: KernelExample, density: Density, dim: int = 2, dtype: torch.dtype = F64) -> Kernel:
    return example.make(density, dim, dtype)


def momentum_metric(kernel: Kernel) -> Metric | None:
    """The metric of the momentum that outlives a step, if one does."""
    if isinstance(kernel, Compose):
        return next((metric for part in kernel.kernels if (metric := momentum_metric(part))), None)
    return kernel.metric if getattr(kernel, "persistence", 0) else None


def start_at(kernel: Kernel, position: Tensor) -> Phase:
    """A stationary state: with a momentum if one is carried on."""
    state, metric = kernel.init(position), momentum_metric(kernel)
    return state if metric is None else state._replace(momentum=metric.sample(position))


def run(kernel: Kernel, state: Phase, num_steps: int, seed: int = 1000) -> tuple[Phase, list[dict]]:
    generator, reports = torch.Generator().manual_seed(seed), []
    for _ in range(num_steps):
        state, info = kernel.step(state, generator)
        reports.append(info)
    return state, reports
