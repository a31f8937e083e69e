"""Integers as intervals: there and back, widths that sum to one, and clear refusals."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from hmcvi.kernels import Categorical, Counts, EmbeddedDensity, Embedding, Integers
from tests.support.problems import F64

EMBEDDINGS = [Counts(), Counts(low=3), Counts(low=-2, high=40), Integers(-3, 4), Categorical(5)]
over_embeddings = pytest.mark.parametrize(
    "kind", EMBEDDINGS, ids=lambda k: f"{type(k).__name__} {k.low} {k.high}"
)


def integers(kind: Embedding) -> Tensor:
    return torch.arange(kind.low, (1000 if kind.high is None else kind.high) + 1)


@over_embeddings
@pytest.mark.parametrize("share", [1e-6, 0.5, 1 - 1e-6])
def test_integers_come_back(kind: Embedding, share: float) -> None:
    n = integers(kind)
    z = kind.embed(n, share, dtype=F64)
    assert kind.discretize(z).equal(n) and kind.discretize(z).dtype == torch.int64


@over_embeddings
def test_intervals_touch_and_have_the_stated_width(kind: Embedding) -> None:
    n = integers(kind)
    low, high = kind.embed(n, 0.0, F64), kind.embed(n, 1.0, F64)
    assert low[0] == 0
    torch.testing.assert_close(low[1:], high[:-1])
    torch.testing.assert_close(kind.log_width((low + high) / 2).exp(), high - low)


@over_embeddings
def test_nothing_lies_outside(kind: Embedding) -> None:
    """Out of range the width is infinite, the density zero, and the integer the nearest."""
    outside = torch.tensor([-1e9, -0.5, 0.0, 1e9], dtype=F64)
    assert (kind.log_width(outside) == torch.inf).all()
    n = kind.discretize(outside)
    assert (n[:3] == kind.low).all() and n[3] > kind.low
    assert kind.high is None or n[3] == kind.high
    assert kind.discretize(torch.tensor(torch.nan)) == kind.low
    assert kind.log_width(torch.tensor(torch.nan)) == torch.inf


def test_counts_are_spaced_by_their_logarithm() -> None:
    n = torch.tensor([0, 1, 9, 10**6])
    torch.testing.assert_close(Counts().embed(n, 0.0, F64), (n.double() + 1).log())
    big = torch.tensor([10**9, 10**12])
    assert Counts().discretize(Counts().embed(big, dtype=F64)).equal(big)


def test_the_embedded_density_integrates_to_the_sum() -> None:
    """∫ γ(z) dz over each interval is p(n), by the midpoint rule on a fine grid."""
    probability = torch.tensor([0.1, 0.5, 0.15, 0.25], dtype=F64)
    for kind in (Counts(high=3), Categorical(4)):
        density = EmbeddedDensity(
            lambda v: probability.log()[v["n"].long()], shapes={"n": ()}, discrete={"n": kind}
        )
        edges = torch.linspace(-0.5, 4.5, 50_001, dtype=F64)
        z = (edges[1:] + edges[:-1])[:, None] / 2
        mass = density.log_prob(z).exp() * 1e-4
        cell = density.layout.unflatten(z)["n"]
        torch.testing.assert_close(
            torch.stack([mass[cell == n].sum() for n in range(4)]), probability, rtol=1e-3, atol=0
        )


def test_named_variables_in_integers_out() -> None:
    seen = {}

    def log_prob(v: dict[str, Tensor]) -> Tensor:
        seen.update(v)
        return -v["x"].square().sum(-1) - v["n"].sum((-1, -2)) + v["c"]

    density = EmbeddedDensity(
        log_prob,
        shapes={"x": (2,), "n": (2, 3), "c": ()},
        discrete={"n": Counts(), "c": Categorical(3)},
    )
    assert density.discontinuous.tolist() == [False] * 2 + [True] * 7
    variables = {
        "x": torch.randn(5, 2, dtype=F64),
        "n": torch.arange(30).view(5, 2, 3),
        "c": torch.ones(5).long(),
    }
    position = density.layout.flatten(variables)
    assert position.shape == (5, 9) and position.dtype == F64
    for name, value in density.layout.unflatten(position).items():
        assert value.equal(variables[name])
    width = (1 + 1 / (variables["n"].double() + 1)).log().log().sum((-1, -2))
    expected = log_prob(variables) - width
    torch.testing.assert_close(density.log_prob(position), expected)
    assert seen["n"].dtype == F64, "lgamma of an int64 has the precision of float32"
    assert seen["c"].dtype == torch.int64, "classes index tables"
    far = position.clone()
    far[1, 8] = 3.5
    assert density.log_prob(far)[1] == -torch.inf and density.log_prob(far)[0].isfinite()


def test_one_density_for_each_chain() -> None:
    y = torch.tensor([1.0, 2.0], dtype=F64)
    density = EmbeddedDensity(lambda v, y: -y * v["n"], y, shapes={"n": ()}, discrete={"n": Integers(0, 9)})
    assert density.log_prob(torch.full((2, 1), 3.5, dtype=F64)).tolist() == [-3.0, -6.0]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Counts(low=3, high=2), "high must be at least low = 3, got 2"),
        (lambda: Categorical(0), "size must be at least 1"),
        (lambda: Counts().embed(torch.tensor([2, -1])), r"-1 is not one of the integers 0, …"),
        (lambda: Categorical(3).embed(torch.tensor([3])), r"3 is not one of the integers 0, …, 2"),
        (lambda: Counts().embed(torch.tensor([1.5])), "1.5 is not one of the integers"),
        (
            lambda: EmbeddedDensity(lambda v: v["n"], shapes={"n": ()}, discrete={"m": Counts()}),
            r"there is no variable 'm': name some of \['n'\]",
        ),
        (lambda: EmbeddedDensity(lambda v: v["n"], shapes={"n": ()}, discrete={}), "no variable is discrete"),
    ],
)
def test_misuse_says_what_to_do(make, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
