"""The experiments with simulators run, stay on the data, and their models are what they say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from experiments.__main__ import main
from experiments.generators import generalised_lambda as quantile_experiment
from experiments.generators import lotka_volterra as experiment
from experiments.generators import reference
from experiments.generators.runs import Method, race
from experiments.models import generalised_lambda, lotka_volterra
from experiments.models.lotka_volterra import summaries
from experiments.models.quantile import power, quantile
from hmcvi.kernels import ConstrainedHMC
from hmcvi.kernels.constrained.initial import candidates
from hmcvi.kernels.constrained.manifold import Manifold

F64 = torch.float64


SMALL = {
    "generalised-lambda": (quantile_experiment, "NUM_OBSERVED", 6),
    "lotka-volterra": (experiment, "NUM_STEPS", 6),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
def test_an_experiment_writes_its_figure_and_numbers(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With fewer data than at full size."""
    monkeypatch.setattr(*SMALL[name])
    assert main([name, "--out", str(tmp_path), "--quick"]) == 0
    assert (tmp_path / "figure.png").stat().st_size > 10_000
    methods = json.loads((tmp_path / "result.json").read_text())["methods"]
    exact = next(iter(methods.values()))
    assert exact["largest_distance"] < 1e-8
    assert exact["acceptance_rate"] > 0.5
    assert all(list(report["parameters"]) == ["z1", "z2", "z3", "z4"] for report in methods.values())


@pytest.mark.slow
def test_abc_counts_what_comes_near(tmp_path: Path) -> None:
    assert main(["lotka-volterra-abc", "--out", str(tmp_path), "--quick"]) == 0
    result = json.loads((tmp_path / "result.json").read_text())
    assert (tmp_path / "figure-paths.png").stat().st_size > 10_000
    chains = [result["abc_mcmc"][radius] for radius in ("1000", "100", "10")]
    accepted = [chain["accepted"] for chain in chains]
    assert accepted == sorted(accepted, reverse=True)
    assert accepted[0] <= chains[0]["updates"]


@pytest.mark.slow
def test_constrained_dynamics_agree_with_the_likelihood() -> None:
    """From the first positions on: warmed up, they have the means and the spread of the reference."""
    generator = lotka_volterra(8)
    observed = experiment.simulated(lotka_volterra())[:16]
    kernel = ConstrainedHMC(generator, observed, 0.25, (2, 3), num_geodesic=2)
    method = Method(kernel, generator, observed, num_warmup=18, num_samples=10)
    outcome = race(method, kernel.find_initial(200), seed=0)
    likelihood = reference.lotka_volterra_likelihood(observed)
    exact = reference.reference(generator, likelihood, outcome.position, 20_000, seed=0)
    assert exact.report()["ess"] > 2000
    for name, summary in outcome.report(exact)["parameters"].items():
        assert abs(summary["deviation"]) < 4, name
        assert summary["standard_deviation"] == pytest.approx(
            exact.summary(name)["standard_deviation"], rel=0.25
        )


def test_references_have_the_likelihood_of_the_simulator() -> None:
    """Found without manifolds, it is the weight of positions on one, p(y | u₁) = ρ(u₂) |∂g/∂u₂|⁻¹."""
    for generator, observed, likelihood in (
        (generalised_lambda(9), quantile_experiment.data(0)[:9], reference.generalised_lambda_likelihood),
        (lotka_volterra(4), experiment.simulated(lotka_volterra())[:8], reference.lotka_volterra_likelihood),
    ):
        rng = torch.Generator().manual_seed(0)
        found = candidates(Manifold.of(generator, observed), 40, 1e-10, 50, rng)
        usable = found.log_weight.isfinite()
        inputs = found.position[usable]
        assert usable.sum() > 5
        values = likelihood(observed)(generator.latent(inputs))
        offset = values - found.log_weight[usable]
        torch.testing.assert_close(offset, offset[:1].expand_as(offset), rtol=0, atol=1e-5)


