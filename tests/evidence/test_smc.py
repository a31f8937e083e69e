"""Sequential Monte Carlo: unbiased where nothing is learned, its limits, its parts, what it refuses."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.distributions import Categorical, Independent, MixtureSameFamily, MultivariateNormal, Normal

from hmcvi import Density, Phase
from hmcvi.evidence import EvidenceWarning, ais, importance, smc
from hmcvi.evidence.cloud import Cloud, CloudTuning
from hmcvi.evidence.resampling import conditional_ess, next_step, shares, systematic
from hmcvi.kernels import HMC, EllipticalSlice, Kernel, LinearSlice, RandomWalkMetropolis
from tests.support.evidence_cases import normal_case
from tests.support.problems import F64, Mixture
from tests.support.statistics import Z, assert_evidence, assert_mean

BETAS = torch.tensor([0.0, 0.1, 0.5, 1.0])
KERNELS = {
    "hmc": lambda density: HMC(density, 0.6, 2),
    "persistent": lambda density: HMC(density, 0.5, 1, persistence=0.6),
    "walk": lambda density: RandomWalkMetropolis(density, 1.0),
    "slice": lambda density: LinearSlice(density, 2.0),
    "ellipse": lambda density: EllipticalSlice(density, 0.0, 4.0),
}


def mixture_base(items: int) -> Independent:
    return Independent(Normal(torch.zeros(items, 2, dtype=F64), Mixture().base_scale), 1)


@pytest.mark.parametrize("waste_free", [True, False], ids=["waste-free", "last state"])
@pytest.mark.parametrize("kernel", KERNELS)
def test_the_mean_estimate_is_the_evidence(kernel: str, waste_free: bool) -> None:
    """Of Z, not of log Z: E[Ẑ] = Z with few particles, as long as nothing is learned from them."""
    problem = Mixture()
    evidence = smc(
        mixture_base(10_000),
        problem.density,
        num_particles=8,
        num_islands=2,
        num_moves=1,
        waste_free=waste_free,
        kernel=KERNELS[kernel],
        schedule=BETAS,
        tune=False,
        progress=False,
    )
    assert_evidence(evidence.per_item.log_z, problem.log_evidence)


def test_one_temperature_is_importance_sampling() -> None:
    case = normal_case(3, 4)
    sequential = smc(case.base, case.target, 48, schedule=torch.tensor([0.0, 1.0]), seed=3, progress=False)
    plain = importance(case.base, case.target, num_samples=48, seed=3)
    torch.testing.assert_close(sequential.per_item.log_z, plain.per_item.log_z)
    torch.testing.assert_close(sequential.per_item.ess, plain.per_item.ess)
    torch.testing.assert_close(sequential.diagnostics["pareto_k"], plain.diagnostics["pareto_k"])


def test_without_resampling_it_is_annealed_importance_sampling() -> None:
    """The same random numbers, the same moves: the same estimate."""
    case = normal_case(2, 3)
    betas = torch.linspace(0, 1, 5, dtype=F64)

    def kernel(density: Density) -> Kernel:
        return LinearSlice(density, 2.0)

    options = {"kernel": kernel, "schedule": betas, "seed": 5, "progress": False}
    sequential = smc(
        case.base,
        case.target,
        24,
        num_moves=1,
        waste_free=False,
        resample_below=1e-9,
        tune=False,
        **options,
    )
    annealed = ais(case.base, case.target, num_chains=24, **options)
    torch.testing.assert_close(sequential.per_item.log_z, annealed.per_item.log_z)
    torch.testing.assert_close(sequential.per_item.ess, annealed.per_item.ess)


SKEWED = MixtureSameFamily(
    Categorical(torch.tensor([0.7, 0.3], dtype=F64)),
    MultivariateNormal(torch.tensor([[-1.0, 0.0], [1.5, 1.0]], dtype=F64), torch.eye(2, dtype=F64) * 0.5),
)


@pytest.mark.parametrize("waste_free", [True, False], ids=["waste-free", "last state"])
def test_particles_that_start_right_stay_right(waste_free: bool) -> None:
    """From a base that is the target: Z without error, and draws of it after moves at every temperature."""
    base = SKEWED.expand((400,))
    evidence = smc(
        base,
        Density(lambda z: SKEWED.log_prob(z) + 2.5),
        64,
        waste_free=waste_free,
        schedule=BETAS,
        progress=False,
    )
    torch.testing.assert_close(evidence.per_item.log_z, torch.full((400,), 2.5, dtype=F64))
    assert (evidence.per_item.std_error < 1e-6).all()
    z = evidence.position
    assert z is not None
    third = (z - SKEWED.mean) ** 3
    exact = SKEWED.sample((1_000_000,))
    truth = ((exact - SKEWED.mean) ** 3).mean(0)
    assert_mean(z.mean(0), SKEWED.mean)
    assert_mean((z**2).mean(0), SKEWED.variance + SKEWED.mean**2)
    assert_mean(third.mean(0), truth)


def test_draws_are_of_the_target() -> None:
    """Equally weighted, from both modes in the right proportion; a repeat is a data item."""
    problem, items = Mixture(), 400
    evidence = smc(mixture_base(items), problem.density, 256, progress=False)
    assert evidence.position is not None and evidence.log_weight is not None
    assert evidence.position.shape == (256, items, 2) and not evidence.log_weight.any()
    torch.manual_seed(1)
    exact = problem.draw(200_000)
    means, truth = evidence.position.mean(0), exact.mean(0)
    assert ((means.mean(0) - truth).abs() < Z * means.std(0) / items**0.5 + 0.3 * means.var(0)).all()


@pytest.mark.parametrize("kernel", ["default", "walk", "slice"])
@pytest.mark.parametrize("mass", ["diagonal", "dense", "fixed"])
def test_tuned_kernels_find_the_evidence(kernel: str, mass: str) -> None:
    case = normal_case(3, 50)
    evidence = smc(case.base, case.target, 128, kernel=KERNELS.get(kernel), mass=mass, progress=False)
    deviation = evidence.per_item.log_z - case.log_z
    assert (evidence.log_z - case.log_z.sum()).abs() < 4 * evidence.std_error
    assert 0.6 < deviation.square().mean().sqrt() / evidence.per_item.std_error.square().mean().sqrt() < 1.6


def test_a_wrong_step_size_is_mended_on_the_way() -> None:
    case = normal_case(5, 1)
    for step_size in (1e-3, 30.0):
        evidence = smc(
            case.base,
            case.target,
            kernel=lambda density, step=step_size: RandomWalkMetropolis(density, step),
            schedule=torch.linspace(0, 1, 20),
            progress=False,
        )
        assert 0.1 < evidence.diagnostics["acceptance_rate"][-5:].mean() < 0.4


def test_every_item_has_its_own_temperatures() -> None:
    """The further the target, the more of them; items that are done wait for the others."""
    scale = torch.tensor([1.0, 0.1, 0.01], dtype=F64)[:, None]
    base = Independent(Normal(torch.zeros(3, 2, dtype=F64), 1.2), 1)
    target = Density(lambda z: -0.5 * (z / scale).square().sum(-1))
    evidence = smc(base, target, progress=False)
    log_z = math.log(2 * math.pi) + 2 * scale[:, 0].log()
    assert ((evidence.per_item.log_z - log_z).abs() < 4 * evidence.per_item.std_error).all()
    betas = evidence.diagnostics["betas"]
    assert (betas[0] == 0).all() and (betas[-1] == 1).all() and (betas.diff(dim=0) >= 0).all()
    steps = (betas < 1).sum(0)
    assert steps[0] < steps[1] < steps[2]


def test_half_of_the_base_outside_the_support() -> None:
    def half(z: Tensor) -> Tensor:
        return (-0.5 * z.square().sum(-1)).where(z[..., 0] > 0, -torch.inf)

    base = Independent(Normal(torch.zeros(1, dtype=F64), 1.5), 1)
    evidence = smc(base, Density(half), 4096, progress=False)
    assert (evidence.log_z - 0.5 * math.log(math.pi / 2)).abs() < Z * evidence.std_error
    assert evidence.position is not None and (evidence.position > 0).all()


@pytest.mark.filterwarnings("ignore::hmcvi.evidence.EvidenceWarning")
def test_nothing_inside_the_support_is_no_evidence() -> None:
    base = Independent(Normal(torch.zeros(1, dtype=F64), 1.0), 1)
    target = Density(lambda z: (0.0 * z.sum(-1)).where(z[..., 0] > 100, -torch.inf))
    assert smc(base, target, progress=False).log_z == -math.inf


def test_the_seed_decides() -> None:
    case = normal_case(2, 3)
    before = torch.get_rng_state()
    runs = [smc(case.base, case.target, 64, seed=seed, progress=False).per_item.log_z for seed in (1, 1, 2)]
    assert torch.equal(before, torch.get_rng_state())
    assert torch.equal(runs[0], runs[1]) and not torch.equal(runs[0], runs[2])


def test_single_precision() -> None:
    base = Independent(Normal(torch.zeros(2, 3), 1.5), 1)
    evidence = smc(base, Density(lambda z: -0.5 * z.square().sum(-1)), mass="dense", progress=False)
    assert evidence.position is not None and evidence.position.dtype == torch.float32
    assert (evidence.log_z - 3 * math.log(2 * math.pi)).abs() < 4 * evidence.std_error


def test_one_island_leaves_the_error_unknown() -> None:
    case = normal_case(2, 1)
    assert smc(case.base, case.target, num_islands=1, progress=False).std_error.isnan()


def test_a_base_far_too_narrow_is_reported() -> None:
    base = Independent(Normal(torch.zeros(2, dtype=F64), 0.1), 1)
    target = Density(lambda z: -0.5 * ((z - 40) / 0.1).square().sum(-1))
    with pytest.warns(EvidenceWarning, match="samples are effective"):
        smc(base, target, schedule=torch.tensor([0.0, 1.0]), progress=False)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_particles": 8}, "num_particles must be"),
        ({"num_islands": 0}, "num_islands must be"),
        ({"num_moves": 0}, "num_moves must be"),
        ({"conditional_ess": 1.0}, "conditional_ess is a share"),
        ({"resample_below": 0.0}, "resample_below is a share"),
        ({"schedule": "sigmoidal"}, "schedule must be 'adaptive'"),
        ({"schedule": torch.tensor([0.0, 0.5])}, "0 = β_0"),
        ({"mass": "full"}, "mass must be"),
    ],
)
def test_what_is_refused(options: dict[str, object], message: str) -> None:
    case = normal_case(1, 1)
    with pytest.raises(ValueError, match=message):
        smc(case.base, case.target, progress=False, **options)  # type: ignore[arg-type]


def test_systematic_resampling_is_unbiased_and_even() -> None:
    """Each particle ⌊n w⌋ or ⌈n w⌉ times, n w on average; none of weight zero."""
    log_weight = torch.tensor([0.0, 1.0, -math.inf, 2.0, -1.0], dtype=F64)[None, :, None].expand(2, 5, 5000)
    index = systematic(log_weight, 7, torch.Generator().manual_seed(0))
    counts = (index[..., None] == torch.arange(5)).sum(1).double()  # [2, 5000, 5]
    expected = 7 * log_weight[0, :, 0].softmax(0)
    assert ((counts >= expected.floor()) & (counts <= expected.ceil())).all()
    error = counts.flatten(0, 1).std(0) / 10_000**0.5
    assert ((counts.mean((0, 1)) - expected).abs() <= Z * error).all()


def test_the_conditional_ess_of_normal_gaps() -> None:
    """CESS = e^{−δ²} for gaps ~ N(m, 1) of equally weighted particles, so that δ = √−log CESS."""
    gap = 3 + torch.randn(4, 50_000, 2, dtype=F64, generator=torch.Generator().manual_seed(0))
    share = shares(torch.zeros_like(gap)) / 4
    left = torch.tensor([1.0, 0.1], dtype=F64)
    step = next_step(share, gap, left, 0.7)
    assert (step[0] - math.sqrt(-math.log(0.7))).abs() < 0.01 and step[1] == left[1]
    assert (conditional_ess(share, step * gap)[0] - 0.7).abs() < 1e-3


def test_the_conditional_ess_of_two_particles() -> None:
    """(Σ W v)² / Σ W v² by hand, one particle outside the support."""
    share = torch.tensor([[0.25, 0.75, 0.0]], dtype=F64)
    value = conditional_ess(share, torch.tensor([2.0, 1.0, 700.0], dtype=F64).log()[None])
    torch.testing.assert_close(value, torch.tensor(1.25**2 / 1.75, dtype=F64))
    gap = torch.tensor([[0.0, -1e5, -math.inf]], dtype=F64)
    step = next_step(torch.full((1, 3), 1 / 3, dtype=F64), gap, torch.tensor(1.0, dtype=F64), 0.8)
    v = torch.tensor([1.0, float((step * gap[0, 1]).exp())], dtype=F64)
    assert (v.mean() ** 2 / v.square().mean() - 0.8).abs() < 1e-3


def test_mass_is_that_of_the_cloud() -> None:
    """M⁻¹ is the covariance of weighted particles, whole or its diagonal; for each island, of the others."""
    root = torch.tensor([[1.0, 0.0, 0.0], [0.8, 0.3, 0.0], [-2.0, 1.0, 3.0]], dtype=F64)
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(2, 100_000, 3, dtype=F64, generator=generator)
    position = 1.5 * noise @ root.T  # weighted to unit scale below
    cloud = Cloud(Phase(position), -0.5 * noise.square().sum(-1) * (1.5**2 - 1), torch.zeros(2, dtype=F64))
    covariance = root @ root.T
    for mass, exact in (("dense", covariance), ("diagonal", covariance.diagonal().diag())):
        tuning = CloudTuning(HMC(Density(lambda z: z.sum(-1)), 0.1), mass)
        tuning.observe(cloud)
        kernel = tuning.kernel()
        assert isinstance(kernel, HMC)
        found = kernel.metric.velocity(torch.eye(3, dtype=F64))
        torch.testing.assert_close(found, exact.expand(2, 3, 3), rtol=0.05, atol=0.05)


def test_the_mass_of_an_island_knows_nothing_of_its_particles() -> None:
    position = torch.randn(4, 50, 2, dtype=F64, generator=torch.Generator().manual_seed(0))
    metrics = []
    for island in (position[0], 10 * position[0]):
        cloud = Cloud(Phase(torch.cat([island[None], position[1:]])), torch.zeros(4, 50), torch.zeros(4))
        tuning = CloudTuning(HMC(Density(lambda z: z.sum(-1)), 0.1), "diagonal")
        tuning.observe(cloud)
        kernel = tuning.kernel()
        assert isinstance(kernel, HMC)
        metrics.append(kernel.metric.color(torch.ones(2, dtype=F64))[:, 0])
    assert torch.equal(metrics[0][0], metrics[1][0])
    assert (metrics[0][1:] > 2 * metrics[1][1:]).all()
