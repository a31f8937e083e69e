"""Cheap forces: whatever moves a chain, its weights are those of the target."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from hmcvi import Chain, Density, Phase
from hmcvi.dynamics import forces
from hmcvi.flows import ApproximateForce, HalfProducts, Subset, with_force
from hmcvi.internal.context import Randomness, Share
from hmcvi.kernels import annealed_chain, hamiltonian_chain, langevin_chain
from hmcvi.models import VAE, posterior
from hmcvi.training import ConfigError, Run, load_config
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


CHEAP = ["subset(2)", "surrogate(2)"]
GRID = torch.linspace(-8, 8, 321, dtype=F64)


def decoded(chain: Chain, likelihood: str = "bernoulli") -> tuple[VAE, Tensor, Tensor]:
    """A VAE of six pixels, two data, and log p(x) by quadrature over its two latents."""
    torch.manual_seed(0)
    vae = VAE(6, 2, chain, likelihood, hidden=(8, 8)).double()
    with torch.no_grad():  # smooth enough for weights of finite variance
        for parameter in vae.parameters():
            parameter.mul_(0.5)
    x = torch.rand(2, 6, dtype=F64).bernoulli() if likelihood == "bernoulli" else torch.rand(2, 6, dtype=F64)
    grid = torch.cartesian_prod(GRID, GRID)
    with torch.no_grad():
        log_joint = vae.log_joint(grid[:, None], x)
    return vae, x, log_joint.logsumexp(0) + 2 * (GRID[1] - GRID[0]).log()


@pytest.mark.parametrize("force", CHEAP)
@pytest.mark.parametrize("likelihood", ["bernoulli", "gaussian"])
@pytest.mark.parametrize("name", ["hmc, accepted", "annealed"])
def test_evidence_with_cheap_forces(name: str, likelihood: str, force: str) -> None:
    options = {"hidden": (8,)} if name != "annealed" else {"coordinates": "encoder"}
    make = annealed_chain if name == "annealed" else hamiltonian_chain
    inner = make(2, 6, 2, 2, True, "nn", "simple", initial_step_size=0.35, **options)
    vae, x, log_evidence = decoded(with_force(inner, force), likelihood)
    perturb(vae.chain)
    torch.manual_seed(1)
    with torch.no_grad():
        log_weight = torch.cat([vae.log_weights(x, 5_000) for _ in range(10)])  # ten subsets
    assert_evidence(log_weight, log_evidence)


def test_evidence_with_a_subset_for_a_decoder_of_another_kind() -> None:
    torch.manual_seed(0)
    vae, x = MODEL.vae(perturb(with_force(CHAINS["annealed"](), "subset(3)"))), MODEL.data(2)
    torch.manual_seed(1)
    with torch.no_grad():
        log_weight = torch.cat([vae.log_weights(x, 5_000) for _ in range(10)])
    assert_evidence(log_weight, MODEL.log_evidence(x))


@pytest.mark.parametrize("likelihood", ["bernoulli", "gaussian"])
def test_whole_subsets_and_full_ranks_are_the_target(likelihood: str) -> None:
    vae, x, _ = decoded(Chain(), likelihood)
    target, z = vae.posterior(x), torch.randn(3, 2, 2, dtype=F64)
    for cheap in (target.subset(torch.arange(6)), target.low_rank(8 if likelihood == "gaussian" else 6)):
        for found, wanted in zip(cheap.value_and_grad(z), target.value_and_grad(z), strict=True):
            torch.testing.assert_close(found, wanted)


def test_subsets_are_unbiased() -> None:
    """Over all choices of two pixels, forces average to the full one."""
    vae, x, _ = decoded(Chain())
    target, z = vae.posterior(x), torch.randn(2, 2, dtype=F64)
    pairs = torch.combinations(torch.arange(6), 2)
    mean = torch.stack([target.subset(pair).value_and_grad(z)[1] for pair in pairs]).mean(0)
    torch.testing.assert_close(mean, target.value_and_grad(z)[1])


def test_surrogates_of_higher_rank_are_closer() -> None:
    torch.manual_seed(0)
    vae = VAE(30, 4, hidden=(40, 40)).double()
    target, z = vae.posterior(torch.rand(50, 30, dtype=F64).bernoulli()), torch.randn(50, 4, dtype=F64)
    exact = target.value_and_grad(z)[1]
    errors = [(target.low_rank(rank).value_and_grad(z)[1] - exact).norm() for rank in (1, 3, 10, 30)]
    assert errors == sorted(errors, reverse=True) and errors[-1] < 1e-8 * exact.norm()


@pytest.mark.parametrize("memory", ["store", "checkpoint", "reversible"])
@pytest.mark.parametrize("force", CHEAP)
def test_gradients_in_parameters(force: str, memory: str) -> None:
    """Of the bound in weights of the decoder, against differences; a surrogate's basis stays as it is."""
    inner = annealed_chain(2, 6, 2, 2, initial_step_size=0.3)
    vae, x, _ = decoded(with_force(Chain(inner.steps, memory=memory), force))
    head, before = vae.decoder.head, vae.decoder.head.weight.detach().clone()
    direction, basis = torch.randn_like(before), posterior._principal(vae.decoder, 2)

    def bound() -> Tensor:
        torch.manual_seed(1)
        return vae.bound(x).mean()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(posterior, "_principal", lambda decoder, rank: basis)
        slope = (torch.autograd.grad(bound(), head.weight)[0] * direction).sum()
        ends = []
        for step in (1e-5, -1e-5):
            with torch.no_grad():
                head.weight.copy_(before + step * direction)
            ends.append(bound().detach())
    torch.testing.assert_close(slope, (ends[0] - ends[1]) / 2e-5, rtol=1e-6, atol=1e-8)


