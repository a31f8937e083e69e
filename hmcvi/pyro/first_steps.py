"""The step size with which the chain of a guide begins."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from hmcvi.adaptation.step_size import halve_until, take_best
from hmcvi.chain import Phase, Step, weigh
from hmcvi.density import Density, standard_log_prob
from hmcvi.internal.random import own_random_numbers
from hmcvi.kernels import ReverseMomentum, StepSize

TRIALS, MAX_HALVINGS = 64, 20
# of the energy along trajectories with the first step size, relative to what they exchange
MAX_ERROR, MAX_GIVEN_ERROR = 0.1, 1.0
FACTORS = (4.0, 2.8, 2.0, 1.4, 1.0, 0.7, 0.5)  # of step sizes to choose from


@torch.no_grad()
def choose_step_size(
    chain: Step, shape: torch.Size, target: Density, context: Tensor | None, is_given: bool
) -> None:
    """Choose the step size by trajectories from the base, with random numbers of their own.

    It is halved until they keep their energy (a chain that was given: until most of them are stable).  An
    annealed chain, whose untrained weights say how good it is, then takes the best of some around.
    shape: [..., d], of the chains that run at once
    """
    steps = [part.log_step for part in chain.modules() if isinstance(part, StepSize)]
    if not steps:
        return
    count = math.ceil(TRIALS / shape[:-1].numel())
    most = MAX_GIVEN_ERROR if is_given else MAX_ERROR

    def energy_is_kept() -> bool:
        noises = (torch.randn(shape).to(steps[0]) for _ in range(count))
        errors = [energy_error(chain, noise, target, context) for noise in noises]
        return bool(torch.stack(errors).median() <= most)

    def weight() -> float:
        with own_random_numbers():
            noises = [torch.randn(shape).to(steps[0]) for _ in range(count)]
            parts = [weigh(chain, Phase(n), standard_log_prob(n), target, context) for n in noises]
        return float(torch.stack([part.log_weight for part in parts]).mean())

    with own_random_numbers():
        halve_until(energy_is_kept, steps, MAX_HALVINGS)
    reverses = any(isinstance(part, ReverseMomentum) for part in chain.modules())
    if not (is_given or reverses):
        take_best(weight, steps, FACTORS)


def energy_error(chain: Step, noise: Tensor, target: Density, context: Tensor | None) -> Tensor:
    """max_t |ΔH_t| / (d/2 + |log γ(e_T) − log γ(e_0)|), d/2 the kinetic energy.  [..., d] -> [...]"""
    start = Phase(noise).evaluate(target)
    transition = chain(start, target, context)
    if "energy_change" not in transition.info:
        return torch.zeros_like(transition.log_ratio)
    exchanged = transition.state.log_density(target) - start.log_density(target)
    error = transition.info["energy_change"].abs().amax(0)
    return (error / (noise.shape[-1] / 2 + exchanged.abs())).nan_to_num(torch.inf)
