"""Kernels made of kernels: what they hand on, what they report, and exact draws of labels."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.distributions import Normal

from hmcvi import Density, Phase
from hmcvi.kernels import (
    HMC,
    Compose,
    ConditionalDraw,
    DiagonalMetric,
    EllipticalSlice,
    Gibbs,
    Kernel,
    LinearSlice,
    RandomWalkMetropolis,
    ReflectiveSlice,
)
from tests.support.problems import F64, Mixture
from tests.support.statistics import assert_mean, assert_uniform

PROBLEM = Mixture()
NAMED = Density(
    lambda v: -v["b"].square().sum(-1) - (v["a"] - v["b"].sum(-1)) ** 2, shapes={"a": (), "b": (2,)}
)


def walk(density: Density = PROBLEM.density, step_size: float = 1.0) -> RandomWalkMetropolis:
    return RandomWalkMetropolis(density, step_size)


def test_kernels_run_in_turn() -> None:
    """A composition is its parts by hand, with one generator."""
    parts = HMC(PROBLEM.density, 0.5, 3), walk(), LinearSlice(PROBLEM.density, 2.0)
    start = PROBLEM.draw_base(5)
    whole, _ = Compose(*parts).step(Compose(*parts).init(start), torch.Generator().manual_seed(0))
    state, generator = parts[0].init(start), torch.Generator().manual_seed(0)
    for part in parts:
        state, _ = part.step(state, generator)
    assert torch.equal(whole.position, state.position)


def test_reports_are_merged() -> None:
    kernel = Compose(HMC(PROBLEM.density, 0.5, 3), walk(), walk(), LinearSlice(PROBLEM.density, 1.0))
    state, info = kernel.step(kernel.init(PROBLEM.draw_base(5)))
    assert {"accepted_0", "accepted_1", "accepted_2", "accepted_3", "acceptance_rate_2"} <= info.keys()
    assert {"energy", "diverged", "num_shrinks"} <= info.keys() and "accepted" not in info
    assert torch.equal(info["num_evaluations"], 3 + info["num_shrinks"])
    assert (info["num_gradients"] == 3).all()
    _, again = kernel.step(state)
    assert (again["num_gradients"] == 4).all()  # the slice forgot the gradient


def test_a_divergence_of_any_part_is_one_of_the_whole() -> None:
    for steps in ((1e6, 0.1), (0.1, 1e6)):
        kernel = Compose(*(HMC(PROBLEM.density, step, 2) for step in steps))
        assert kernel.step(kernel.init(PROBLEM.draw_base(5)))[1]["diverged"].all()


def test_compositions_are_flat() -> None:
    first, second, third = walk(), walk(), walk()
    assert Compose(Compose(first, second), third).kernels == (first, second, third)


def test_a_persistent_momentum_passes_the_others() -> None:
    """Not dropped by a slice, not replaced by the momentum of an HMC without persistence and other metric."""
    metric = DiagonalMetric(torch.tensor([3.0, 3.0], dtype=F64))
    persistent = HMC(PROBLEM.density, 0.1, 1, persistence=0.9)
    others = LinearSlice(PROBLEM.density, 1.0), HMC(PROBLEM.density, 0.1, 1, metric)
    start = Phase(PROBLEM.draw(5), torch.randn(5, 2, dtype=F64))
    for kernel in (Compose(persistent, *others), Compose(persistent, *others[::-1])):
        state, _ = kernel.step(start, torch.Generator().manual_seed(0))
        alone, _ = persistent.step(start, torch.Generator().manual_seed(0))
        assert torch.equal(state.momentum, alone.momentum)


def test_blocks_are_updated_in_turn_given_the_others() -> None:
    """γ = N(0, Σ): an axis update of block a alone has the conditional distribution of a."""
    precision = torch.tensor([[2.0, 0.9, 0.0], [0.9, 1.0, 0.4], [0.0, 0.4, 1.5]], dtype=F64)
    density = Density(lambda z: -0.5 * (z * (z @ precision)).sum(-1))
    scale = precision.diagonal().rsqrt()

    def draw(index: int) -> Callable[[Tensor, torch.Generator | None], Tensor]:
        def conditional(z: Tensor, generator: torch.Generator | None) -> Tensor:
            mean = z[..., index] - (z @ precision)[..., index] / precision[index, index]
            noise = torch.randn(mean.shape, generator=generator, dtype=F64)
            return (mean + scale[index] * noise)[..., None]

        return conditional

    kernel = Gibbs([(index, ConditionalDraw(density, draw(index))) for index in range(3)])
    torch.manual_seed(0)
    state = kernel.init(torch.zeros(20_000, 3, dtype=F64))
    for _ in range(40):
        state, info = kernel.step(state)
    assert_mean(state.position[..., :, None] * state.position[..., None, :], precision.inverse())
    assert (info["num_evaluations"] == 3).all()
    torch.testing.assert_close(state.log_prob, density.log_prob(state.position))


class Labels:
    """x | k ~ N(μ_k, s_k²), k one of three labels: the label is drawn exactly, x by a slice."""

    shares = torch.tensor([0.5, 0.3, 0.2], dtype=F64)
    loc = torch.tensor([0.0, 1.5, -2.0], dtype=F64)
    scale = torch.tensor([1.0, 0.5, 0.7], dtype=F64)

    def __init__(self) -> None:
        self.density = Density(self.log_joint, shapes={"label": (), "x": ()})

    def log_joint(self, v: dict[str, Tensor]) -> Tensor:
        label = v["label"].long()
        return self.shares[label].log() + Normal(self.loc[label], self.scale[label]).log_prob(v["x"])

    def draw_label(self, position: Tensor, generator: torch.Generator | None) -> Tensor:
        log_share = self.shares.log() + Normal(self.loc, self.scale).log_prob(position[..., 1:])
        return torch.multinomial(log_share.softmax(-1), 1, generator=generator).to(position)


@pytest.mark.parametrize("names", [True, False])
def test_labels_are_drawn_exactly(names: bool) -> None:
    """A mixed target: shares of the labels and the distribution of x stay as they were."""
    model = Labels()
    torch.manual_seed(0)
    label = torch.multinomial(model.shares, 20_000, replacement=True)
    start = torch.stack([label.double(), torch.normal(model.loc[label], model.scale[label])], -1)
    pairs = (ConditionalDraw(model.density, model.draw_label), LinearSlice(model.density, 1.0, 2))
    kernel = Gibbs(
        dict(zip(("label", "x"), pairs, strict=True)) if names else list(zip(([0], [1]), pairs, strict=True))
    )
    state = kernel.init(start)
    for _ in range(5):
        state, info = kernel.step(state)
    label, x = state.position.unbind(-1)
    assert_mean(torch.nn.functional.one_hot(label.long(), 3).double(), model.shares)
    assert_uniform((Normal(model.loc, model.scale).cdf(x[:, None]) * model.shares).sum(-1))
    assert_uniform(Normal(model.loc[label.long()], model.scale[label.long()]).cdf(x))
    assert (label != start[:, 0]).double().mean() > 0.1
    assert {"accepted_label", "accepted_x"} <= info.keys() if names else {"accepted_0"} <= info.keys()


def test_a_composition_can_be_a_block() -> None:
    """Every part of it is run on the block, an exact draw of the rest among them."""
    model = Labels()
    inner = Compose(LinearSlice(model.density, 1.0), walk(model.density))
    kernel = Gibbs({"label": ConditionalDraw(model.density, model.draw_label), "x": inner})
    state, info = kernel.step(kernel.init(torch.tensor([[1.0, 0.3]], dtype=F64)))
    torch.testing.assert_close(state.log_prob, model.density.log_prob(state.position))
    assert {"accepted", "accepted_0", "accepted_1"} <= info.keys()
    both = Compose(
        ConditionalDraw(model.density, model.draw_label), ConditionalDraw(model.density, model.draw_label)
    )
    kernel = Gibbs({"label": both, "x": walk(model.density)})
    state, _ = kernel.step(state)
    assert state.position.shape == (1, 2)


def test_an_impossible_draw_is_not_taken() -> None:
    density = Density(lambda z: z[..., 0].log())
    kernel = ConditionalDraw(density, lambda z, generator: z * torch.tensor([[-1.0], [2.0]]))
    state, info = kernel.step(kernel.init(torch.ones(2, 1)))
    assert state.position.tolist() == [[1.0], [2.0]] and info["accepted"].tolist() == [False, True]
    torch.testing.assert_close(state.log_prob, density.log_prob(state.position))


@pytest.mark.parametrize("drawn", [torch.zeros(3), torch.zeros(3, 2), torch.zeros(3, 1, dtype=F64)])
def test_a_draw_must_fit_its_block(drawn: Tensor) -> None:
    density = Density(lambda z: -z.square().sum(-1))
    kernel = Gibbs([(0, ConditionalDraw(density, lambda *_: drawn)), (1, walk(density))])
    with pytest.raises(
        ValueError, match=r"draw must return new values of the block, \[3, 1\] of torch.float32"
    ):
        kernel.step(kernel.init(torch.zeros(3, 2)))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Compose(), "at least one kernel"),
        (lambda: Gibbs([]), "at least one kernel"),
        (lambda: Compose(walk(), walk(NAMED)), "one and the same Density object"),
        (lambda: Gibbs([(0, walk()), (1, walk(NAMED))]), "one and the same Density object"),
        (lambda: Gibbs({"a": walk()}), "'a' is a name, but .* have none: build it as Density"),
        (lambda: Gibbs({"c": walk(NAMED)}), r"has the variables \['a', 'b'\], not 'c'"),
        (lambda: Gibbs({0: HMC(NAMED, 0.1, 2, compile=True)}), "use compile=False"),
        (
            lambda: Compose(
                HMC(NAMED, 0.1, 2, persistence=0.5),
                HMC(NAMED, 0.1, 2, DiagonalMetric(torch.ones(3)), persistence=0.5),
            ),
            "must share one metric",
        ),
    ],
)
def test_bad_compositions_are_refused(make: Callable[[], Kernel], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    ("blocks", "message"),
    [
        ([0, 1], r"coordinates \[2\] are in no block"),
        (["a", [0, 1, 2]], r"coordinates \[0\] are in more than one block"),
        ([[0, 0], [1, 2]], r"coordinates \[0\] are in more than one block"),
        ([slice(0, 2), slice(2, 4)], r"slice\(2, 4, None\) does not fit positions of 3"),
        ([[0, 1, 5], 2], "does not fit positions of 3 dimensions"),
        ([[], [0, 1, 2]], "is empty"),
        ([slice(1, 1), slice(0, 3)], "is empty"),
        ([torch.tensor([True, False]), [1, 2]], "does not fit positions of 3"),
    ],
    ids=str,
)
def test_blocks_must_cover_every_coordinate_once(blocks: list, message: str) -> None:
    kernel = Gibbs([(block, walk(NAMED)) for block in blocks])
    with pytest.raises(ValueError, match=message):
        kernel.init(torch.zeros(5, 3))


@pytest.mark.parametrize(
    "blocks",
    [["a", "b"], [0, slice(1, None)], [torch.tensor([True, False, True]), -2], [[2], (0, 1)]],
    ids=str,
)
def test_blocks_have_many_forms(blocks: list) -> None:
    kernel = Gibbs([(block, LinearSlice(NAMED, 1.0)) for block in blocks])
    state, _ = kernel.step(kernel.init(torch.zeros(5, 3)))
    assert (state.position != 0).all()


def test_each_block_is_checked() -> None:
    kernel = Gibbs({"a": ReflectiveSlice(NAMED, 1.0), "b": EllipticalSlice(NAMED, 0.0, torch.ones(3))})
    with pytest.raises(ValueError, match="unit cube"):
        kernel.init(torch.full((5, 3), 2.0))
    with pytest.raises(ValueError, match="positions have 2 dimensions, the covariance 3"):
        kernel.init(torch.full((5, 3), 0.5))
