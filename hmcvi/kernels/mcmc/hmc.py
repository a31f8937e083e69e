"""Hamiltonian Monte Carlo as a Markov kernel."""

from __future__ import annotations

import math
from collections.abc import Hashable
from typing import Any

import torch
from torch import Tensor

from hmcvi.chain import Phase
from hmcvi.density import Density
from hmcvi.dynamics.energies import System, accept
from hmcvi.dynamics.integrators import Integrator, Splitting, leapfrog
from hmcvi.dynamics.metrics import IdentityMetric, Metric
from hmcvi.internal.compile import Compiled
from hmcvi.internal.random import integer, standard_normal, uniform
from hmcvi.kernels.mcmc.kernel import Info, Kernel, positive
from hmcvi.kernels.mcmc.several import Transition, make_several

UNROLLED = 16  # forces in one compiled program; longer and random trajectories are made of single steps


class HMC(Kernel):
    """v ~ N(0, M), L steps of the integrator, accept with probability min(1, e^{−ΔH}).

    step_size: number, [d] or one per chain [..., 1].
    num_steps: L; None leaves it to warm-up, which tunes it over many chains.
    persistence: α of v ← α v + √(1−α²) n.  The momentum then outlives the transition and turns round where
        the proposal was rejected.  [Horowitz 1991]
    jitter: L is drawn for each transition, uniformly from the integers of [(1−jitter) L, (1+jitter) L], the
        same for all chains.  None: 1 where warm-up tunes L, else 0.
    compile: run a transition as one compiled program; the first call takes some ten seconds.
    chunk: with compile, as many transitions in one program, their random numbers drawn together: for cheap
        densities, of which a call costs more than its arithmetic.  `step` and warm-up are then not compiled.

    >>> kernel = HMC(Density(lambda z: -0.5 * z.square().sum(-1)), step_size=0.5, num_steps=4)
    >>> state, info = kernel.step(kernel.init(torch.zeros(3, 2)), torch.Generator().manual_seed(0))
    >>> state.position.shape, sorted(info)[:4]
    (torch.Size([3, 2]), ['acceptance_rate', 'accepted', 'diverged', 'energy'])
    """

    uses_gradient = True
    tuned = ("step_size", "metric", "num_steps")
    target_acceptance = 0.8

    def __init__(
        self,
        density: Density,
        step_size: float | Tensor,
        num_steps: int | None = None,
        metric: Metric | None = None,
        persistence: float = 0.0,
        jitter: float | None = None,
        integrator: Splitting = leapfrog,
        compile: bool = False,
        chunk: int = 1,
    ) -> None:
        if num_steps is not None and num_steps < 1:
            raise ValueError(f"num_steps must be at least 1, got {num_steps}")
        if not -1 < persistence < 1:
            raise ValueError(f"persistence must lie in (-1, 1), got {persistence}")
        if jitter is not None and not 0 <= jitter <= 1:
            raise ValueError(f"jitter must lie in [0, 1], got {jitter}")
        self.density, self.integrator = density, integrator
        self.metric = IdentityMetric() if metric is None else metric
        self.step_size = positive(step_size, "step_size")
        self.tunes_num_steps = num_steps is None
        self.num_steps = 10 if num_steps is None else num_steps
        self.persistence = persistence
        self.jitter = float(num_steps is None) if jitter is None else jitter
        if chunk < 1:
            raise ValueError(f"chunk must be at least 1, got {chunk}")
        if chunk > 1 and (not compile or self.jitter > 0 or self._num_forces(self.num_steps) > UNROLLED):
            raise ValueError(
                f"chunk={chunk} needs compile=True, jitter=0 and num_steps of at most {UNROLLED} forces: "
                "calls of longer trajectories cost little beside them"
            )
        self.compile, self.chunk = compile, chunk
        self.beta: Tensor | None = None  # at which the dynamics run; None: the density itself
        self._stepwise = Stepwise(integrator)
        # programs, shared by copies with other step sizes and metrics
        self._compiled: dict[Hashable, Any] = {}

    @torch.no_grad()
    def step(self, state: Phase, generator: torch.Generator | None = None) -> tuple[Phase, Info]:
        transition = self._transition(self._draw_num_steps(generator))
        start, kept = self._start(state)
        assert start.log_prob is not None
        noise, coin = standard_normal(start.position, generator), uniform(start.log_prob, generator)
        new, info = transition(start, self.metric, self._step_size(noise), noise, coin, self.beta, kept)
        if state.grad is None:
            info["num_gradients"] += 1
        return new, info

    @torch.no_grad()
    def steps(self, state: Phase, generator: torch.Generator | None = None) -> tuple[Phase, Phase, Info]:
        if self.chunk == 1:
            return super().steps(state, generator)
        key = self.density, self.num_steps, self.beta is not None, self.chunk
        if key not in self._compiled:
            transition = make_transition(self.density, self.integrator, self.num_steps)
            self._compiled[key] = Compiled(make_several(transition), "a chunk of transitions", loops=True)
        if self.persistence != 0 and state.momentum is None:
            state = state._replace(momentum=self.metric.color(standard_normal(state.position, generator)))
        start, kept = self._start(state)
        assert start.log_prob is not None
        noises, coins = (
            draw(like.expand(self.chunk, *like.shape), generator)
            for draw, like in ((standard_normal, start.position), (uniform, start.log_prob))
        )
        last, states, info = self._compiled[key](
            start, self.metric, self._step_size(noises), noises, coins, self.beta, kept
        )
        if state.grad is None:
            info["num_gradients"][0] += 1
        return last, states, info

    def _start(self, state: Phase) -> tuple[Phase, Tensor | None]:
        """The state as programs take it, and α of its momentum if that persists."""
        start = state.evaluate(self.density)
        if self.compile:
            start = _plain(start)
        if self.persistence == 0:
            return start._replace(momentum=None), None
        kept = start.position.new_tensor(self.persistence)
        if start.momentum is None:
            return start._replace(momentum=torch.zeros_like(start.position)), torch.zeros_like(kept)
        return start, kept

    def _step_size(self, like: Tensor) -> Tensor:
        return torch.atleast_1d(self.step_size.to(like))  # a number is no reason to compile again

    def tempered_step(
        self, state: Phase, beta: Tensor, generator: torch.Generator | None = None
    ) -> tuple[Phase, Info]:
        """As for every kernel; here β is an input of the dynamics, and no force is computed twice."""
        return self.replace(beta=beta.to(state.position)).step(state, generator)

    def _transition(self, num_steps: int) -> Transition:
        if not self.compile or self.chunk > 1:
            return make_transition(self.density, self.integrator, num_steps)
        if self.jitter > 0 or self._num_forces(num_steps) > UNROLLED:
            return make_transition(self.density, self._stepwise, num_steps)
        tempered = self.beta is not None  # annealing has a pilot run with another number of chains
        key = self.density, num_steps, tempered
        if key not in self._compiled:
            transition = make_transition(self.density, self.integrator, num_steps)
            self._compiled[key] = Compiled(transition, "the transition", any_size=tempered)
        program: Transition = self._compiled[key]
        return program

    def single_step(self) -> HMC:
        return self.replace(num_steps=1, jitter=0.0, persistence=0.0, compile=False, chunk=1)

    def _num_forces(self, num_steps: int) -> int:
        return num_steps * self.integrator.num_stages

    def _draw_num_steps(self, generator: torch.Generator | None) -> int:
        if self.jitter == 0:
            return self.num_steps
        low, high = (1 - self.jitter) * self.num_steps, (1 + self.jitter) * self.num_steps
        return integer(max(1, math.ceil(low)), math.floor(high), generator)


