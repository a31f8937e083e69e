"""What ArviZ gets and says, and the one line about a run that cannot be trusted."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch

from hmcvi import Density, sample
from hmcvi.kernels import HMC, Compose, RandomWalkMetropolis
from hmcvi.sampling import Draws, SamplingWarning, Warmup
from hmcvi.sampling.diagnostics import arviz, problems, worst_rhat
from tests.support.posteriors import centred_eight_schools
from tests.support.problems import F64
from tests.support.sampling_runs import init, quick

NORMAL = Density(lambda z: -0.5 * z.square().sum(-1))
NAMED = Density(
    lambda v: -0.5 * v["mu"].square() - 0.5 * (v["theta"] / 2).square().sum((-2, -1)),
    shapes={"theta": (2, 3), "mu": ()},
)


@pytest.fixture(scope="module")
def draws() -> Draws:
    """A good run, which says nothing: warnings are errors here."""
    return sample(HMC(NAMED, 0.5), init(8, 7), 400, 150, progress=False)


def test_arviz_gets_variables_and_statistics_under_its_names(draws: Draws) -> None:
    data = draws.to_arviz()
    assert data.posterior["theta"].dims == ("chain", "draw", "theta_dim_0", "theta_dim_1")
    assert data.posterior["mu"].dims == ("chain", "draw")
    for name, values in draws.variables.items():
        assert (data.posterior[name].values == values.numpy()).all()
    stats = data.sample_stats
    assert {"diverging", "energy", "acceptance_rate", "lp", "num_gradients"} <= set(stats)
    assert stats["diverging"].dtype == bool
    for name in ("energy", "acceptance_rate"):
        assert (stats[name].values == draws.stats[name].numpy()).all()
    assert (stats["lp"].values == draws.stats["log_prob"].numpy()).all()


def test_thinned_divergences_are_flags_for_arviz() -> None:
    data = quick(HMC(NORMAL, 30.0, 5), 4, thin=3).to_arviz()
    assert data.sample_stats["diverging"].dtype == bool and data.sample_stats["diverging"].values.all()


def test_the_summary_is_that_of_arviz(draws: Draws) -> None:
    summary = draws.summary()
    assert list(summary.index) == [*(f"theta[{i}, {j}]" for i in range(2) for j in range(3)), "mu"]
    mu = np.ascontiguousarray(draws["mu"].numpy())
    assert summary.loc["mu", "r_hat"] == pytest.approx(float(arviz().rhat(mu)), abs=0.006)
    assert float(summary.loc["mu", "ess_bulk"]) == pytest.approx(float(arviz().ess(mu)), abs=0.51)
    assert float(summary.loc["mu", "mean"]) == pytest.approx(float(mu.mean()), abs=0.006)


def test_the_worst_rhat_is_that_of_arviz(draws: Draws) -> None:
    theta = draws["theta"].numpy()
    expected = {
        f"theta[{i},{j}]": float(arviz().rhat(np.ascontiguousarray(theta[..., i, j])))
        for i in range(2)
        for j in range(3)
    }
    expected["mu"] = float(arviz().rhat(np.ascontiguousarray(draws["mu"].numpy())))
    rhat, where = worst_rhat(draws.variables)
    assert where == max(expected, key=expected.__getitem__)
    assert rhat == pytest.approx(max(expected.values()), rel=1e-9)


def warned(call) -> str:  # type: ignore[no-untyped-def]
    """The one line that a run says."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    assert [warning.category for warning in caught] == [SamplingWarning]
    message = str(caught[0].message)
    assert "\n" not in message and caught[0].filename == __file__
    return message


def test_chains_that_disagree_are_reported() -> None:
    """Two modes, half of the chains in each."""
    modes = Density(lambda z: -0.5 * (z.abs() - 20).square().sum(-1))
    start = torch.tensor([[20.0], [-20.0]], dtype=F64).repeat(4, 1)
    message = warned(lambda: sample(HMC(modes, 0.5, 3, jitter=0.5), start, 200, progress=False))
    assert message.startswith("R-hat is ") and "for z[0]: warm up and draw longer" in message
    assert ";" not in message


def test_a_chain_that_drifts_is_reported_even_alone() -> None:
    walk = RandomWalkMetropolis(NORMAL, 0.02)
    assert "R-hat" in warned(lambda: sample(walk, init(1), 400, progress=False))


