"""R-hat and effective sample sizes, against ArviZ and against chains of known autocorrelation."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from hmcvi import Density, sample
from hmcvi.kernels import HMC, RandomWalkMetropolis
from hmcvi.sampling import SamplingWarning
from hmcvi.sampling.convergence import bfmi, bulk_ess, nested_rhat, rhat, tail_ess
from hmcvi.sampling.diagnostics import arviz, problems, worst_nested_rhat
from tests.support.problems import F64
from tests.support.sampling_runs import quick

NORMAL = Density(lambda z: -0.5 * z.square().sum(-1))


def autoregression(chains: int, draws: int, memory: float, dim: int = 3, seed: int = 0) -> Tensor:
    """z_t = φ z_{t−1} + √(1−φ²) n, from N(0, 1).  [chains, draws, dim]"""
    noise = torch.randn(chains, draws, dim, dtype=F64, generator=torch.Generator().manual_seed(seed))
    z = noise.clone()
    for t in range(1, draws):
        z[:, t] = memory * z[:, t - 1] + math.sqrt(1 - memory**2) * noise[:, t]
    return z


def by_arviz(z: Tensor, function: str, **options: Any) -> Tensor:
    columns = [np.ascontiguousarray(z[..., i].numpy()) for i in range(z.shape[-1])]
    return torch.tensor([float(getattr(arviz(), function)(column, **options)) for column in columns])


@pytest.mark.parametrize(("chains", "draws", "memory"), [(4, 100, 0.0), (8, 51, 0.5), (2, 1000, 0.9)])
def test_rhat_is_that_of_arviz(chains: int, draws: int, memory: float) -> None:
    z = autoregression(chains, draws, memory)
    z[..., 1] = z[..., 1].round()  # many equal values
    z[..., 2] += 0.3 * torch.arange(chains)[:, None]
    torch.testing.assert_close(rhat(z), by_arviz(z, "rhat").double(), rtol=1e-6, atol=0)


@pytest.mark.parametrize("memory", [0.0, 0.5, 0.95])
def test_effective_draws_are_those_of_arviz(memory: float) -> None:
    z = autoregression(4, 1000, memory)
    z[..., 1] = z[..., 1].round()
    torch.testing.assert_close(bulk_ess(z), by_arviz(z, "ess").double(), rtol=0.02, atol=0)
    torch.testing.assert_close(
        tail_ess(z), by_arviz(z, "ess", method="tail", prob=(0.05, 0.95)).double(), rtol=0.02, atol=0
    )


@pytest.mark.parametrize("memory", [0.0, 0.5, 0.9])
def test_effective_draws_of_an_autoregression(memory: float) -> None:
    """S (1 − φ) / (1 + φ)"""
    z = autoregression(8, 2000, memory, dim=20)
    expected = 16_000 * (1 - memory) / (1 + memory)
    assert (bulk_ess(z).mean() / expected - 1).abs() < 0.1


def test_energies_are_judged_as_by_arviz() -> None:
    energy = autoregression(5, 200, 0.8, dim=1)[..., 0]
    torch.testing.assert_close(bfmi(energy), torch.from_numpy(arviz().bfmi(energy.numpy())))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_everything_is_computed_in_double_precision(dtype: torch.dtype) -> None:
    z = autoregression(4, 200, 0.5).to(dtype)
    for function in (rhat, bulk_ess, tail_ess):
        assert torch.equal(function(z), function(z.double())) and function(z).dtype == F64


def test_nested_rhat_of_one_chain_in_each_group_is_the_plain_one() -> None:
    """√(1 + B/W), with B the variance of means and W that within chains."""
    z = autoregression(6, 50, 0.5)
    expected = (1 + z.mean(1).var(0) / z.var(1).mean(0)).sqrt()
    torch.testing.assert_close(nested_rhat(z, 6), expected)


def test_nested_rhat_needs_no_long_chains() -> None:
    """One draw of each of 4096 chains: of the target, or of what superchains began with."""
    z = autoregression(4096, 1, 0.0)
    assert (nested_rhat(z, 8) < 1.01).all()
    shifted = z + torch.arange(8).repeat_interleave(512)[:, None, None]
    assert (nested_rhat(shifted, 8) > 2).all()
    assert (nested_rhat(autoregression(4096, 5, 0.95), 8) < 1.01).all()
    assert (rhat(autoregression(4096, 5, 0.95)) > 1.5).all()  # which cannot know
    with pytest.raises(ValueError, match="10 chains cannot be divided into 4 groups"):
        nested_rhat(z[:10], 4)


def test_many_short_chains_are_judged_by_what_they_remember() -> None:
    """Chains of 20 slow draws: fine from exact draws, an alarm from starts that are not forgotten."""
    walk = RandomWalkMetropolis(NORMAL, 0.5)
    exact = torch.randn(1024, 2, dtype=F64, generator=torch.Generator().manual_seed(0))
    wide = 5 * exact
    fine = quick(walk, 20, 100, init=exact)
    assert fine.problems() == [] and (rhat(fine.position) > 1.1).all()
    (found,) = quick(RandomWalkMetropolis(NORMAL, 0.1), 20, init=wide).problems()
    assert found.startswith("nested R-hat is ") and "warm up longer" in found


def test_groups_are_chains_that_began_together() -> None:
    """In the order of their starts, however they are given."""
    start = torch.arange(8.0, dtype=F64).repeat(16)[:, None]
    z = start[:, None] + 0.1 * autoregression(128, 20, 0.0, dim=1)
    worst, where = worst_nested_rhat({"mu": z}, {"mu": start})
    by_hand = nested_rhat(z[start[:, 0].argsort(stable=True)], 8)
    assert where == "mu[0]" and worst == pytest.approx(float(by_hand[0]))


def test_stuck_chains_are_named_and_left_out() -> None:
    z = autoregression(16, 200, 0.0)
    assert problems({"z": z}, {}) == []
    z[[3, 7]] = z[[3, 7], :1]
    assert problems({"z": z}, {}) == ["chains 3, 7 of 16 never moved: take smaller steps, or start elsewhere"]


def test_a_stuck_chain_is_named_by_a_run() -> None:
    """One chain begins on a spike that no step finds again."""

    def spiked(z: Tensor) -> Tensor:
        return torch.where((z - 5).abs().amax(-1) < 1e-6, 1e4, -0.5 * z.square().sum(-1))

    init = torch.randn(4, 2, dtype=F64, generator=torch.Generator().manual_seed(0))
    init[2] = 5.0
    with pytest.warns(SamplingWarning, match="^chain 2 of 4 never moved"):
        sample(RandomWalkMetropolis(Density(spiked), 2.0), init, 400, progress=False)


def test_few_effective_draws_of_the_tails_are_reported() -> None:
    """Chains that agree, whose extreme values come in two long spells."""
    z = autoregression(2, 800, 0.0, dim=1)
    z[:, 100:122] += 6.0
    z[:, 500:522] += 6.0
    assert float(rhat(z)) < 1.01 and float(tail_ess(z)) < 100 < float(bulk_ess(z))
    (found,) = problems({"z": z}, {})
    assert found.startswith("tail ESS is ") and "for z[0]: its quantiles are uncertain" in found


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_runs_in_half_precision_end_with_diagnostics(dtype: torch.dtype) -> None:
    draws = quick(HMC(NORMAL, 0.5, 3), 100, init=torch.zeros(4, 2, dtype=dtype))
    assert draws.position.dtype == dtype
    assert isinstance(draws.problems(), list)
    assert draws.to_arviz().posterior["z"].dtype == np.float64
    assert len(draws.summary()) == 2
