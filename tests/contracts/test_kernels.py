"""The laws of kernels: they keep their density, whatever it is."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor

from hmcvi import Density, Phase
from hmcvi.flows import ForcedDensity
from hmcvi.kernels import Anneal, Compose, FactoredDensity, Kernel
from hmcvi.kernels.mcmc.retarget import retarget, tempered
from tests.contracts.kernels import KERNELS, KernelExample, home, make, momentum_metric, run, start_at
from tests.support.problems import F64
from tests.support.statistics import assert_independent, assert_uniform
from tests.support.targets import CUBE, PLANE, Groups, Target, normal_cdf

over_kernels = pytest.mark.parametrize("example", KERNELS, ids=str)
SQUARE = CUBE["cube in 2 dimensions"]  # truncated: hard on those who do not expect the faces


def targets(example: KernelExample) -> dict[str, Target]:
    if example.on_cube:
        return CUBE
    return PLANE if make(example, SQUARE.density).uses_gradient else PLANE | {"square": SQUARE}


on_every_target = pytest.mark.parametrize(
    ("example", "target"),
    [
        pytest.param(
            example, target, id=f"{example} on {name}", marks=[pytest.mark.slow] if target.dim > 2 else []
        )
        for example in KERNELS
        for name, target in targets(example).items()
    ],
)


def assert_drawn_from(target: Target, kernel: Kernel, state: Phase) -> None:
    """z is an exact draw, a persistent momentum has its own distribution, and the two are independent."""
    uniforms, metric = target.uniforms(state.position), momentum_metric(kernel)
    if metric is not None:
        uniforms = torch.cat([uniforms, normal_cdf(metric.whiten(state.momentum))], -1)
    assert_uniform(uniforms)
    if target.independent:
        assert_independent(uniforms)


@on_every_target
def test_exact_draws_stay_exact_draws(example: KernelExample, target: Target) -> None:
    """Started at stationarity, on targets without symmetry, with rejections that matter."""
    torch.manual_seed(0)
    kernel = make(example, target.density, target.dim)
    start = start_at(kernel, target.draw(20_000))
    assert_drawn_from(target, kernel, start)
    end, reports = run(kernel, start, 4)
    assert_drawn_from(target, kernel, end)
    moved = (end.position != start.position).any(-1).double().mean()
    assert moved > 0.1, f"only {moved} of the chains moved"
    if not example.rejects:
        assert all(info["accepted"].all() for info in reports) and moved == 1


@over_kernels
def test_rejections_are_tested(example: KernelExample) -> None:
    target = home(example)
    kernel = make(example, target.density)
    _, reports = run(kernel, start_at(kernel, target.draw(1_000)), 4)
    names = [name for name in reports[0] if name.startswith("accepted")]
    rejected = [1 - torch.stack([info[name] for info in reports]).double().mean() for name in names]
    assert (max(rejected) > 0.02) == example.rejects, rejected


@pytest.mark.slow
@over_kernels
def test_forgets_a_wrong_start(example: KernelExample) -> None:
    torch.manual_seed(0)
    target = home(example)
    kernel = make(example, target.density)
    end, _ = run(kernel, kernel.init(target.draw_base(5_000)), 60)
    assert_drawn_from(target, kernel, end)


@over_kernels
def test_rank_of_the_truth_among_posterior_draws_is_uniform(example: KernelExample) -> None:
    """Simulation-based calibration of a hierarchical model, one posterior per chain.

    The truth is a posterior draw: placed at random in a stretch of a stationary chain, run from it forwards
    and backwards in time, its rank is exactly uniform however slowly the chain mixes; rejections make ties,
    broken at random.  Ranked are all variables and log γ, which sees what the data do to them together.
    [Gandy & Scott 2020; Modrák et al. 2023]
    """
    torch.manual_seed(0)
    count, num_draws = 6_000, 5
    model = Groups(count, example.on_cube)
    kernel = make(example, model.density, model.dim)
    forwards, backwards = start_at(kernel, model.truth), example.reverse(kernel)
    turned = forwards if forwards.momentum is None else forwards._replace(momentum=-forwards.momentum)
    before = torch.randint(0, num_draws + 1, (count,))
    below = ties = torch.zeros(count, model.dim + 1, dtype=F64)
    for seed, state, length, kernels in (
        (1000, forwards, num_draws - before, [kernel] * num_draws),
        (1001, turned, before, [unrefreshed(backwards), *[backwards] * (num_draws - 1)]),
    ):
        generator = torch.Generator().manual_seed(seed)
        for index, step in enumerate(kernels):
            state, _ = step.step(state, generator)
            counted = (index < length)[:, None]
            below = below + ((quantities(state) < quantities(forwards)) & counted)
            ties = ties + ((quantities(state) == quantities(forwards)) & counted)
    assert_uniform((below + torch.rand_like(ties) * (ties + 1)) / (num_draws + 1))


def quantities(state: Phase) -> Tensor:
    return torch.cat([state.position, state.log_prob[..., None]], -1)


def unrefreshed(kernel: Kernel) -> Kernel:
    """With the momentum as it is: a step refreshes and then moves, backwards it moves and then refreshes."""
    if isinstance(kernel, Compose):
        return kernel.with_kernels([unrefreshed(part) for part in kernel.kernels])
    if momentum_metric(kernel):
        kernel = copy.copy(kernel)
        object.__setattr__(kernel, "persistence", 1.0)  # the limit, which no user may set
    return kernel


@over_kernels
def test_each_chain_has_its_own_density(example: KernelExample) -> None:
    """Chains of one batch, each with its own slope, stay with it; with two batch dimensions."""
    torch.manual_seed(0)
    slope = torch.tensor([[-3.0, 0.5], [2.0, 1.0], [0.2, 4.0]], dtype=F64)
    u = torch.rand(10_000, 3, 2, dtype=F64)
    if example.on_cube:  # truncated exponentials
        density = Density(lambda z, rate: -(rate * z).sum(-1), slope)
        start = -torch.log1p(u * torch.expm1(-slope)) / slope
    else:  # normal distributions around the slope
        density = Density(lambda z, centre: -0.5 * (z - centre).square().sum(-1), slope)
        start = slope + torch.special.ndtri(u)
    end = run(make(example, density), make(example, density).init(start), 3)[0].position
    assert_uniform(
        torch.expm1(-slope * end) / torch.expm1(-slope) if example.on_cube else normal_cdf(end - slope)
    )


@pytest.mark.parametrize(
    "example", [example for example in KERNELS if example.name != "ConditionalDraw"], ids=str
)  # whose draw belongs to one density
def test_a_tempered_step_is_a_step_on_the_bridge(example: KernelExample) -> None:
    """With a temperature per chain; the state it leads to knows log γ of the target itself."""
    target = home(example)
    density = target.density.with_base(Density(lambda z: -0.2 * (z - 0.3).square().sum(-1)))
    beta = torch.linspace(0.1, 1.0, 50, dtype=F64)
    start, kernel, bridge = target.draw(50), make(example, density), make(example, density.bridge(beta))
    if isinstance(kernel.density, ForcedDensity | FactoredDensity):
        # the force is that of the path to the other density; a path has no factors
        bridge = retarget(bridge, kernel.density.bridge(beta))
    expected, report = bridge.step(Phase(start), torch.Generator().manual_seed(0))
    found, info = tempered(kernel, beta).step(kernel.init(start), torch.Generator().manual_seed(0))
    torch.testing.assert_close(found.position, expected.position, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(found.log_prob, density.log_prob(found.position))
    assert info.keys() == report.keys()


@over_kernels
def test_annealed_at_one_keeps_exact_draws(example: KernelExample) -> None:
    torch.manual_seed(0)
    target = home(example)
    start = target.draw(10_000)
    transition = Anneal(lambda density: make(example, density), beta=1.0)(Phase(start), target.density)
    assert_uniform(target.uniforms(transition.state.position))
    change = target.density.log_prob(start) - target.density.log_prob(transition.state.position)
    torch.testing.assert_close(transition.log_ratio, change)
