"""Slices: brackets, their ends, and what happens when they close."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor
from torch.distributions import MultivariateNormal, Normal

from hmcvi import Density, Phase
from hmcvi.kernels import EllipticalSlice, LinearSlice, ReflectiveSlice
from hmcvi.kernels.mcmc.bracket import Doubling, Point, first_bracket
from hmcvi.kernels.mcmc.slice import MAX_SHRINKS
from tests.support.problems import F64
from tests.support.statistics import assert_mean, assert_uniform

FLAT = Density(lambda z: 0 * z.sum(-1))
NORMAL = Density(lambda z: -0.5 * z.square().sum(-1))


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(1)


@pytest.mark.parametrize("max_step_out", [0, 1, 4])
def test_a_bracket_lies_anywhere_around_the_chain(max_step_out: int) -> None:
    """Where γ is flat the bracket has M + 1 widths, its place and the point on it are uniform: U − V."""
    width = 0.7
    kernel = LinearSlice(FLAT, width, max_step_out)
    state, info = kernel.step(kernel.init(torch.zeros(20_000, 1, dtype=F64)), generator())
    x = state.position[:, 0] / (width * (max_step_out + 1))
    assert_uniform(torch.where(x < 0, (1 + x).square() / 2, 1 - (1 - x).square() / 2))
    assert (info["num_step_outs"] == max_step_out).all() and (info["num_shrinks"] == 0).all()
    assert (info["num_evaluations"] == max_step_out + 1).all()


def test_the_budget_is_split_between_the_ends() -> None:
    """Each share of the budget, from all below to all above, is as likely as any other."""
    offsets: list[Tensor] = []

    def log_prob(z: Tensor) -> Tensor:
        offsets.append(z[..., 0])
        return torch.zeros_like(z[..., 0])

    kernel = LinearSlice(Density(log_prob), 1.0, max_step_out=3, direction="axis")
    start = torch.zeros(20_000, 1, dtype=F64)
    kernel.step(Phase(start, log_prob=start[:, 0]), generator())
    steps_below = torch.stack([edge < 0 for edge in offsets[:3]]).sum(0)  # the three ends, all inside
    for count in range(4):
        assert_mean((steps_below == count).double(), 0.25)


def test_ends_outside_the_slice_stay() -> None:
    """On [−1, 1] with steps of 10 neither end moves; with steps of ½ some do, and never beyond the budget."""
    box = Density(lambda z: (0 * z[..., 0]).where(z[..., 0].abs() < 1, -1000.0))
    start = Phase(torch.zeros(1000, 1, dtype=F64), log_prob=torch.zeros(1000, dtype=F64))
    _, wide = LinearSlice(box, 50.0, 5).step(start, generator())
    assert wide["num_step_outs"].double().mean() < 0.1
    _, narrow = LinearSlice(box, 0.5, 20).step(start, generator())
    assert (narrow["num_step_outs"] <= 4).all() and (narrow["num_step_outs"] >= 1).any()


def test_axes_are_equally_likely() -> None:
    kernel = LinearSlice(NORMAL, 1.0, direction="axis")
    state, _ = kernel.step(kernel.init(torch.zeros(20_000, 3, dtype=F64)), generator())
    moved = state.position != 0
    assert (moved.sum(-1) == 1).all()
    assert_mean(moved.double(), 1 / 3)


def test_a_random_direction_has_no_preference() -> None:
    kernel = LinearSlice(FLAT, 1.0)
    state, _ = kernel.step(kernel.init(torch.zeros(20_000, 3, dtype=F64)), generator())
    unit = state.position / state.position.norm(dim=-1, keepdim=True)
    assert_mean(unit, 0.0)
    assert_mean(unit[..., :, None] * unit[..., None, :], torch.eye(3, dtype=F64) / 3)
    assert_uniform((1 + unit) / 2)  # Archimedes: coordinates of a sphere in R³ are uniform


@pytest.mark.parametrize("make", [lambda d: LinearSlice(d, 1.0), lambda d: EllipticalSlice(d, 1.0, 2.0)])
def test_a_bracket_that_closes_leaves_the_chain_where_it_is(make: object) -> None:
    """A density of one point: the search ends, at the latest after MAX_SHRINKS, and other chains move on."""
    points = torch.tensor([[0.0], [1.0], [1e-30]], dtype=F64)

    def log_prob(z: Tensor, point: Tensor, spike: Tensor) -> Tensor:
        return torch.where(spike & (z != point)[..., 0], -torch.inf, -0.5 * z.square().sum(-1))

    kernel = make(Density(log_prob, points, torch.tensor([True, True, False])))
    state, info = kernel.step(kernel.init(points), generator())
    assert torch.equal(state.position[:2], points[:2]) and state.position[2] != points[2]
    assert info["num_shrinks"].max() <= MAX_SHRINKS and info["accepted"][2]
    assert info["num_shrinks"][2] < 20


def test_a_search_without_end_is_reported() -> None:
    """Around 0 floating-point numbers are dense: the bracket never closes."""
    spike = Density(lambda z: torch.where(z[..., 0] == 0, 0.0, -torch.inf).to(z))
    kernel = LinearSlice(spike, 1.0)
    state, info = kernel.step(kernel.init(torch.zeros(2, 1, dtype=F64)), generator())
    assert (state.position == 0).all() and not info["accepted"].any()
    assert (info["num_shrinks"] == MAX_SHRINKS).all() and (info["num_evaluations"] == MAX_SHRINKS).all()


def test_brackets_close_as_fast_as_stated() -> None:
    """Missing everything, a bracket loses a quarter on average, half at least for the luckiest place."""
    offsets: list[Tensor] = []

    def log_prob(z: Tensor) -> Tensor:
        offsets.append(z[..., 0].abs())
        return torch.full_like(z[..., 0], -torch.inf)

    start = Phase(torch.zeros(500, 1, dtype=F64), log_prob=torch.zeros(500, dtype=F64))
    LinearSlice(Density(log_prob), 1.0).step(start, generator())
    assert len(offsets) == MAX_SHRINKS
    assert offsets[-1].max() < 1e-16


def test_the_line_is_reflected_at_the_faces() -> None:
    fold = ReflectiveSlice(FLAT, 1.0)._fold
    u = torch.tensor([0.0, 0.3, 1.0, 1.2, 2.0, 2.4, 3.5, -0.2, -1.3, -2.1], dtype=F64)
    expected = torch.tensor([0.0, 0.3, 1.0, 0.8, 0.0, 0.4, 0.5, 0.2, 0.7, 0.1], dtype=F64)
    torch.testing.assert_close(fold(u), expected, rtol=0, atol=1e-14)
    inside = torch.rand(1000, dtype=torch.float32)
    assert torch.equal(fold(inside), inside)  # a coordinate that does not move keeps its last bit


def test_a_reflected_path_is_the_same_from_any_of_its_points() -> None:
    """fold(fold(y) + s w) = fold(y + w), s the direction in which the folded path runs at y."""
    torch.manual_seed(0)
    fold = ReflectiveSlice(FLAT, 1.0)._fold
    y, w = 3 * torch.randn(1000, dtype=F64), 3 * torch.randn(1000, dtype=F64)
    sign = torch.where(y.remainder(2) < 1, 1.0, -1.0)
    torch.testing.assert_close(fold(fold(y) + sign * w), fold(y + w), rtol=0, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_no_width_leads_out_of_the_cube(dtype: torch.dtype) -> None:
    kernel = ReflectiveSlice(FLAT, width=50.0)
    state, _ = kernel.step(kernel.init(torch.rand(5000, 3, dtype=dtype)), generator())
    assert ((state.position >= 0) & (state.position <= 1)).all()


def test_an_ellipse_around_its_own_normal_distribution_is_level() -> None:
    """γ = N(μ, Σ): every point of the ellipse is on the slice, and no draw is missed."""
    mean = torch.tensor([0.5, -1.0, 2.0], dtype=F64)
    root = torch.tensor([[1.0, 0.0, 0.0], [0.5, 0.8, 0.0], [-0.3, 0.2, 0.6]], dtype=F64)
    distribution = MultivariateNormal(mean, scale_tril=root)
    kernel = EllipticalSlice(Density(distribution.log_prob), mean, distribution.covariance_matrix)
    start = distribution.sample((20_000,))
    state, info = kernel.step(kernel.init(start), generator())
    assert (info["num_shrinks"] == 0).all()
    # a uniform angle: the cosine that multiplies the start averages to nothing
    assert_mean((state.position - mean)[..., :, None] * (start - mean)[..., None, :], 0.0)
    white = torch.linalg.solve_triangular(root, (state.position - mean)[..., None], upper=False)[..., 0]
    assert_mean(white[..., :, None] * white[..., None, :], torch.eye(3, dtype=F64))


def test_an_ellipse_is_cut_at_random() -> None:
    """A normal without [−2, −½] has slices in two pieces: which one is found depends on the cut."""
    distribution = Normal(torch.zeros((), dtype=F64), 1.0)
    below, above = distribution.cdf(torch.tensor([-2.0, -0.5], dtype=F64))
    total = below + 1 - above

    def log_prob(z: Tensor) -> Tensor:
        gap = (z[..., 0] >= -2) & (z[..., 0] <= -0.5)
        return distribution.log_prob(z[..., 0]).where(~gap, -torch.inf)

    torch.manual_seed(0)
    u = total * torch.rand(100_000, 1, dtype=F64)
    kernel, random = EllipticalSlice(Density(log_prob)), generator()
    state = kernel.init(distribution.icdf(torch.where(u < below, u, u + 1 - total)))
    for _ in range(5):
        state, _ = kernel.step(state, random)
    u = distribution.cdf(state.position)
    assert_uniform(torch.where(u < below, u, u - 1 + total) / total)


@pytest.mark.parametrize("covariance", [2.0, [2.0, 2.0], [[2.0, 0.0], [0.0, 2.0]]])
def test_forms_of_the_covariance_agree(covariance: object) -> None:
    start = torch.randn(10, 2, dtype=F64)
    given = torch.tensor(covariance, dtype=F64) if isinstance(covariance, list) else covariance
    kernels = EllipticalSlice(NORMAL, 1.0, given), EllipticalSlice(NORMAL, torch.ones(2, dtype=F64), 2.0)
    ends = [kernel.step(kernel.init(start), generator())[0].position for kernel in kernels]
    torch.testing.assert_close(*ends)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: LinearSlice(NORMAL, 0.0), "width must be positive, got 0"),
        (lambda: LinearSlice(NORMAL, torch.tensor([1.0, -2.0])), "width must be positive"),
        (lambda: LinearSlice(NORMAL, float("nan")), "width must be positive, got nan"),
        (lambda: ReflectiveSlice(NORMAL, -1.0), "width must be positive, got -1"),
        (lambda: LinearSlice(NORMAL, 1.0, max_step_out=-1), "max_step_out must be at least 0, got -1"),
        (lambda: LinearSlice(NORMAL, 1.0, direction="axes"), "one of random, axis, got 'axes'"),
        (lambda: EllipticalSlice(NORMAL, 0.0, 0.0), "variances must be positive, got 0"),
        (lambda: EllipticalSlice(NORMAL, 0.0, torch.tensor([1.0, -1.0])), "variances must be positive"),
        (lambda: EllipticalSlice(NORMAL, 0.0, torch.ones(2, 2)), "symmetric and positive definite"),
        (lambda: EllipticalSlice(NORMAL, 0.0, torch.tensor([[1.0, 0.5], [0.0, 1.0]])), "symmetric"),
        (
            lambda: EllipticalSlice(NORMAL, 0.0, torch.ones(2, 3)),
            r"or a number, got \[2, 3\]",
        ),
        (lambda: EllipticalSlice(NORMAL, torch.zeros(2, 2)), r"mean must be a number or \[d\], got \[2, 2\]"),
    ],
)
def test_bad_settings_are_refused(make: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    ("kernel", "position", "message"),
    [
        (ReflectiveSlice(FLAT, 1.0), torch.tensor([[0.5, 1.5]]), "unit cube .* got 1.5: map the variables"),
        (ReflectiveSlice(FLAT, 1.0), torch.tensor([[0.5, torch.nan]]), "unit cube"),
        (EllipticalSlice(NORMAL, torch.zeros(3)), torch.zeros(4, 2), "2 dimensions, the mean 3"),
        (EllipticalSlice(NORMAL, 0.0, torch.eye(3)), torch.zeros(4, 2), "2 dimensions, the covariance 3"),
        (
            EllipticalSlice(NORMAL, 0.0, torch.eye(2, dtype=F64)),
            torch.zeros(4, 2),
            "covariance .* same dtype",
        ),
        (EllipticalSlice(NORMAL, torch.zeros(2, dtype=F64)), torch.zeros(4, 2), "the mean .* same dtype"),
    ],
)
def test_bad_positions_are_refused(kernel: LinearSlice, position: Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        kernel.init(position)


def test_a_doubled_bracket_lies_anywhere_around_the_chain() -> None:
    """Where γ is flat the bracket has 2^p widths, its place and the point on it are uniform: U − V."""
    kernel = LinearSlice(FLAT, 0.7, 3, expansion="doubling")
    state, info = kernel.step(kernel.init(torch.zeros(20_000, 1, dtype=F64)), generator())
    x = state.position[:, 0] / (0.7 * 8)
    assert_uniform(torch.where(x < 0, (1 + x).square() / 2, 1 - (1 - x).square() / 2))
    assert (info["num_step_outs"] == 3).all() and (info["num_shrinks"] == 0).all()
    assert (info["num_evaluations"] == 2 + 3 + 1 + 3).all()  # ends, doublings, the point, and its check


def islands(offset: Tensor) -> Point:
    """Three intervals at level 1, the rest at 0."""
    inside = ((offset + 2.3).abs() < 1.4) | (offset.abs() < 0.6) | ((offset - 2.6).abs() < 0.9)
    return Point(offset[..., None], inside.double(), inside.double())


def test_doubling_goes_where_it_could_have_come_from() -> None:
    """A point is passed over if and only if no sequence of sides leads from it to the same bracket."""
    torch.manual_seed(0)
    count, times = 2000, 3
    half, alive = torch.full((count,), 0.5, dtype=F64), torch.ones(count, dtype=torch.bool)
    first = first_bracket(torch.rand(count, dtype=F64))
    there = Doubling(islands, half, first, torch.rand(count, times), alive)
    lower, upper = there.bracket.lower, there.bracket.upper
    offset = lower + (upper - lower) * torch.rand(count, dtype=F64)
    on_slice, kept = islands(offset).level > half, there(offset).level > half

    def seen(point: Tensor) -> Point:
        return islands(point + offset)

    first = first_bracket(1 - (offset - lower).remainder(1))  # the one around λ on the grid of halves
    possible = torch.zeros_like(alive)
    for sides in itertools.product([0.0, 1.0], repeat=times):
        back = Doubling(seen, half, first, torch.tensor(sides).expand(count, times), alive).bracket
        possible |= torch.isclose(back.lower + offset, lower) & torch.isclose(back.upper + offset, upper)
    assert torch.equal(kept, on_slice & possible)
    assert (on_slice & ~possible).any() and kept.any()


def test_doubling_finds_far_ends_in_few_evaluations() -> None:
    """A width of a thousandth, with which stepping out would look at thousands of ends."""
    start = Phase(torch.randn(500, 1, dtype=F64))
    _, info = LinearSlice(NORMAL, 1e-3, 20, expansion="doubling").step(start, generator())
    assert info["accepted"].all() and info["num_evaluations"].double().mean() < 100
    with pytest.raises(ValueError, match="expansion must be one of stepping, doubling"):
        LinearSlice(NORMAL, 1.0, expansion="double")
