"""The laws of steps: evidence, volume, shapes."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.distributions import Normal

from hmcvi import Phase, Step, Transition
from tests.contracts.members import CONTEXT_DIM, DIM, STEPS, StepExample
from tests.support.problems import F64, Mixture
from tests.support.statistics import assert_evidence

PROBLEM = Mixture()
START_MOMENTUM = Normal(torch.tensor(0.0, dtype=F64), 1.2)
END_MOMENTUM = Normal(torch.tensor(0.0, dtype=F64), 0.7)

over_steps = pytest.mark.parametrize("example", STEPS, ids=str)
over_bijections = pytest.mark.parametrize("example", [e for e in STEPS if e.bijective], ids=str)


def start(example: StepExample, *batch: int) -> tuple[Phase, Tensor]:
    """Positions from the base, wide momenta if the step wants any, and the log of their density."""
    position = PROBLEM.draw_base(*batch)
    log_start = PROBLEM.log_base(position)
    if not example.needs_momentum:
        return Phase(position), log_start
    momentum = START_MOMENTUM.sample(position.shape)
    return Phase(position, momentum), log_start + START_MOMENTUM.log_prob(momentum).sum(-1)


@over_steps
def test_weights_average_to_the_evidence(example: StepExample) -> None:
    """E[γ(z') g(v') e^{log_ratio} / (q0(z) p0(v))] = Z for any normalised p0 and g."""
    torch.manual_seed(1)
    phase, log_start = start(example, 100_000)
    context = torch.randn(100_000, CONTEXT_DIM, dtype=F64)
    with torch.no_grad():
        state, log_ratio, *_ = example.make()(phase, PROBLEM.density, context)
        log_weight = state.log_density(PROBLEM.density) - log_start + log_ratio
    if state.momentum is not None:
        distribution = END_MOMENTUM if example.needs_momentum or example.bijective else START_MOMENTUM
        log_weight = log_weight + distribution.log_prob(state.momentum).sum(-1)
    assert_evidence(log_weight, PROBLEM.log_evidence, least_ess=5000)


@over_steps
def test_the_state_knows_its_own_density(example: StepExample) -> None:
    """What a step carries on as log γ and ∇log γ is that of its new position, not of the one it was given."""
    torch.manual_seed(2)
    phase, _ = start(example, 50)
    phase = phase.evaluate(PROBLEM.density)
    state = example.make()(phase, PROBLEM.density, torch.randn(50, CONTEXT_DIM, dtype=F64)).state
    log_prob, grad = PROBLEM.density.value_and_grad(state.position)
    if state.log_prob is not None:
        torch.testing.assert_close(state.log_prob, log_prob)
    if state.grad is not None:
        torch.testing.assert_close(state.grad, grad)


@over_bijections
def test_log_ratio_is_the_log_determinant(example: StepExample) -> None:
    torch.manual_seed(3)
    phase, _ = start(example, 20)
    context = torch.randn(20, CONTEXT_DIM, dtype=F64)
    step = example.make()
    point = phase.position if phase.momentum is None else torch.cat([phase.position, phase.momentum], -1)
    point.requires_grad_()
    image, transition = move(step, point, context)
    rows = [
        torch.autograd.grad(image[:, i].sum(), point, retain_graph=True)[0] for i in range(image.shape[1])
    ]
    _, log_det = torch.linalg.slogdet(torch.stack(rows, 1))
    torch.testing.assert_close(transition.log_ratio, log_det, rtol=1e-8, atol=1e-8)
    assert (transition.log_choice == 0).all() and (transition.noise == 0).all()


def move(step: Step, point: Tensor, context: Tensor) -> tuple[Tensor, Transition]:
    """A step as a map of position, or of (position, momentum).  [N, d or 2d]"""
    momentum = point[:, DIM:] if point.shape[-1] == 2 * DIM else None
    transition = step(Phase(point[:, :DIM], momentum), PROBLEM.density, context)
    state = transition.state
    image = state.position if momentum is None else torch.cat([state.position, state.momentum], -1)
    return image, transition


@over_bijections
def test_chains_do_not_see_each_other(example: StepExample) -> None:
    torch.manual_seed(4)
    phase, _ = start(example, 6)
    context = torch.randn(6, CONTEXT_DIM, dtype=F64)
    step = example.make()
    together = step(phase, PROBLEM.density, context)
    for chain in range(6):
        momentum = None if phase.momentum is None else phase.momentum[chain]
        alone = step(Phase(phase.position[chain], momentum), PROBLEM.density, context[chain])
        torch.testing.assert_close(alone.state.position, together.state.position[chain])
        torch.testing.assert_close(alone.log_ratio, together.log_ratio[chain])


@over_steps
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("batch", [(), (5,), (3, 5), (2, 3, 5)], ids=str)
def test_shapes_and_dtypes_are_kept(example: StepExample, batch: tuple[int, ...], dtype: torch.dtype) -> None:
    """Leading dimensions of any rank are chains; the data broadcast over samples in front."""
    torch.manual_seed(5)
    step = example.make().to(dtype)
    phase, _ = start(example, *batch)
    phase = Phase(*(None if part is None else part.to(dtype) for part in phase))
    context = torch.randn(*batch[-1:], CONTEXT_DIM, dtype=dtype)
    state, log_ratio, log_choice, noise, info = step(phase, PROBLEM.density, context)
    for vector in (state.position, state.momentum, state.grad):
        assert vector is None or (vector.shape, vector.dtype) == ((*batch, DIM), dtype)
    assert state.log_prob is None or (state.log_prob.shape, state.log_prob.dtype) == (batch, dtype)
    for price in (log_ratio, log_choice, noise):
        assert (price.shape, price.dtype) == (batch, F64 if example.anneals else dtype)
    for name, report in info.items():
        if example.anneals and name in ("acceptance_rate", "num_gradients"):
            assert report.ndim <= 1
            continue
        assert report.shape[-len(batch) :] == batch if batch else report.ndim <= 1, name