def test_divergences_are_reported() -> None:
    """A wall that trajectories run into."""
    half = Density(lambda z: (-0.5 * z.square() + z.log()).sum(-1))
    start = init(16, 1).abs() + 0.5
    kernel = HMC(half, 0.8, 3, jitter=1.0)
    message = warned(lambda: sample(kernel, start, 600, progress=False))
    assert "diverged: raise Warmup(target_acceptance=...), take smaller steps" in message
    assert "R-hat" not in message and "E-BFMI" not in message


def test_energies_that_momenta_cannot_cover_are_reported() -> None:
    """Neal's funnel: from the neck to the mouth log γ changes by more than a momentum brings."""

    def funnel(z: torch.Tensor) -> torch.Tensor:
        neck, rest = z[..., 0], z[..., 1:]
        return -neck.square() / 18 - 4.5 * neck - 0.5 * rest.square().sum(-1) * (-neck).exp()

    found = quick(HMC(Density(funnel), 0.3, 5, jitter=1.0), 400, init=init(8, 10)).problems()
    (low,) = (problem for problem in found if problem.startswith("E-BFMI"))
    assert "below 0.3 in 8 of 8 chains: reparameterise heavy tails and funnels" in low


@pytest.mark.slow
def test_the_centred_eight_schools_cannot_be_trusted() -> None:
    """Without the coordinates that warm-up would learn."""
    kernel, plain = HMC(centred_eight_schools(), 0.1), Warmup(noncentring=False)
    message = warned(lambda: sample(kernel, init(16, 10), 150, 80, warmup=plain, progress=False))
    assert "R-hat" in message and "reparameterise" in message


@pytest.mark.parametrize("chains", [1, 8])
def test_chains_that_never_move_are_reported(chains: int) -> None:
    start = torch.zeros(chains, 3, dtype=F64)
    message = warned(lambda: sample(RandomWalkMetropolis(NORMAL, 1e6), start, 100, progress=False))
    assert message == "z[0] never moved: take smaller steps, or start elsewhere"


def test_persistent_energies_are_not_held_to_the_standard_of_fresh_ones() -> None:
    kernel = HMC(NORMAL, 0.3, 2, persistence=0.98)
    low = quick(kernel, 300, init=init(8, 20))
    assert arviz().bfmi(low.stats["energy"].numpy()).min() < 0.3
    for part in (kernel, Compose(kernel, RandomWalkMetropolis(NORMAL, 0.01))):
        found = quick(part, 300, init=init(8, 20)).problems()
        assert not any("E-BFMI" in problem for problem in found)


def test_chains_of_different_densities_need_not_agree() -> None:
    images = torch.linspace(-40.0, 40.0, 24, dtype=F64).reshape(8, 3)
    density = Density(lambda z, image: -0.5 * (z - image).square().sum(-1), images)
    sample(HMC(density, 0.5, 3, jitter=0.5), images, 400, progress=False)
    kernel = RandomWalkMetropolis(density, 0.02)
    assert "R-hat" in warned(lambda: sample(kernel, images + 5, 400, progress=False))


def test_many_short_chains_are_no_problem() -> None:
    kernel = HMC(NORMAL, 0.9, 2, jitter=1.0)
    start = torch.randn(1000, 2, dtype=F64, generator=torch.Generator().manual_seed(0))
    draws = sample(kernel, start, 400, progress=False)
    assert draws.to_arviz().posterior["z"].shape == (1000, 400, 2)


@pytest.mark.parametrize("num_samples", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("chains", [1, 2])
def test_few_draws_can_be_looked_at(num_samples: int, chains: int) -> None:
    draws = quick(HMC(NORMAL, 0.5, 3), num_samples, init=init(chains))
    assert isinstance(draws.problems(), list)
    assert draws.to_arviz().posterior["z"].shape == (chains, num_samples, 3)


def test_long_runs_are_checked_by_a_part_of_their_draws() -> None:
    """Every draw is from the same distribution: no alarm; a drift of one chain is seen still."""
    z = torch.randn(4, 40_000, 2, dtype=F64, generator=torch.Generator().manual_seed(0))
    assert problems({"z": z}, {}) == []
    z[1, :, 1] += 1.0
    assert problems({"z": z}, {})[0].endswith("for z[1]: warm up and draw longer, or check for several modes")


def test_a_target_acceptance_cures_divergences() -> None:
    half = Density(lambda z: (-0.5 * z.square() + 3 * z.log()).sum(-1))
    kernel, start = HMC(half, 0.1, 5, jitter=1.0), init(16, 2).abs() + 0.5
    few, many = (
        quick(kernel, 200, 150, init=start, warmup=Warmup(target_acceptance=target)).stats["diverged"].sum()
        for target in (0.99, 0.5)
    )
    assert few < many / 4