def test_a_network_as_an_approximation_is_trained_by_the_bound() -> None:
    class Tilted(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tilt = torch.nn.Parameter(torch.zeros(2, dtype=F64))

        def forward(self, target: Density) -> Density:
            return Density(lambda z: target._log_prob(z) + z @ self.tilt, base=target.base)

    vae, x, _ = decoded(ApproximateForce([annealed_chain(2, 6, 2, initial_step_size=0.3)], Tilted()))
    vae.bound(x).mean().backward()
    assert vae.chain.approximate.tilt.grad.abs().min() > 0


def test_processes_choose_the_same_subset() -> None:
    """Each has its share of the data and all have the seed."""
    chosen = []
    for randomness in (Randomness(), Share(0, 3, 9), Share(3, 9, 9)):
        torch.manual_seed(0)
        chosen.append(randomness.subset(784, 100))
    assert torch.equal(chosen[0], chosen[1]) and torch.equal(chosen[0], chosen[2])
    assert len(chosen[0].unique()) == 100


def test_the_target_itself_is_evaluated_at_both_ends_alone() -> None:
    vae, x, _ = decoded(with_force(annealed_chain(2, 6, 3, 2), "subset(2)"))
    sizes: list[int] = []
    likelihood = vae.log_joint
    vae.log_joint = lambda z, x: sizes.append(x.shape[-1]) or likelihood(z, x)  # type: ignore[method-assign]
    weights = vae.weights(x)
    assert sizes == [6, 6] and weights.initial is not None and not weights.initial.requires_grad


def test_what_cheap_forces_cannot_do() -> None:
    plain, start = Density(lambda z: -0.5 * z.square().sum(-1)), Phase(torch.zeros(3, 2))
    chain = hamiltonian_chain(2, 0, 1, 1, hidden=(8,))
    with pytest.raises(ValueError, match="needs a density that knows them, such as the posterior of a VAE"):
        with_force(chain, "subset(3)")(start, plain)
    with pytest.raises(ValueError, match="a surrogate needs a density with a decoder"):
        with_force(chain, "surrogate")(start, plain)
    with pytest.raises(ValueError, match=r"needs an MLP or a GaussianDecoder, got a AffineDecoder"):
        MODEL.vae(with_force(CHAINS["annealed"](), "surrogate(2)")).bound(MODEL.data(2))
    vae, x, _ = decoded(with_force(chain, "subset(7)"))
    with pytest.raises(ValueError, match=r"subset\(7\) is larger than the data: there are 6 observations"):
        vae.bound(x)
    with pytest.raises(ValueError, match=r"rank of the surrogate must lie in 1, …, 6, got 7"):
        vae.posterior(x).low_rank(7)
    with pytest.raises(ValueError, match="a kernel keeps the force of its state"):
        with_force(plain, "subset(2)")


@pytest.fixture
def bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    """Products in bfloat16, slowly where the processor has no instructions for them."""
    monkeypatch.setattr(forces, "_cpu_has_bfloat16", lambda: True)


def test_a_processor_without_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    """Says so once, and computes in full."""
    vae, x = model("bf16"), torch.rand(5, 30).bernoulli()
    target, z = vae.posterior(x), torch.randn(5, 4)
    monkeypatch.setattr(forces, "_cpu_has_bfloat16", functools.cache(forces._cpu_has_bfloat16.__wrapped__))
    monkeypatch.setattr(forces, "has_bfloat16", lambda: False)
    with pytest.warns(UserWarning, match="this processor has no instructions for products of bfloat16"):
        half = HalfProducts(target)
    HalfProducts(target)
    assert torch.equal(half.value_and_grad(z)[1], target.value_and_grad(z)[1])


def model(force: str) -> VAE:
    torch.manual_seed(0)
    chain = annealed_chain(4, 30, 6, mass="nn", coordinates="encoder", initial_step_size=0.3)
    return VAE(30, 4, with_force(chain, force), hidden=(40,))


@pytest.mark.parametrize("name", ["avx512_bf16", "amx_bf16"])
def test_bfloat16_without_instructions_is_not_used(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """oneDNN says that it has such products on processors where it only emulates them."""
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: True)
    for found in (False, True):
        has = {"architecture": "x86_64", "avx512_bf16": False, "amx_bf16": False, name: found}
        monkeypatch.setattr(torch.cpu, "get_capabilities", lambda has=has: has)
        assert forces.has_bfloat16() == found


@pytest.mark.usefixtures("bfloat16")
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


@pytest.mark.usefixtures("bfloat16")
def test_bounds_are_close_to_those_of_full_forces() -> None:
    x, bounds = torch.rand(400, 30, generator=torch.Generator().manual_seed(2)).bernoulli(), []
    for force in ("full", "bf16"):
        vae = model(force)
        torch.manual_seed(3)
        bounds.append(vae.bound(x).detach())
    difference = bounds[0] - bounds[1]
    assert difference.abs().max() > 0 and difference.abs().mean() < 0.05


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        (["chain.force=surrogate(201)"], r"rank of the surrogate must lie in 1, …, 64, got 201"),
        (["chain.force=surrogate", "model.network=conv"], "needs an MLP or a GaussianDecoder"),
        (["chain.force=subset(65)"], "larger than the data: there are 64 observations"),
    ],
)
def test_impossible_forces_fail_before_any_training(
    overrides: list[str], reason: str, tmp_path: Path
) -> None:
    run = Run.create(load_config(overrides=[*overrides, f"runs={tmp_path}", "data.limit=50"]))
    with pytest.raises(ConfigError, match=reason):
        run.build_model(run.load_images())


