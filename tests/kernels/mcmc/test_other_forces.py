"""Kernels that move by another force than that of their density, which they still leave invariant."""

from __future__ import annotations

import pytest
import torch

import hmcvi
from hmcvi import Density
from hmcvi.dynamics import forces
from hmcvi.evidence import ais, bidirectional
from hmcvi.flows import ForcedDensity, HalfProducts, with_force
from hmcvi.kernels import HMC, Compose, RandomWalkMetropolis
from hmcvi.models import VAE
from tests.contracts.kernels import another
from tests.support.problems import F64, Mixture
from tests.support.targets import PLANE

PROBLEM = Mixture()
BASE = torch.distributions.Independent(torch.distributions.Normal(torch.zeros(2, dtype=F64), 2.0), 1)


def assert_log_z(log_z: float, std_error: float) -> None:
    assert abs(log_z - PROBLEM.log_evidence) < 4 * std_error


@pytest.mark.parametrize("leapfrogs", [None, 3])
def test_annealing_by_another_force(leapfrogs: int | None) -> None:
    """Its own kernel, and one that is given; the force is that of the path to the other density."""
    kernel = None if leapfrogs is None else lambda density: HMC(density, 0.4, leapfrogs, force=another)
    target = PROBLEM.density if kernel else with_force(PROBLEM.density, another)
    found = ais(BASE, target, 50, 4_000, kernel, progress=False)
    assert found.std_error < 0.05
    assert_log_z(found.log_z, found.std_error)


def test_annealing_both_ways_by_another_force() -> None:
    """Backwards it starts from exact draws, and E[1/w] = 1/Z rests on reversibility."""
    exact = PLANE["modes"].draw(2_000)
    target = with_force(PLANE["modes"].density, another)
    found = bidirectional(BASE, target, exact, 40, 2_000, progress=False)
    errors = [found.diagnostics[f"{bound}_std_error"] for bound in ("lower", "upper")]
    assert max(errors) < 0.1 and found.diagnostics["gap"].abs() < 4 * torch.hypot(*errors)


def test_whole_runs_by_another_force() -> None:
    """Warm-up included."""
    normal = Density(lambda z: -0.5 * (z / torch.tensor([1.0, 3.0])).square().sum(-1), dim=2)
    kernel, start = HMC(normal, 0.5, force=another), torch.randn(16, 2)
    draws = hmcvi.sample(kernel, start, 1000, num_warmup=300, seed=0, progress=False)
    assert not draws.problems()
    squares = (draws.position / torch.tensor([1.0, 3.0])).square().mean(1)  # of each chain
    assert ((squares.mean(0) - 1).abs() < 5 * squares.std(0) / 16**0.5).all()


def decoder_posterior() -> tuple[VAE, Density]:
    torch.manual_seed(0)
    vae = VAE(30, 4, hidden=(40, 40))
    with torch.no_grad():
        return vae, vae.posterior(torch.rand(50, 30).bernoulli())


@pytest.mark.parametrize("force", ["bf16", "surrogate(20)"])
def test_cheap_forces_of_a_decoder(force: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Accepted by exact energies: log γ of the state is that of the decoder itself."""
    monkeypatch.setattr(forces, "_cpu_has_bfloat16", lambda: True)  # emulated if need be
    _, target = decoder_posterior()
    kernel = HMC(target, 0.1, 5, force=force)
    state, generator = kernel.init(torch.randn(50, 4)), torch.Generator().manual_seed(0)
    for _ in range(5):
        state, info = kernel.step(state, generator)
    torch.testing.assert_close(state.log_prob, target.log_prob(state.position), rtol=1e-6, atol=1e-4)
    assert info["acceptance_rate"].mean() > 0.5
    assert (info["num_gradients"] == 5).all() and (info["num_evaluations"] == 1).all()


def test_the_target_is_evaluated_at_the_end_of_a_trajectory_alone() -> None:
    calls: list[None] = []
    counted = Density(lambda z: calls.append(None) or -0.5 * z.square().sum(-1))
    other = Density(lambda z: -0.6 * z.square().sum(-1))
    kernel = HMC(counted, 0.3, 10, force=lambda density: other)
    state = kernel.init(torch.zeros(3, 2))
    calls.clear()
    kernel.step(state)
    assert len(calls) == 1


def test_the_same_force_is_the_same_kernel() -> None:
    target = PLANE["modes"].density
    plain, forced = HMC(target, 0.5, 3), HMC(target, 0.5, 3, force=lambda density: density)
    start = PLANE["modes"].draw(20)
    ends = [
        kernel.step(kernel.init(start), torch.Generator().manual_seed(0))[0] for kernel in (plain, forced)
    ]
    torch.testing.assert_close(ends[0].position, ends[1].position)


def test_settings_and_compositions_keep_the_force() -> None:
    kernel = HMC(PROBLEM.density, 0.5, 3, force=another)
    assert isinstance(kernel.density, ForcedDensity) and kernel.density.target is PROBLEM.density
    assert kernel.replace(step_size=0.1).density is kernel.density
    with pytest.raises(ValueError, match="one and the same Density object"):
        Compose(kernel, HMC(PROBLEM.density, 0.5, 3))  # it would hand on another gradient
    Compose(kernel, RandomWalkMetropolis(kernel.density, 1.0))
    with pytest.raises(ValueError, match="a kernel keeps the force of its state"):
        HMC(decoder_posterior()[1], 0.5, force="subset(3)")
    with pytest.raises(ValueError, match="a surrogate needs a density with a decoder"):
        HMC(PROBLEM.density, 0.5, force="surrogate")
    with pytest.raises(ValueError, match="force must be one of full, bf16"):
        HMC(PROBLEM.density, 0.5, force="half")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # the compiler warns about itself
@pytest.mark.parametrize("options", [{}, {"jitter": 0.5}], ids=["unrolled", "loop"])
def test_compiled_programs_take_the_other_force(options: dict[str, float]) -> None:
    kernels = [
        HMC(PROBLEM.density, 0.4, 4, force=another, compile=compile, **options) for compile in (False, True)
    ]
    start = PROBLEM.draw_base(20)
    ends = [k.step(k.init(start), torch.Generator().manual_seed(0))[0] for k in kernels]
    torch.testing.assert_close(ends[1].position, ends[0].position, rtol=1e-9, atol=1e-9)
    _, target = decoder_posterior()
    half = HMC(target, 0.1, 4, force=HalfProducts, compile=True, **options)
    state, info = half.step(half.init(torch.randn(50, 4)), torch.Generator().manual_seed(0))
    torch.testing.assert_close(state.log_prob, target.log_prob(state.position), rtol=1e-5, atol=1e-4)
    assert info["acceptance_rate"].mean() > 0.5
