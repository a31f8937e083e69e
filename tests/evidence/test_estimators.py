"""Every estimator against known evidence, and its error bar against what happens."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.distributions import Independent, Normal, kl_divergence

from hmcvi import Density, Phase
from hmcvi.evidence import Evidence, EvidenceWarning, ais, bidirectional, importance, iwae, reverse_ais
from hmcvi.kernels import (
    HMC,
    Compose,
    EllipticalSlice,
    IndependentMetropolis,
    Kernel,
    LinearSlice,
    RandomWalkMetropolis,
)
from hmcvi.kernels.mcmc.retarget import tempered
from tests.support.evidence_cases import (
    CHAINS,
    ESTIMATORS,
    Case,
    mixture_case,
    normal_case,
    normal_distribution,
    vae_case,
)
from tests.support.problems import F64, Mixture
from tests.support.statistics import Z, assert_evidence, assert_mean

over_estimators = pytest.mark.parametrize("name", ESTIMATORS)


def assert_within(evidence: Evidence, log_z: Tensor) -> None:
    """The joint estimate is within four of its own standard errors."""
    deviation = (evidence.log_z - log_z.sum()).abs() / evidence.std_error
    assert deviation < 4, f"{evidence.log_z} ± {evidence.std_error} is {deviation} errors from {log_z.sum()}"


@over_estimators
@pytest.mark.parametrize(
    "case",
    [
        pytest.param(normal_case(1, 5), id="normal in 1 dimension"),
        pytest.param(normal_case(50, 5), id="normal in 50 dimensions", marks=pytest.mark.slow),
        pytest.param(mixture_case(5), id="two modes", marks=pytest.mark.slow),
        pytest.param(vae_case(5), id="linear VAE", marks=pytest.mark.slow),
    ],
)
def test_known_evidence(name: str, case: Case) -> None:
    evidence = ESTIMATORS[name](case)
    assert_within(evidence, case.log_z)
    assert evidence.per_item.log_z.shape == evidence.per_item.ess.shape == case.log_z.shape
    torch.testing.assert_close(evidence.per_item.log_z.sum(), evidence.log_z)
    torch.testing.assert_close(evidence.per_item.std_error.square().sum().sqrt(), evidence.std_error)


@pytest.mark.slow
@over_estimators
def test_errors_are_calibrated(name: str) -> None:
    """200 repeats in 10 dimensions: their spread is the one reported, and their mean the truth."""
    case = normal_case(10, 200)
    evidence = ESTIMATORS[name](case)
    deviation, reported = evidence.per_item.log_z - case.log_z, evidence.per_item.std_error
    error = reported.square().mean().sqrt()
    ratio = deviation.square().mean().sqrt() / error
    assert 0.8 < ratio < 1.25, f"actual errors are {ratio} times those reported"
    assert deviation.mean().abs() < Z * error / 200**0.5 + error.square()  # the logarithm is not linear
    if name != "reverse ais":  # which ends in the base
        assert_expectations(evidence)


def assert_expectations(evidence: Evidence) -> None:
    """Means and second moments under the target, averaged over repeats."""
    moments = evidence.expectation(lambda z: torch.stack([z, z**2], -1))
    exact = normal_distribution(10)
    truth = torch.stack([exact.mean, exact.variance + exact.mean**2], -1)
    mean, error = moments.mean(0), moments.std(0) / 200**0.5
    # a ratio of averages is biased by about the variance of one repeat
    assert ((mean - truth).abs() < Z * error + 0.3 * moments.var(0)).all()


def test_one_temperature_is_importance_sampling() -> None:
    case = normal_case(3, 4)
    annealed = ais(case.base, case.target, num_temperatures=1, num_chains=50, seed=3)
    plain = importance(case.base, case.target, num_samples=50, seed=3)
    assert torch.equal(annealed.log_weight, plain.log_weight)
    assert torch.equal(annealed.position, plain.position)
    assert torch.equal(annealed.log_z, plain.log_z)


def test_one_sample_of_the_iwae_bound_is_the_elbo() -> None:
    case = normal_case(4, 200)
    bound = iwae(case.base, case.target, num_samples=1, num_repeats=40)
    elbo = case.log_z - kl_divergence(case.base, normal_distribution(4))
    assert_mean(bound.per_item.log_z, elbo[0])
    ratio = (bound.per_item.log_z - elbo).std() / bound.per_item.std_error.square().mean().sqrt()
    assert 0.8 < ratio < 1.25


def test_the_iwae_bound_rises_to_the_evidence() -> None:
    case = normal_case(10, 50)
    bounds = [iwae(case.base, case.target, k, num_repeats=20).per_item.log_z.mean() for k in (1, 5, 50)]
    assert bounds[0] < bounds[1] < bounds[2] < case.log_z[0]
    single = iwae(case.base, case.target, num_samples=100, seed=1)
    assert torch.equal(single.log_z, importance(case.base, case.target, 100, seed=1).log_z)


def persistent(density: Density) -> Kernel:
    return HMC(density, 0.3, 1, persistence=0.8)


def composed(density: Density) -> Kernel:
    return Compose(HMC(density, 0.5, 1), LinearSlice(density, 2.0))


WIDE = torch.distributions.MultivariateNormal(torch.zeros(2, dtype=F64), 4 * torch.eye(2, dtype=F64))
KERNELS = {
    "default": None,
    "persistent": persistent,
    "walk": lambda density: RandomWalkMetropolis(density, 1.0),
    "slice": lambda density: LinearSlice(density, 2.0),
    "ellipse": lambda density: EllipticalSlice(density, 0.0, 4.0),
    "independent": lambda density: IndependentMetropolis(density, WIDE),
}


@pytest.mark.parametrize("kernel", [*KERNELS, "composed"])
def test_the_mean_weight_is_the_evidence(kernel: str) -> None:
    """Of Z, not of log Z, with few and uneven temperatures: E[w] = Z."""
    problem, betas = Mixture(), torch.tensor([0.0, 0.1, 0.5, 1.0])
    make = {**KERNELS, "composed": composed}[kernel]
    base = Independent(Normal(torch.zeros(2, dtype=F64), problem.base_scale), 1)
    evidence = ais(base, problem.density, None, 10_000, make, betas, progress=False)
    assert_evidence(evidence.log_weight, problem.log_evidence)


@pytest.mark.parametrize("kernel", KERNELS)
def test_the_mean_inverse_weight_is_the_inverse_evidence(kernel: str) -> None:
    """Backwards from exact draws, the base narrower so that 1/w has a variance."""
    torch.manual_seed(0)
    problem, betas = Mixture(), torch.tensor([0.0, 0.3, 0.8, 1.0])
    base = torch.distributions.MultivariateNormal(
        torch.tensor([-0.3, 0.1], dtype=F64), 0.3 * torch.eye(2, dtype=F64)
    )
    evidence = reverse_ais(
        base, problem.density, problem.draw(10_000), None, 10_000, KERNELS[kernel], betas, progress=False
    )
    assert evidence.ess > 1000
    assert (evidence.log_z - problem.log_evidence).abs() < Z * evidence.std_error


def test_the_sandwich_brackets() -> None:
    """From a single exact draw per item, wide apart at few temperatures, closer with more."""
    case, gaps = normal_case(10, 200), []
    for count in (3, 20):
        both = bidirectional(case.base, case.target, case.exact[0], count, 4, progress=False).diagnostics
        for bound, sign in ((both["lower"], 1), (both["upper"], -1)):
            assert sign * (bound.mean() - case.log_z[0]) < Z * bound.std() / 200**0.5
        torch.testing.assert_close(both["gap"], both["upper"] - both["lower"])
        gaps.append((both["gap"].mean(), both["gap"].std() / 200**0.5))
    (wide, error), (close, close_error) = gaps
    assert wide > Z * error and close < wide / 2 + Z * close_error


def test_a_narrow_base_is_reported_with_its_ess() -> None:
    base = Independent(Normal(torch.zeros(20, dtype=F64), 0.3), 1)
    target = Density(lambda z: -0.5 * z.square().sum(-1))
    with pytest.warns(EvidenceWarning, match=r"only .* of 500 samples are effective.*narrower"):
        importance(base, target, 500)
    with pytest.warns(EvidenceWarning, match="of 16 samples"):
        ais(base, target, 2, 16, progress=False)


def test_the_seed_decides() -> None:
    case = normal_case(2, 3)
    before = torch.get_rng_state()
    runs = [ais(case.base, case.target, 5, 4, seed=seed, progress=False).per_item.log_z for seed in (1, 1, 2)]
    assert torch.equal(before, torch.get_rng_state())
    assert torch.equal(runs[0], runs[1]) and not torch.equal(runs[0], runs[2])


def test_a_chain_that_leaves_the_support_has_weight_zero() -> None:
    """Half of the base is outside: Z is that of the half inside."""

    def half(z: Tensor) -> Tensor:
        return (-0.5 * z.square().sum(-1)).where(z[..., 0] > 0, -torch.inf)

    base = Independent(Normal(torch.zeros(1, dtype=F64), 1.5), 1)
    evidence = ais(base, Density(half), 6, 4000, progress=False)
    assert evidence.log_weight.isinf().any() and not evidence.log_weight.isnan().any()
    assert (evidence.log_z - 0.5 * torch.tensor(torch.pi / 2).log()).abs() < Z * evidence.std_error


def test_no_force_is_computed_twice() -> None:
    """K − 1 transitions of L steps: L gradients each, whatever the temperature does."""
    calls = []

    def log_prob(z: Tensor) -> Tensor:
        calls.append(z.requires_grad)
        return -0.5 * z.square().sum(-1)

    base = Independent(Normal(torch.zeros(2, dtype=F64), 1.5), 1)
    target = Density(log_prob, base=Density(lambda z: base.log_prob(z)))
    kernel = HMC(target, 0.3, 4)
    state = kernel.init(base.sample((CHAINS,)))
    calls.clear()
    for beta in torch.linspace(0, 1, 6):
        state, _ = tempered(kernel, beta).step(Phase(*state))
    assert calls == [True] * 6 * 4