def test_quantiles_have_their_limits_at_shape_zero() -> None:
    """Values and two derivatives, on both sides of where the series takes over."""
    log = torch.tensor([-12.0, -3.0, -0.1], dtype=F64)
    for shape in (0.0, 3e-4, -9.999e-4, 1.001e-3):
        s = torch.tensor(shape, dtype=F64, requires_grad=True)
        value = power(log, s)
        (first,) = torch.autograd.grad(value.sum(), s, create_graph=True)
        (second,) = torch.autograd.grad(first, s)
        terms = [(shape**k * log ** (k + 1)) / torch.arange(1.0, k + 2).prod() for k in range(25)]
        torch.testing.assert_close(value, sum(terms), rtol=1e-13, atol=0.0)
        slope = sum(k * shape ** (k - 1) * (log ** (k + 1)).sum() / _factorial(k + 1) for k in range(1, 25))
        bend = sum(
            k * (k - 1) * shape ** (k - 2) * (log ** (k + 1)).sum() / _factorial(k + 1) for k in range(2, 25)
        )
        torch.testing.assert_close(first, slope, rtol=1e-9, atol=0.0)
        torch.testing.assert_close(second, bend, rtol=1e-5, atol=0.0)


def _factorial(k: int) -> float:
    return float(torch.arange(1.0, k + 1, dtype=F64).prod())


def test_quantiles_increase_and_stay_finite() -> None:
    z = torch.tensor([5.0, 1.0, 0.4, -0.1], dtype=F64)
    values = quantile(torch.linspace(-300, 300, 1001, dtype=F64), z)
    assert values.isfinite().all()
    assert (values.diff() >= 0).all()
    p = torch.tensor([0.3], dtype=F64)
    expected = 5 + (p**0.4 - 1) / 0.4 + ((1 - p) ** -0.1 - 1) / 0.1
    torch.testing.assert_close(quantile(p.logit(), z), expected)


def test_generalised_lambda_inputs_are_named_parameters() -> None:
    generator = generalised_lambda(7)
    u = generator.sample(5, generator=torch.Generator().manual_seed(0))
    z = generator.latent(u)
    assert generator.observed(u).shape == (5, 7)
    torch.testing.assert_close(z["z4"], u[:, 3])
    assert (z["z2"] > 0).all()


@pytest.mark.parametrize("eats_new_prey", [False, True])
def test_a_path_made_from_itself_is_the_path(eats_new_prey: bool) -> None:
    """The conditional agrees with the simulation, value and Jacobian volume."""
    generator = lotka_volterra(8, eats_new_prey=eats_new_prey)
    rates = torch.tensor([0.4, 0.005, 0.05, 0.001], dtype=F64).log() + 2
    noise = torch.randn(16, dtype=F64, generator=torch.Generator().manual_seed(0))
    u = torch.cat([rates, noise])
    path = generator.observed(u)
    assert float(generator.residual(u, path).abs().max()) < 1e-12
    free = torch.autograd.functional.jacobian(generator.observed, u)
    forced = torch.autograd.functional.jacobian(lambda v: generator.residual(v, path), u)
    torch.testing.assert_close(torch.logdet(free @ free.mT), torch.logdet(forced @ forced.mT))


def test_summaries_are_those_of_numpy() -> None:
    path = experiment.simulated(lotka_volterra())
    prey, predators = path.view(-1, 2).T
    found = summaries(path)
    assert found.shape == (9,)
    torch.testing.assert_close(found[0], prey.mean())
    torch.testing.assert_close(found[3], predators.var(correction=0).log())
    torch.testing.assert_close(found[8], torch.corrcoef(torch.stack([prey, predators]))[0, 1])
    centred = prey - prey.mean()
    torch.testing.assert_close(found[4], (centred[1:] * centred[:-1]).sum() / centred.square().sum())


def test_stored_paths_are_read_and_checked(tmp_path: Path) -> None:
    for name, first in zip(experiment.FILES, (90.5, 102.9), strict=True):
        rows = "\n".join(f"{t} {first + t}" for t in range(50))
        (tmp_path / name).write_text(f"t x\n{rows}\n")
    assert experiment.read(tmp_path)[:4].tolist() == [90.5, 102.9, 91.5, 103.9]
    (tmp_path / experiment.FILES[0]).write_text("t x\n0 1.0\n")
    with pytest.raises(ValueError, match="50 values"):
        experiment.read(tmp_path)