def test_configuration() -> None:
    chain = build_chain(load_config(overrides=["chain.force=bf16"]).chain, 2, 5)
    assert isinstance(chain, ApproximateForce)
    chain = build_chain(load_config(overrides=["chain.force=subset(3)"]).chain, 2, 5)
    assert isinstance(chain, ApproximateForce) and isinstance(chain.approximate, Subset)
    with pytest.raises(ConfigError, match=r"chain\.force=subset\(6\) is larger than the data: there are 5"):
        build_chain(load_config(overrides=["chain.force=subset(6)"]).chain, 2, 5)
    for wrong_name in ("fp8", "subset", "subset(k)", "bf16(2)", "surrogate(-1)"):
        with pytest.raises(ConfigError, match=r"chain\.force must be one of full, bf16, subset"):
            load_config(overrides=[f"chain.force={wrong_name}"])
    for zero in ("subset(0)", "surrogate(0)"):
        with pytest.raises(ConfigError, match="must be at least 1, got 0"):
            load_config(overrides=[f"chain.force={zero}"])
    with pytest.raises(ConfigError, match=r"train\.precision is chain\.force=bf16"):
        load_config(overrides=["train.precision=bf16"])
    with pytest.raises(ValueError, match="force must be one of"):
        with_force(Chain(), "half")
