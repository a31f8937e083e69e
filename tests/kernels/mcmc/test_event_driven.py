"""Trajectories between walls: energy, volume and direction of time, and where they are exact."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from hmcvi import Density
from hmcvi.kernels import EventDrivenHMC
from tests.support.problems import F64
from tests.support.statistics import assert_mean, assert_uniform
from tests.support.targets import normal_cdf

NORMALS = torch.tensor([[1.0, 0.0], [0.6, 0.8], [-1.0, 2.0]], dtype=F64)
OFFSETS = torch.tensor([0.3, -0.4, 0.5], dtype=F64)
HEIGHTS = torch.tensor([0.8, -0.5, 1.1], dtype=F64)
LOC, SCALE = torch.tensor([0.2, -0.1], dtype=F64), torch.tensor([1.5, 0.7], dtype=F64)


def height(z: Tensor) -> Tensor:
    """Constant in each of the cells that three lines make of the plane."""
    beyond = (z @ NORMALS.T > OFFSETS).to(z)
    return beyond @ HEIGHTS + 0.7 * beyond[..., 0] * beyond[..., 1]


def cells(z: Tensor) -> Tensor:
    return height(z) - 0.5 * ((z - LOC) / SCALE).square().sum(-1)


def kernel_for(time: float = 2.5, **settings: object) -> EventDrivenHMC:
    return EventDrivenHMC(Density(cells), NORMALS, OFFSETS, time, LOC, SCALE, **settings)


def test_nothing_is_rejected_where_the_walls_are_those_of_the_density() -> None:
    """Energy is conserved to rounding, and means are those of weighted draws of the normal factor."""
    torch.manual_seed(0)
    kernel = kernel_for()
    state, crossed = kernel.init(LOC + SCALE * torch.randn(5_000, 2, dtype=F64)), []
    generator = torch.Generator().manual_seed(0)
    for _ in range(8):
        state, info = kernel.step(state, generator)
        assert info["energy_change"].abs().max() < 1e-10 and info["accepted"].all()
        crossed.append(info["num_events"].double().mean())
    assert torch.stack(crossed).mean() > 1
    draws = LOC + SCALE * torch.randn(500_000, 2, dtype=F64)
    weight = height(draws).exp()
    for name in (lambda z: z[..., 0], lambda z: z[..., 1], lambda z: height(z).exp()):
        assert_mean(name(state.position), float((weight * name(draws)).sum() / weight.sum()))


def test_a_box_of_steps_in_straight_lines() -> None:
    """Constant on [0, 1), [1, 3) and [3, 4], zero elsewhere: the embedding of an integer."""
    torch.manual_seed(0)
    edges = torch.tensor([0.0, 1.0, 3.0, 4.0], dtype=F64)
    share = torch.tensor([0.2, 0.5, 0.3], dtype=F64)
    log_height = torch.cat([(share / edges.diff()).log(), torch.tensor([-torch.inf], dtype=F64)])

    def log_prob(z: Tensor) -> Tensor:
        cell = torch.bucketize(z[..., 0].contiguous(), edges) - 1
        return log_height[cell]

    kernel = EventDrivenHMC(Density(log_prob), torch.ones(4, 1, dtype=F64), edges, time=6.0)
    cell = torch.multinomial(share, 20_000, replacement=True)
    start = edges[cell] + torch.rand(20_000, dtype=F64) * edges.diff()[cell]
    state, generator = kernel.init(start[:, None]), torch.Generator().manual_seed(0)
    for _ in range(3):
        state, info = kernel.step(state, generator)
        assert info["accepted"].all() and info["energy_change"].abs().max() < 1e-10
    z = state.position[:, 0]
    cell = torch.bucketize(z, edges) - 1
    assert_uniform(
        ((share.cumsum(0) - share)[cell] + (z - edges[cell]) / edges.diff()[cell] * share[cell])[:, None]
    )
    assert (z - start).abs().gt(0.5).double().mean() > 0.5


def tilted(z: Tensor) -> Tensor:
    """A density that is not constant between walls, nor jumps by as much everywhere along one."""
    return cells(z) + 0.3 * z[..., 0] * (z @ NORMALS.T > OFFSETS).to(z).sum(-1) - 0.2 * z.sin().sum(-1)


@pytest.mark.parametrize("loc", [LOC, None], ids=["curved", "straight"])
@pytest.mark.parametrize("log_prob", [cells, tilted])
def test_time_runs_backwards(log_prob: object, loc: Tensor | None) -> None:
    torch.manual_seed(0)
    walls = EventDrivenHMC(Density(log_prob), NORMALS, OFFSETS, 2.0, loc, SCALE).walls(LOC)
    x, v = torch.randn(2, 500, 2, dtype=F64)
    time = torch.full((500,), 2.0, dtype=F64)
    there = walls.fly(x, v, time, 100)
    back = walls.fly(there.position, -there.velocity, time, 100)
    assert there.num_events.double().mean() > 0.5
    assert torch.equal(there.num_events, back.num_events)
    torch.testing.assert_close(back.position, x, atol=1e-7, rtol=0)
    torch.testing.assert_close(back.velocity, -v, atol=1e-7, rtol=0)


@pytest.mark.parametrize("loc", [LOC, None], ids=["curved", "straight"])
def test_volume_is_kept_for_any_density(loc: Tensor | None) -> None:
    """|det ∂(x', v')/∂(x, v)| = 1, though jumps along a wall are not all the same."""
    torch.manual_seed(0)
    walls = EventDrivenHMC(Density(tilted), NORMALS, OFFSETS, 2.0, loc, SCALE).walls(LOC)
    counts: list[int] = []

    def trajectory(point: Tensor) -> Tensor:
        end = walls.fly(point[None, :2], point[None, 2:], torch.full((1,), 2.0, dtype=F64), 100)
        counts.append(int(end.num_events))
        return torch.cat([end.position[0], end.velocity[0]])

    for point in torch.randn(12, 4, dtype=F64):
        _, log_det = torch.linalg.slogdet(torch.autograd.functional.jacobian(trajectory, point))
        torch.testing.assert_close(log_det, torch.zeros_like(log_det), atol=1e-6, rtol=0)
    assert sum(counts) > 6


def test_a_quarter_of_a_period_is_an_exact_draw_without_walls() -> None:
    """cos = 0: x is the velocity of the start, and of a jump of nothing at a wall nothing is seen."""
    torch.manual_seed(0)
    normal = Density(lambda z: -0.5 * ((z - LOC) / SCALE).square().sum(-1))
    kernel = EventDrivenHMC(normal, NORMALS, OFFSETS, torch.pi / 2, LOC, SCALE, jitter=0.0)
    state, info = kernel.step(kernel.init(torch.full((20_000, 2), 3.0, dtype=F64)))
    assert info["num_events"].sum() > 1_000
    assert_uniform(normal_cdf((state.position - LOC) / SCALE))


def test_correlated_coordinates_are_others_of_independent_ones() -> None:
    """The trajectory of z = L x with walls n is that of x with walls Lᵀn."""
    torch.manual_seed(0)
    root = torch.tensor([[1.3, 0.0], [-0.8, 0.6]], dtype=F64)
    correlated = Density(lambda z: cells(torch.linalg.solve(root, z[..., None])[..., 0]))
    mapped = torch.linalg.solve(root.T, NORMALS.T).T
    one = kernel_for()
    other = one.replace(density=correlated, normals=mapped, loc=root @ LOC, scale=root * SCALE)
    start = torch.randn(50, 2, dtype=F64)
    first, info = one.step(one.init(start), torch.Generator().manual_seed(0))
    second, report = other.step(other.init(start @ root.T), torch.Generator().manual_seed(0))
    torch.testing.assert_close(second.position, first.position @ root.T)
    assert torch.equal(report["num_events"], info["num_events"]) and info["num_events"].any()


def test_too_many_walls_are_a_rejection() -> None:
    kernel = kernel_for(time=40.0, max_events=3)
    start = kernel.init(torch.zeros(50, 2, dtype=F64))
    state, info = kernel.step(start, torch.Generator().manual_seed(0))
    assert (info["num_events"] == 3).any()
    assert torch.equal(state.position[~info["accepted"]], start.position[~info["accepted"]])
    assert torch.equal(info["accepted"], info["num_events"] < 3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"offsets": OFFSETS[:2]}, "walls are normals"),
        ({"normals": 0 * NORMALS}, "a wall has no normal"),
        ({"time": 0.0}, "time must be positive"),
        ({"scale": -1.0}, "scale must be positive"),
        ({"jitter": 1.0}, "jitter must lie in"),
        ({"max_events": 0}, "max_events must be at least 1"),
    ],
)
def test_misuse_says_what_to_do(change: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        kernel_for().replace(**change)


def test_positions_have_the_dimension_of_the_walls() -> None:
    with pytest.raises(ValueError, match="walls are in 2 dimensions, positions in 3"):
        kernel_for().init(torch.zeros(3))