def make_transition(density: Density, integrator: Integrator, num_steps: int) -> Transition:
    """One transition as a function of its random numbers: noise ~ N(0, I) [..., d], coin ~ U(0, 1) [...].

    kept: α of persistent momenta [], None where they are forgotten.
    """
    num_gradients = num_steps * getattr(integrator, "num_stages", 1)

    def transition(
        state: Phase,
        metric: Metric,
        step_size: Tensor,
        noise: Tensor,
        coin: Tensor,
        beta: Tensor | None,
        kept: Tensor | None,
    ) -> tuple[Phase, Info]:
        system = System(density, metric, beta, masked=False)
        momentum = metric.color(noise)
        if kept is not None:
            assert state.momentum is not None
            momentum = kept * state.momentum + (1 - kept.square()).sqrt() * momentum
        start = state._replace(momentum=momentum)
        end = integrator(system, start, step_size, num_steps)
        info = accept(system.energy(start), system.energy(end), coin)
        info["num_gradients"] = torch.full_like(info["accepted"], num_gradients, dtype=torch.int64)
        new = end.where(info["accepted"], start._replace(momentum=-momentum))
        return new if kept is not None else new._replace(momentum=None), info

    return transition


def _plain(state: Phase) -> Phase:
    """To the compiler views, as first gradients may be, and tensors with gaps are of other kinds."""

    def plain(part: Tensor | None) -> Tensor | None:
        if part is None or (part.is_contiguous() and not part._is_view()):
            return part
        return part.clone(memory_format=torch.contiguous_format)

    position, *others = map(plain, state)
    assert position is not None
    return Phase(position, *others)


class Stepwise:
    """A trajectory as a loop over one compiled step, whatever its length."""

    def __init__(self, integrator: Splitting) -> None:
        self.num_stages = integrator.num_stages
        self._step = Compiled(integrator, "the trajectory")

    def __call__(self, system: System, start: Phase, step_size: Tensor, num_steps: int) -> Phase:
        for _ in range(num_steps):
            start = self._step(system, start, step_size, 1)
        return start
