"""Running kernels: names, densities of single chains, precision, callbacks, and chains that fail alone."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

from hmcvi import Density, sample
from hmcvi.kernels import HMC, Compose, DiscontinuousHMC, Gibbs, LinearSlice, RandomWalkMetropolis
from hmcvi.kernels.mcmc.embedding import Categorical, Counts, EmbeddedDensity
from hmcvi.sampling import Draws
from tests.support.problems import F64
from tests.support.sampling_runs import BANANA, KERNELS, assert_same_draws, init, quick
from tests.support.statistics import assert_mean

NAMED = Density(
    lambda v: -0.5 * (v["mu"] - 1).square() - 0.5 * (v["theta"] / 2).square().sum((-2, -1)),
    shapes={"theta": (2, 3), "mu": ()},
)


def test_named_variables_come_back_in_their_shapes() -> None:
    start = {"mu": torch.arange(4.0), "theta": torch.arange(24.0).reshape(4, 2, 3) / 10}
    draws = quick(HMC(NAMED, 1e-12, 1), 3, init=start)
    assert list(draws.variables) == ["theta", "mu"]
    torch.testing.assert_close(draws["mu"], start["mu"][:, None].expand(4, 3))
    torch.testing.assert_close(draws["theta"], start["theta"][:, None].expand(4, 3, 2, 3))
    flat = torch.cat([start["theta"].flatten(1), start["mu"][:, None]], 1)
    assert_same_draws(quick(HMC(NAMED, 0.3, 2), 5, init=flat), quick(HMC(NAMED, 0.3, 2), 5, init=start))


@pytest.mark.slow
def test_named_integers_go_in_and_come_out(tmp_path: Path) -> None:
    """n ~ Poisson(4), x | n ~ N(n, 1); a category that never changes is no problem."""
    density = EmbeddedDensity(
        lambda v: v["n"] * math.log(4) - (v["n"] + 1).lgamma()
        - 0.5 * (v["x"] - v["n"]).square(),
        shapes={"x": (), "n": (), "k": ()},
        discrete={"n": Counts(), "k": Categorical(1)},
    )  # fmt: skip
    kernel = DiscontinuousHMC(density, density.discontinuous, 0.5, 6)
    start = {"x": torch.zeros(64, dtype=F64), "n": torch.ones(64, dtype=torch.int64)}
    start["k"] = torch.zeros(64, dtype=torch.int64)
    draws = quick(kernel, 150, 80, init=start)
    assert not any("never moved" in problem for problem in draws.problems())
    assert draws["n"].dtype == torch.int64 and draws["x"].dtype == F64 and (draws["k"] == 0).all()
    for values in (draws["n"].double(), (draws["n"].double() - 4).square(), draws["x"]):
        assert_mean(values.mean(1), 4.0)
    draws.save(tmp_path / "a.pt")
    assert torch.equal(Draws.load(tmp_path / "a.pt", kernel)["n"], draws["n"])


def test_each_chain_has_its_own_density() -> None:
    """One image per chain: its chain finds it."""
    images = torch.linspace(-40.0, 40.0, 24, dtype=F64).reshape(8, 3)
    density = Density(lambda z, image: -0.5 * (z - image).square().sum(-1), images)
    draws = sample(HMC(density, 0.5, 3, jitter=0.5), images, 400, progress=False)
    assert_mean(draws.position[:, ::4].transpose(0, 1), images)


@pytest.mark.parametrize(
    "name", sorted(KERNELS.keys() - {"IndependentMetropolis"})
)  # whose proposal is double
def test_single_precision_stays_single(name: str) -> None:
    density = Density(lambda z: -0.5 * z.square().sum(-1))
    draws = quick(KERNELS[name](density), 5, 30, init=init().float())
    assert draws.position.dtype == draws.stats["log_prob"].dtype == torch.float32
    assert draws.resume(2, progress=False).position.dtype == torch.float32


@pytest.mark.parametrize("make", [lambda d: HMC(d, 0.7, 3), lambda d: RandomWalkMetropolis(d, 0.7)])
def test_a_chain_without_a_number_goes_back_and_leaves_the_others_alone(make) -> None:  # type: ignore[no-untyped-def]
    """log γ is NaN for |z| > 1, for the second chain only; the others move as without it."""

    def log_prob(z: Tensor, hurt: Tensor) -> Tensor:
        value = -0.5 * z.square().sum(-1)
        return value.where(~hurt | (z.abs().amax(-1) < 1), torch.nan)

    second = torch.arange(4) == 1
    start = 0.1 * init()
    hurt = quick(make(Density(log_prob, second)), 60, init=start)
    whole = quick(make(Density(log_prob, torch.zeros(4, dtype=torch.bool))), 60, init=start)
    assert torch.equal(hurt.position[~second], whole.position[~second])
    for key, values in whole.stats.items():
        assert torch.equal(hurt.stats[key][~second], values[~second]), key
    assert (hurt.position[1].abs() < 1).all() and hurt.position.isfinite().all()
    assert hurt.stats["log_prob"].isfinite().all()
    if "diverged" in hurt.stats:
        assert hurt.stats["diverged"][1].sum() > 0 and hurt.stats["diverged"][~second].sum() == 0
        assert (hurt.stats["acceptance_rate"][1][hurt.stats["diverged"][1] > 0] == 0).all()


def test_the_kernel_of_all_draws_is_that_of_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is tuned after warm-up: steps, mass, length and jitter of every kept transition are final."""
    seen: list[tuple[object, ...]] = []
    step = HMC.step

    def watched(self: HMC, *arguments: object):  # type: ignore[no-untyped-def]
        seen.append((float(self.step_size.mean()), self.metric, self.num_steps, self.jitter))
        return step(self, *arguments)

    monkeypatch.setattr(HMC, "step", watched)
    draws = quick(HMC(BANANA, 0.1), 20, 150, thin=2)
    kernel = draws.kernel
    final = (float(kernel.step_size.mean()), kernel.metric, kernel.num_steps, kernel.jitter)
    assert all(settings == final for settings in seen[-40:]) and seen[-41] != final
    seen.clear()
    draws.resume(5, progress=False)
    assert all(settings == final for settings in seen)


