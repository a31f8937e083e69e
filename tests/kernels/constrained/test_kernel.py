"""Constrained HMC keeps exact draws exact, rejects chains one by one, and runs like any other kernel."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path

import pytest
import torch
from torch import Tensor

import hmcvi
from hmcvi import Phase
from hmcvi.adaptation.tunable import shortest
from hmcvi.kernels import ConstrainedHMC
from hmcvi.kernels.mcmc.retarget import conditional, retarget
from hmcvi.models import Generator
from hmcvi.models.inputs import Normal
from tests.contracts.kernels import run
from tests.support.manifolds import (
    GENERATORS,
    Curve,
    LinearNormal,
    ellipse,
    hyperbola,
    prior_uniforms,
    regression,
    series,
    wave,
)
from tests.support.problems import F64
from tests.support.statistics import assert_independent, assert_uniform

OBSERVED = torch.tensor([0.5, -0.8, 1.2], dtype=F64)


def share(reports: list[dict], name: str) -> float:
    return float(torch.stack([report[name] for report in reports]).double().mean())


@pytest.mark.parametrize("structure", ["dense", "elementwise", "autoregressive"])
def test_keeps_a_normal_conditional(structure: str) -> None:
    torch.manual_seed(0)
    model = LinearNormal(structure)
    kernel = ConstrainedHMC(model.generator, OBSERVED, 1.2, 2)
    end, reports = run(kernel, kernel.init(model.draw(10_000, OBSERVED)), 3)
    assert_uniform(uniforms := model.uniforms(end.position[:, :2], OBSERVED))
    assert_independent(uniforms)
    assert 0.1 < share(reports, "accepted") < 0.95
    assert (model.generator.observed(end.position) - OBSERVED).abs().max() < 1e-8


@pytest.mark.slow
@pytest.mark.parametrize("name", GENERATORS)
def test_every_chain_keeps_its_own_posterior(name: str) -> None:
    """Inputs are exact draws from the posterior of what they generate, and marginally from their prior.

    Chains that mix observations up, or miss the volume in the density, do not come back to the prior.
    """
    torch.manual_seed(0)
    generator = GENERATORS[name]
    inputs = generator.sample(10_000)
    observed = generator.observed(inputs)
    kernel = ConstrainedHMC(generator, observed, 0.9, 2)
    end, reports = run(kernel, kernel.init(inputs), 3)
    assert (generator.residual(end.position, observed).abs() < kernel.tolerance).all()
    assert 0.1 < share(reports, "accepted") < 0.98
    assert_uniform(uniforms := prior_uniforms(generator, end.position))
    assert_independent(uniforms)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("curve", "step_size"),
    [
        pytest.param(ellipse(), 0.4, id="ellipse"),
        pytest.param(ellipse(), 0.9, id="ellipse, long steps"),
        pytest.param(hyperbola(), 1.0, id="hyperbola"),
        pytest.param(wave(), 1.0, id="wave"),
    ],
)
def test_keeps_the_density_of_a_curve(curve: Curve, step_size: float) -> None:
    """With steps so long that many projections fail, or do not come back."""
    torch.manual_seed(0)
    kernel = ConstrainedHMC(curve.generator, torch.zeros(1, dtype=F64), step_size, 2)
    start = kernel.init(curve.draw(20_000))
    end, reports = run(kernel, start, 4)
    assert share(reports, "num_failed_projections") > 0.02
    assert ((end.position - start.position).norm(dim=-1) > 0.1).double().mean() > 0.2
    assert_uniform(curve.uniform(end.position))


def test_without_looking_back_the_density_is_lost() -> None:
    """The same run without its check: what the test above would say."""
    torch.manual_seed(0)
    curve = wave()
    kernel = ConstrainedHMC(curve.generator, torch.zeros(1, dtype=F64), 1.0, 2, reversibility_check=False)
    end, _ = run(kernel, kernel.init(curve.draw(20_000)), 4)
    with pytest.raises(AssertionError, match="standard errors from uniform"):
        assert_uniform(curve.uniform(end.position))


@pytest.mark.parametrize("name", GENERATORS)
def test_a_chain_that_fails_fails_alone(name: str) -> None:
    """One chain has a step no projection can bring back: it stays, and the others do what they would have."""
    generator = GENERATORS[name]
    inputs = generator.sample(8, generator=torch.Generator().manual_seed(0))
    observed = generator.observed(inputs)
    sizes = torch.full((8, 1), 0.3, dtype=F64)
    hurt = sizes.clone()
    hurt[3] = 1e8
    ends = []
    for step_size in (sizes, hurt):
        kernel = ConstrainedHMC(generator, observed, step_size, 3)
        ends.append(kernel.step(kernel.init(inputs), torch.Generator().manual_seed(1)))
    (well, well_info), (end, info) = ends
    others = torch.arange(8) != 3
    assert torch.equal(end.position[3], inputs[3]) and not info["accepted"][3]
    assert info["acceptance_rate"][3] == 0 and info["num_failed_projections"][3] == 1
    torch.testing.assert_close(end.position[others], well.position[others], rtol=0, atol=1e-12)
    for key in ("accepted", "num_residuals", "diverged"):
        assert torch.equal(info[key][others], well_info[key][others]), key


@pytest.mark.parametrize("generator", [series("conditional"), regression("dense")], ids=["series", "dense"])
def test_finds_its_own_beginning(generator: Generator) -> None:
    observed = generator.observed(generator.sample(5, generator=torch.Generator().manual_seed(3)))
    kernel = ConstrainedHMC(generator, observed, 0.2, 2)
    start = kernel.find_initial(5, seed=1)
    assert (generator.observed(start) - observed).abs().max() < 1e-7
    assert kernel.init(start).log_prob.isfinite().all()
    assert torch.equal(start, kernel.find_initial(5, seed=1))
    assert not torch.equal(start, kernel.find_initial(5, seed=2))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::hmcvi.sampling.SamplingWarning")  # of runs this short
def test_draws_like_any_kernel(tmp_path: Path) -> None:
    """Warm-up finds the step size; saved, loaded and resumed draws are those of one long run."""
    model = LinearNormal("elementwise")
    kernel = ConstrainedHMC(model.generator, OBSERVED, 0.05, 2)
    start = kernel.find_initial(40)
    whole = hmcvi.sample(kernel, start, num_samples=30, num_warmup=40, seed=2, progress=False)
    short = hmcvi.sample(kernel, start, num_samples=10, num_warmup=40, seed=2, progress=False)
    short.save(tmp_path / "draws.pt")
    loaded = hmcvi.sampling.Draws.load(tmp_path / "draws.pt", kernel)
    assert torch.equal(loaded.resume(20, progress=False).position, whole.position)
    assert whole.kernel is not None and whole.kernel.step_size > 0.1
    rate = whole.stats["acceptance_rate"].mean()
    assert 0.65 < rate < 0.95, rate
    assert (model.generator.observed(whole.position) - OBSERVED).abs().max() < 1e-8
    assert whole.variables["z"].shape == (40, 30, 2)


def test_leading_dimensions_are_chains() -> None:
    generator = regression()
    inputs = generator.sample(6, generator=torch.Generator().manual_seed(0))
    kernel = ConstrainedHMC(generator, generator.observed(inputs), 0.3, 2)
    flat, info = kernel.step(kernel.init(inputs), torch.Generator().manual_seed(1))
    deep, deep_info = kernel.step(kernel.init(inputs.view(2, 3, -1)), torch.Generator().manual_seed(1))
    assert torch.equal(deep.position, flat.position.view(2, 3, -1))
    assert torch.equal(deep_info["energy"], info["energy"].view(2, 3))
    one = ConstrainedHMC(generator, generator.observed(inputs[0]), 0.3, 2)
    state, _ = one.step(one.init(inputs[0]), torch.Generator().manual_seed(1))
    assert state.position.shape == (5,) and state.log_prob.shape == ()


def test_positions_remember_what_belongs_to_them() -> None:
    """log π and its gradient, carried on, are those of the new position; a bare position does as well."""
    generator = regression()
    kernel = ConstrainedHMC(generator, generator.observed(torch.zeros(5, dtype=F64)), 0.8, 3)
    start = kernel.init(kernel.find_initial(50))
    end, _ = run(kernel, start, 3)
    again = kernel.init(end.position)
    torch.testing.assert_close(end.log_prob, again.log_prob)
    torch.testing.assert_close(end.grad, again.grad)
    bare, _ = kernel.step(Phase(start.position), torch.Generator().manual_seed(1000))
    assert torch.equal(bare.position, run(kernel, start, 1)[0].position)


def test_settings_are_what_they_seem() -> None:
    kernel = ConstrainedHMC(regression(), OBSERVED, 0.1, 3)
    assert kernel.replace(tolerance=1e-5, max_iterations=7).project.tolerance == 1e-5
    assert kernel.replace(max_iterations=7).project.max_iterations == 7
    assert shortest(kernel).num_steps == 1 and kernel.num_steps == 3
    assert torch.equal(kernel.observed, OBSERVED) and kernel.density is kernel.generator.density


def refused(message: str) -> AbstractContextManager:
    return pytest.raises(ValueError, match=message)


def test_bad_settings_are_refused() -> None:
    generator = regression()
    for settings in ({"num_steps": 0}, {"num_geodesic": 0}, {"max_iterations": 0}):
        with refused(f"{next(iter(settings))} must be at least 1, got 0"):
            ConstrainedHMC(generator, OBSERVED, **{"step_size": 0.1, "num_steps": 1, **settings})
        with refused(f"{next(iter(settings))} must be at least 1, got 0"):
            ConstrainedHMC(generator, OBSERVED, 0.1, 1).replace(**settings)
    for step_size in (0.0, -1.0, torch.nan):
        with refused("step_size must be positive"):
            ConstrainedHMC(generator, OBSERVED, step_size, 1)
    with refused("tolerance must be positive"):
        ConstrainedHMC(generator, OBSERVED, 0.1, 1, tolerance=0.0)
    kernel = ConstrainedHMC(generator, OBSERVED, 0.1, 1)
    with refused("density is that of the generator"):
        kernel.replace(density=generator.density)
    with refused("density is that of the generator"):
        retarget(kernel, generator.density)
    with refused(r"a range \(least, most\), got \(3, 2\)"):
        kernel.replace(num_steps=(3, 2))
    with refused("num_candidates must be at least 1, got 0"):
        kernel.find_initial(2, num_candidates=0)
    with refused("cannot be a block of Gibbs"):
        conditional(kernel, generator.density, kernel.find_initial(2))


def test_bad_observations_are_refused() -> None:
    generator = regression()
    with refused(r"observed must be \[3\].*got \[2\]"):
        ConstrainedHMC(generator, OBSERVED[:2], 0.1, 1)
    with refused("observed must be finite.*observing"):
        ConstrainedHMC(generator, OBSERVED / 0, 0.1, 1)
    with refused("2 observations and 5 chains"):
        ConstrainedHMC(generator, OBSERVED.expand(2, -1), 0.1, 1).find_initial(5)
    positive = Generator({"u": Normal(3)}, lambda v: v["u"].square().sum(-1, keepdim=True))
    with refused(r"no inputs were found.*4 of 4 chains.*smallest \|g\(u\) − y\| was [23]\..*noisy"):
        ConstrainedHMC(positive, torch.tensor([-2.0]), 0.1, 1).find_initial(4, max_tries=20)


def test_bad_positions_are_refused() -> None:
    kernel = ConstrainedHMC(regression(), OBSERVED, 0.1, 1)
    start = kernel.find_initial(3)
    with refused("float64 positions, got torch.float32"):
        kernel.init(start.float())
    with refused("has 5 inputs, the positions 4"):
        kernel.init(start[:, 1:])
    with refused(r"must give what was observed: .* up to .*find_initial"):
        kernel.init(start + 1e-3)
    with refused("up to inf"):
        kernel.init(start * torch.nan)


@pytest.mark.parametrize("structure", ["dense", "elementwise", "autoregressive"])
def test_a_generator_without_full_rank_is_refused(structure: str) -> None:
    def observe(v: dict[str, Tensor]) -> Tensor:
        return torch.stack([v["z"] + v["n"][..., 0], 0 * v["n"][..., 1]], -1)

    generator = Generator({"z": Normal(), "n": Normal(2)}, observe, structure=structure)
    kernel = ConstrainedHMC(generator, torch.zeros(2), 0.1, 1)
    with refused(r"not full rank at the positions of 2 of 2 chains.*generator\.noisy\(scale\)"):
        kernel.init(torch.zeros(2, 3, dtype=F64))
    noisy = ConstrainedHMC(generator.noisy(0.1), torch.zeros(2), 0.1, 1)
    assert noisy.init(torch.zeros(2, 5, dtype=F64)).log_prob.isfinite().all()


@pytest.mark.parametrize("structure", ["dense", "elementwise", "autoregressive"])
def test_a_generator_without_gradient_is_refused(structure: str) -> None:
    generator = Generator({"n": Normal(2)}, lambda v: v["n"].detach(), structure=structure)
    kernel = ConstrainedHMC(generator, torch.zeros(2), 0.1, 1)
    with refused("differentiable operations.*detach"):
        kernel.init(torch.zeros(2, 2, dtype=F64))
    with refused("differentiable operations.*detach"):
        kernel.find_initial(2)


def test_positions_without_density_are_refused_by_sampling() -> None:
    """At inputs so large that their density is no number."""
    generator = Generator({"z": Normal(1), "n": Normal(1)}, lambda v: v["n"])
    kernel = ConstrainedHMC(generator, torch.zeros(1), 0.1, 1)
    far = torch.tensor([[1e200, 0.0], [0.0, 0.0]], dtype=F64)
    with refused("log_prob is not finite at the initial positions of 1 of 2 chains"):
        hmcvi.sample(kernel, far, 5, progress=False)
    end, info = kernel.step(kernel.init(far), torch.Generator().manual_seed(0))
    assert torch.equal(end.position[0], far[0]) and info["accepted"].tolist() == [False, True]
