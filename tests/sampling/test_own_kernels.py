"""Kernels and metrics of a user's own are sampled, tuned, saved and resumed like ours."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor

import hmcvi
from hmcvi import Density, Draws, Phase, Warmup
from hmcvi.adaptation import Tuning, tuning
from hmcvi.internal.checks import positive
from hmcvi.kernels import HMC, IdentityMetric, Kernel, Metric
from tests.support.problems import F64
from tests.support.sampling_runs import assert_same_draws

SCALES = torch.tensor([0.3, 1.0, 4.0], dtype=F64)
NORMAL = Density(lambda z: -0.5 * (z / SCALES).square().sum(-1))


@dataclass(frozen=True, eq=False)
class Barker(Kernel):
    """A random walk that is accepted with probability γ(z') / (γ(z) + γ(z')).  [Barker 1965]"""

    density: Density
    step_size: float | Tensor
    metric: Metric = IdentityMetric()  # noqa: RUF009

    def __post_init__(self) -> None:
        object.__setattr__(self, "step_size", positive(self.step_size, "step_size"))

    @torch.no_grad()
    def step(self, state: Phase, generator: torch.Generator | None = None) -> tuple[Phase, dict[str, Tensor]]:
        noise = torch.randn(state.position.shape, dtype=state.position.dtype, generator=generator)
        proposal = state.position + self.step_size * self.metric.whiten_transposed(noise)
        old, new = state.log_density(self.density), self.density.finite_log_prob(proposal)
        rate = torch.sigmoid(new - old)
        accepted = torch.rand(rate.shape, dtype=rate.dtype, generator=generator) < rate
        position = proposal.where(accepted[..., None], state.position)
        return Phase(position, log_prob=new.where(accepted, old)), {
            "accepted": accepted,
            "acceptance_rate": rate,
        }


@tuning.register
def _(kernel: Barker) -> Tuning:
    return Tuning(step_size=True, metric=True, target_acceptance=0.25)


@dataclass(frozen=True, eq=False)
class Uniform(Metric):
    """M = m I."""

    mass: Tensor

    def color(self, vector: Tensor) -> Tensor:
        return self.mass.sqrt() * vector

    def whiten(self, vector: Tensor) -> Tensor:
        return vector / self.mass.sqrt()

    whiten_transposed = whiten

    def log_det(self) -> Tensor:
        return 0.5 * len(SCALES) * self.mass.log()


def barker() -> Barker:
    return Barker(NORMAL, 0.01)


def hmc() -> HMC:
    return HMC(NORMAL, 0.1, 8, Uniform(torch.tensor(4.0, dtype=F64)))


RUNS = {"kernel": (barker, Warmup()), "metric": (hmc, Warmup(mass="fixed"))}


def run(name: str, num_samples: int, **options: object) -> Draws:
    make, warmup = RUNS[name]
    start = SCALES * torch.randn(64, 3, dtype=F64, generator=torch.Generator().manual_seed(0))
    return hmcvi.sample(make(), start, num_samples, 200, warmup=warmup, progress=False, **options)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::hmcvi.SamplingWarning")
@pytest.mark.parametrize("name", RUNS)
def test_it_is_tuned_saved_and_goes_on_exactly(name: str, tmp_path: Path) -> None:
    whole, part = run(name, 300), run(name, 120)
    part.save(tmp_path / "draws.pt")
    loaded = Draws.load(tmp_path / "draws.pt", RUNS[name][0]())
    assert_same_draws(loaded.resume(180, progress=False), whole)
    assert_same_draws(run(name, 300, checkpoint=tmp_path / "checkpoint.pt"), whole)
    assert_same_draws(run(name, 300, checkpoint=tmp_path / "checkpoint.pt"), whole)
    assert (whole.position.std((0, 1)) / SCALES - 1).abs().max() < 0.15


@pytest.mark.filterwarnings("ignore::hmcvi.SamplingWarning")
def test_what_is_registered_is_what_warmup_chooses() -> None:
    tuned = run("kernel", 300).kernel
    assert isinstance(tuned, Barker)
    ratio = (2 * tuned.metric.log_scale).exp() * SCALES.square()
    assert ((ratio > 0.6) & (ratio < 1.6)).all(), ratio
    assert run("kernel", 300).stats["acceptance_rate"].mean() == pytest.approx(0.25, abs=0.05)
    kept = run("metric", 10).kernel
    assert isinstance(kept, HMC) and isinstance(kept.metric, Uniform) and kept.step_size != 0.1


def test_replaced_settings_are_checked() -> None:
    with pytest.raises(ValueError, match="step_size must be positive, got -1"):
        barker().replace(step_size=-1.0)
    with pytest.raises(ValueError, match="num_steps must be at least 1, got 0"):
        hmc().replace(num_steps=0)
    with pytest.raises(AttributeError, match="Barker has no setting 'pace'"):
        barker().replace(pace=1.0)


def test_a_kernel_that_is_no_dataclass_runs_untuned() -> None:
    class Draw(Kernel):
        density = NORMAL

        def step(self, state, generator=None):  # type: ignore[no-untyped-def]
            noise = torch.randn(state.position.shape, dtype=F64, generator=generator)
            return Phase(SCALES * noise, log_prob=NORMAL.log_prob(SCALES * noise)), {}

    draws = hmcvi.sample(Draw(), torch.zeros(4, 3, dtype=F64), 200, 50, progress=False)
    assert draws.position.shape == (4, 200, 3)
    with pytest.raises(TypeError, match="Draw must be a dataclass"):
        Draw().replace(density=NORMAL)


def test_a_draw_of_one_leapfrog_costs_few_evaluations() -> None:
    """Of log_prob: a look at what it returns, the state at the beginning, both again to see that it is not
    random, once with other companions, and the leapfrog itself.
    """
    calls = []

    def log_prob(z: Tensor) -> Tensor:
        calls.append(z)
        return -0.5 * z.square().sum(-1)

    kernel = HMC(Density(log_prob), 0.5, 1)
    draws = hmcvi.sample(kernel, torch.zeros(8, 2), 1, progress=False)
    assert len(calls) == 6
    draws.resume(5, progress=False)
    assert len(calls) == 6 + 2 + 5  # two to see that the density is still the same


def test_the_check_at_the_end_can_be_left_out() -> None:
    stuck = HMC(Density(lambda z: -1e12 * z.square().sum(-1)), 1.0, 3)
    start = torch.full((4, 2), 0.5, dtype=F64)
    with pytest.warns(hmcvi.SamplingWarning, match="never moved"):
        hmcvi.sample(stuck, start, 20, progress=False)
    hmcvi.sample(stuck, start, 20, progress=False, check=False)
