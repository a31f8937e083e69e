"""Densities in factors: the same chains as without, for fewer evaluations."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from hmcvi import Density, Phase
from hmcvi.dynamics.metrics import IdentityMetric
from hmcvi.kernels import DiscontinuousHMC, FactoredDensity
from hmcvi.kernels.mcmc.crossing import DiscontinuousSystem, FactoredSystem
from tests.support.jumps import LARGE
from tests.support.problems import F64

SITES = 9
NEIGHBOURS = [range(0, SITES, 2), range(1, SITES, 2)]


def height(z: Tensor) -> Tensor:
    """Of a staircase, in each coordinate."""
    return -0.5 * z.square() + 0.6 * z.ceil()


def coupling(z: Tensor) -> Tensor:
    """Of neighbours.  [..., d − 1]"""
    return -0.7 * (z[..., 1:].ceil() - z[..., :-1].ceil()).abs()


def path_log_prob(z: Tensor) -> Tensor:
    return height(z).sum(-1) + coupling(z).sum(-1)


def path_local(z: Tensor, index: Tensor) -> Tensor:
    """z_i is in its own factor and in those with z_{i−1} and z_{i+1}."""
    pairs = torch.nn.functional.pad(coupling(z), (1, 1))
    return (height(z) + pairs[..., :-1] + pairs[..., 1:]).gather(-1, index)


PATH = Density(path_log_prob)


def counts_local(v: dict[str, Tensor], index: Tensor) -> Tensor:
    """Factors of the counts n and the classes c of `LARGE`, as coordinates behind its continuous ones."""
    poisson = torch.distributions.Poisson(LARGE.rate(v["x"]), validate_args=False).log_prob(v["n"])
    classes = LARGE.class_log_prob(v["x"], v["n"]).gather(-1, v["c"])
    with_classes = torch.nn.functional.pad(classes.sum(-1, keepdim=True), (0, poisson.shape[-1] - 1))
    factors = torch.cat([v["x"].new_zeros(v["x"].shape), poisson + with_classes, classes], -1)
    return factors.gather(-1, index)


@pytest.mark.parametrize("discontinuous", [[True] * SITES, [False] + [True] * (SITES - 1)])
def test_one_coordinate_at_a_time_the_chains_are_the_same(discontinuous: list[bool]) -> None:
    """Differences by factors are differences of log γ; only the account differs."""
    torch.manual_seed(0)
    start = torch.randn(40, SITES, dtype=F64)
    plain, factored = (
        DiscontinuousHMC(each, discontinuous, 0.6, 4) for each in (PATH, FactoredDensity(PATH, path_local))
    )
    one, other = plain.init(start), factored.init(start)
    for seed in range(3):
        one, counted = plain.step(one, torch.Generator().manual_seed(seed))
        other, report = factored.step(other, torch.Generator().manual_seed(seed))
        torch.testing.assert_close(other.position, one.position)
        torch.testing.assert_close(other.log_prob, one.log_prob)
        torch.testing.assert_close(report["crossing_rate"], counted["crossing_rate"])
    moving = sum(discontinuous)
    assert counted["num_evaluations"].unique().item() == 4 * (moving + (not all(discontinuous)))
    assert report["num_evaluations"].unique().item() == all(discontinuous)
    assert report["num_local_evaluations"].unique().item() == 2 * 4 * moving


@pytest.mark.parametrize(
    ("density", "local", "independent", "start"),
    [
        (
            PATH,
            path_local,
            NEIGHBOURS,
            torch.randn(30, SITES, generator=torch.Generator().manual_seed(0)).double(),
        ),
        (LARGE.density, counts_local, ["n", "c"], None),
    ],
    ids=["neighbours", "named integers"],
)
def test_independent_coordinates_move_at_once_as_one_after_another(
    density: Density, local: object, independent: list, start: Tensor | None
) -> None:
    torch.manual_seed(0)
    start = LARGE.draw(30) if start is None else start
    mask = getattr(density, "discontinuous", torch.ones(start.shape[-1], dtype=torch.bool))
    factored = FactoredDensity(density, local, independent)
    groups = factored.groups(mask)
    assert len(groups) == 2
    kernel = DiscontinuousHMC(factored, mask, 0.5, 3)
    kernel.init(start)  # finds nothing wrong
    at_once = FactoredSystem(factored, IdentityMetric(), mask, groups)
    in_turn = DiscontinuousSystem(density, IdentityMetric(), mask)
    step = torch.full((30, 1), 0.5, dtype=F64)
    phase = in_turn.evaluate(Phase(start))._replace(momentum=2 * torch.randn_like(start))
    first, crossed = at_once.trajectory(phase, step, 3, torch.tensor([[1, 0]]).expand(30, -1))
    order = torch.cat([group[group >= 0] for group in groups.flip(0)])
    second, one_by_one = in_turn.trajectory(phase, step, 3, order.expand(30, -1))
    torch.testing.assert_close(first.position, second.position)
    torch.testing.assert_close(first.momentum, second.momentum)
    torch.testing.assert_close(first.log_prob, second.log_prob)
    assert torch.equal(crossed.to(F64), one_by_one) and 0 < crossed.double().mean() < 3 * mask.sum()


@pytest.mark.parametrize(
    ("local", "independent", "message"),
    [
        (path_local, [range(SITES)], "are not conditionally independent"),
        (path_local, [[0, 2], [2, 4]], "more than one set"),
        (path_local, [[0, SITES]], r"coordinates \[9\] are said to be independent"),
        (path_local, [[-1, 2]], "are indices 0"),
        (path_local, ["n"], "has no variable 'n'"),
        (lambda z, index: path_log_prob(z), [], r"must return \[3, 1\] numbers"),
    ],
)
def test_misuse_says_what_to_do(local: object, independent: list, message: str) -> None:
    position = torch.full((3, SITES), 0.5, dtype=F64)
    density = FactoredDensity(PATH, local, independent)
    with pytest.raises(ValueError, match=message):
        DiscontinuousHMC(density, [True] * SITES, 0.9, 2).init(position)