def test_without_warmup_the_kernel_is_the_one_given() -> None:
    kernel = HMC(BANANA, 0.1, 3)
    assert quick(kernel, 3).kernel is kernel
    generator, state = torch.Generator().manual_seed(0), kernel.init(init())
    for expected in quick(kernel, 3).position.unbind(1):
        state, _ = kernel.step(state, generator)
        assert torch.equal(state.position, expected)


def test_the_callback_sees_each_kept_draw_and_may_stop() -> None:
    kernel, calls = HMC(BANANA, 0.3, 3), []

    def callback(index: int, state, info) -> bool:  # type: ignore[no-untyped-def]
        calls.append((index, state.position, info["log_prob"]))
        return index == 6

    draws = quick(kernel, 20, 10, thin=2, callback=callback)
    assert [call[0] for call in calls] == list(range(7)) and len(draws) == 7
    assert torch.equal(torch.stack([call[1] for call in calls], 1), draws.position)
    assert torch.equal(torch.stack([call[2] for call in calls], 1), draws.stats["log_prob"])
    assert_same_draws(draws.resume(13, progress=False), quick(kernel, 20, 10, thin=2))


def test_progress_is_for_terminals(capfd: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = HMC(Density(lambda z: -0.5 * z.square().sum(-1)), 0.3, 3, jitter=0.5)
    sample(kernel, init(16), 500, 100, progress=True)
    assert capfd.readouterr() == ("", "")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    sample(kernel, init(16), 500, 100, progress=True)
    shown = capfd.readouterr().err
    assert "warm-up" in shown and "sampling" in shown and "500/500" in shown
    sample(kernel, init(16), 500, 100, progress=False)
    assert capfd.readouterr() == ("", "")


def test_draws_do_not_follow_later_changes_of_init() -> None:
    start = init()
    draws = quick(HMC(BANANA, 0.3, 3), 4, init=start)
    start += 1
    assert_same_draws(draws.resume(3, progress=False), quick(HMC(BANANA, 0.3, 3), 7))


def test_draws_are_shown_in_one_line() -> None:
    draws = quick(HMC(NAMED, 0.3, 2), 5, init=init(4, 7))
    assert repr(draws) == "Draws(4 chains, 5 draws of {'theta': (2, 3), 'mu': ()})"
    assert draws == draws and len(draws) == 5


def test_length_is_tuned_only_where_hmc_runs_alone() -> None:
    for kernel in (
        Compose(HMC(BANANA, 0.3), LinearSlice(BANANA, 1.0)),
        Gibbs([(slice(0, 3), HMC(BANANA, 0.3))]),
    ):
        with pytest.raises(ValueError, match="give it a number here"):
            quick(kernel, 3, 10)
