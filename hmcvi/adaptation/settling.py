"""Settling: the first transitions of warm-up, from starts that may be anywhere."""

from __future__ import annotations

import math
from typing import Any, cast

import torch
from torch import Tensor

from hmcvi.adaptation.fisher import FisherMoments, robust_scales
from hmcvi.adaptation.lagging import keeping_up
from hmcvi.adaptation.low_rank import LowRank
from hmcvi.adaptation.mass import inverse_metric
from hmcvi.adaptation.step_size import MAX_DOUBLINGS, step_size_of, with_step_size
from hmcvi.adaptation.tunable import shortest
from hmcvi.chain import Phase
from hmcvi.density import Density
from hmcvi.kernels.mcmc.hmc import HMC
from hmcvi.kernels.mcmc.kernel import Info, Kernel

SETTLED_STEPS = 3  # of a trajectory, on average
UPDATES = (1 / 15, 2 / 15, 4 / 15, 7 / 15, 2 / 3, 1.0)  # when the mass is estimated anew
FAR, MOST_APPROACHES = 1e10, 200
WHITENED_STEP = 0.5  # where the search begins once all scales are one


class Settling:
    """The shortest moves of a kernel, each chain with its own step: log ε ← log ε + a − a*, a the acceptance.

    A chain far out in the tails takes the small steps it needs there, whatever the others need.  Moves are
    short so that its excess energy leaves with the momenta, instead of carrying it far away.
    [Graham 2018, §4.10.1, uses fewer and smaller steps at first]
    """

    def __init__(self, kernel: Kernel, target: float, num_transitions: int) -> None:
        self.kernel, self._target, self._num_left = shortest(kernel), target, num_transitions

    def start(self, state: Any, generator: torch.Generator | None) -> None:
        """Prepare for chains in `state`."""

    def update(self, new: Any, info: Info, generator: torch.Generator | None) -> bool:
        """Learn from a transition; returns whether it was the last."""
        growth = (info["acceptance_rate"] - self._target).exp()[..., None]
        self.kernel = with_step_size(self.kernel, growth * step_size_of(self.kernel))
        self._num_left -= 1
        return self._num_left == 0

    def finish(self, kernel: Kernel) -> Kernel:
        """The kernel to tune from here on: what was learned is the positions."""
        return kernel


def approach(density: Density, state: Phase) -> Phase:
    """Chains brought within reach of Hamiltonian dynamics: z ← z + r g / ‖g‖ where that raises log γ.

    Below −10¹⁰ no step of theirs conserves energy to within one.  The radius r of a chain doubles, up to 1,
    with every success and is halved by a failure.  state: with log γ [...] and its gradient [..., d].
    """
    radius = torch.ones_like(state.position[..., :1])
    for _ in range(MOST_APPROACHES):
        assert state.log_prob is not None and state.grad is not None
        far = state.log_prob < -FAR
        if not far.any():
            break
        largest = state.grad.abs().amax(-1, keepdim=True).clamp(min=torch.finfo(radius.dtype).tiny)
        direction = torch.nn.functional.normalize(state.grad / largest, dim=-1)  # squares do not overflow
        trial = Phase(torch.where(far[..., None], state.position + radius * direction, state.position))
        trial = trial.evaluate(density)
        assert trial.log_prob is not None
        better = far & (trial.log_prob > state.log_prob)
        state = trial.where(better, state)
        radius = torch.where(better[..., None], (2 * radius).clamp(max=1.0), radius / 2)
    return state


class HamiltonianSettling(Settling):
    """Settling that learns the mass as well, from positions and gradients of all chains that keep up.

    The first mass is from the starts themselves, and every new one begins with a search for the step of each
    chain.
    """

    def __init__(
        self, kernel: HMC, target: float, num_transitions: int, learns_mass: bool, dense: bool | None
    ) -> None:
        super().__init__(kernel, target, num_transitions)
        self.kernel = self.kernel.replace(num_steps=SETTLED_STEPS, jitter=0.7)
        self._given, self._learns_mass, self._dense = step_size_of(kernel), learns_mass, dense
        self._updates = {math.ceil(share * num_transitions) for share in UPDATES}
        self._moments, self._index, self._learned = FisherMoments(dense), 0, False

    def start(self, state: Any, generator: torch.Generator | None) -> None:
        if self._learns_mass:
            self._set_mass(robust_scales(state.position, state.grad), state)
        self._search(state, generator)

    def update(self, new: Any, info: Info, generator: torch.Generator | None) -> bool:
        last = super().update(new, info, generator)
        self._index += 1
        if self._learns_mass:
            good = keeping_up(new.log_prob, new.position.shape[-1])
            self._moments.add(new.position[good], new.grad[good])
            if self._index in self._updates and self._set_mass(self._moments.covariance(), new):
                self._moments = FisherMoments(self._dense)
                if not last:
                    self._search(new, generator)
        return last

    def finish(self, kernel: Kernel) -> Kernel:
        """The kernel with the mass found, and the median of the chains' steps."""
        log_factor = (step_size_of(self.kernel) / self._given).log().flatten().median()
        kernel = with_step_size(kernel, self._given * log_factor.exp())
        return kernel.replace(metric=cast(HMC, self.kernel).metric) if self._learned else kernel

    def _set_mass(self, covariance: Tensor | LowRank | None, state: Any) -> bool:
        if covariance is None:
            return False
        self.kernel = self.kernel.replace(metric=inverse_metric(covariance, state.position))
        self._learned = True
        return True

    def _search(self, state: Any, generator: torch.Generator | None) -> None:
        """Double or halve the step of each chain until the acceptance of a single step crosses the target."""
        probe = self.kernel.replace(num_steps=1, jitter=0.0)
        first = WHITENED_STEP / self._given.log().mean().exp() if self._learned else 1.0
        factor = torch.ones_like(state.log_prob)[..., None] * first
        went_up, searching = None, torch.ones_like(factor, dtype=torch.bool)
        for _ in range(MAX_DOUBLINGS):
            _, info = with_step_size(probe, factor * self._given).step(state, generator)
            up = (info["acceptance_rate"] > self._target)[..., None]
            went_up = up if went_up is None else went_up
            searching = searching & (up == went_up)
            if not searching.any():
                break
            factor = torch.where(searching, torch.where(up, 2 * factor, factor / 2), factor)
        self.kernel = with_step_size(self.kernel, factor * self._given)
