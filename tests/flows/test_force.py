"""Cheap forces: whatever moves a chain, its weights are those of the target."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from hmcvi import Chain, Density, Phase
from hmcvi.flows import ApproximateForce, HalfProducts, with_force
from hmcvi.kernels import annealed_chain, hamiltonian_chain, langevin_chain
from hmcvi.models import VAE
from hmcvi.training import ConfigError, load_config
from hmcvi.training.build import build_chain
from tests.contracts.members import wrong
from tests.support.problems import F64, LinearGaussian, perturb
from tests.support.statistics import assert_evidence

MODEL = LinearGaussian()
DIM, DATA = MODEL.latent_dim, MODEL.data_dim
CHAINS: dict[str, Callable[[], Chain]] = {
    "hmc": lambda: hamiltonian_chain(DIM, DATA, 2, 2, hidden=(8,), initial_step_size=0.35),
    "hmc, accepted": lambda: hamiltonian_chain(
        DIM, DATA, 2, 2, True, "nn", "nn", hidden=(8,), initial_step_size=0.35
    ),
    "hmc, turning back": lambda: hamiltonian_chain(
        DIM, DATA, 2, 2, hidden=(8,), initial_step_size=0.6, max_energy_error=0.5
    ),
    "informed": lambda: hamiltonian_chain(
        DIM, DATA, 2, 2, True, hidden=(8,), initial_step_size=0.35, coordinates="encoder",
        reverse_sees=["position", "force"],
    ),
    "annealed": lambda: annealed_chain(DIM, DATA, 3, initial_step_size=0.35, coordinates="encoder"),
    "langevin": lambda: langevin_chain(DIM, DATA, 3, "both", hidden=(8,), initial_step_size=0.05),
}  # fmt: skip


@pytest.mark.parametrize("name", CHAINS)
def test_evidence_with_the_forces_of_another_density(name: str) -> None:
    torch.manual_seed(0)
    vae, x = MODEL.vae(perturb(ApproximateForce([CHAINS[name]()], wrong))), MODEL.data(2)
    torch.manual_seed(1)
    with torch.no_grad():
        assert_evidence(vae.log_weights(x, 50_000), MODEL.log_evidence(x))


@pytest.mark.parametrize("name", CHAINS)
def test_its_own_forces_change_nothing(name: str) -> None:
    torch.manual_seed(0)
    chain, x = perturb(CHAINS[name]()), MODEL.data(2)
    values = []
    for each in (chain, ApproximateForce([chain], lambda target: target)):
        torch.manual_seed(1)
        values.append(MODEL.vae(each).log_weights(x, 5))
    torch.testing.assert_close(*values)


@pytest.mark.parametrize("memory", ["store", "checkpoint", "reversible"])
def test_gradients(memory: str) -> None:
    """Of log w in the noise of the start: against differences, however the chain remembers."""
    torch.manual_seed(0)
    inner = perturb(CHAINS["informed"]())
    chain = ApproximateForce([type(inner)(inner.steps, memory=memory)], wrong)
    target = Density(lambda z: -(z**4).sum(-1), base=MODEL.vae(Chain()).posterior(MODEL.data(1)).base)

    def log_weight(z: Tensor) -> Tensor:
        torch.manual_seed(1)
        transition = chain(Phase(z), target, MODEL.data(1).expand(3, -1))
        return transition.log_ratio + transition.state.log_density(target)

    z = torch.randn(3, DIM, dtype=F64, requires_grad=True)
    assert torch.autograd.gradcheck(log_weight, z)


def model(force: str) -> VAE:
    torch.manual_seed(0)
    chain = annealed_chain(4, 30, 6, mass="nn", coordinates="encoder", initial_step_size=0.3)
    return VAE(30, 4, with_force(chain, force), hidden=(40,))


def test_products_in_bfloat16() -> None:
    """Forces are rounded, and nothing else is: the density where the chain ends is the decoder's own."""
    vae = model("bf16")
    x = torch.rand(50, 30, generator=torch.Generator().manual_seed(2)).bernoulli()
    target = vae.posterior(x)
    z = torch.randn(50, 4)
    exact, rounded = target.value_and_grad(z)[1], HalfProducts(target).value_and_grad(z)[1]
    error = ((rounded - exact).norm() / exact.norm()).item()
    assert 1e-4 < error < 0.05
    run = vae.run(x)
    end = run.weights.log_weight + run.log_base - run.transition.log_ratio
    torch.testing.assert_close(end, vae.log_joint(run.transition.state.position, x), rtol=1e-5, atol=1e-4)
    run.weights.log_weight.mean().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in vae.parameters())
    assert all(p.dtype == torch.float32 for p in vae.parameters())


def test_bounds_are_close_to_those_of_full_forces() -> None:
    x, bounds = torch.rand(400, 30, generator=torch.Generator().manual_seed(2)).bernoulli(), []
    for force in ("full", "bf16"):
        vae = model(force)
        torch.manual_seed(3)
        bounds.append(vae.bound(x).detach())
    difference = bounds[0] - bounds[1]
    assert difference.abs().max() > 0 and difference.abs().mean() < 0.05


def test_configuration() -> None:
    chain = build_chain(load_config(overrides=["chain.force=bf16"]).chain, 2, 5)
    assert isinstance(chain, ApproximateForce)
    with pytest.raises(ConfigError, match=r"chain\.force must be one of full, bf16, got 'fp8'"):
        load_config(overrides=["chain.force=fp8"])
    with pytest.raises(ConfigError, match=r"train\.precision is chain\.force=bf16"):
        load_config(overrides=["train.precision=bf16"])
    with pytest.raises(ValueError, match="force must be one of"):
        with_force(Chain(), "half")
