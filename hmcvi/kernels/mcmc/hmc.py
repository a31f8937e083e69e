"""Hamiltonian Monte Carlo as a Markov kernel."""

from __future__ import annotations

import functools
import math
from dataclasses import KW_ONLY, dataclass, field

import torch
from torch import Tensor

from hmcvi.chain import Phase
from hmcvi.density import Density
from hmcvi.dynamics.integrators import Splitting, leapfrog
from hmcvi.dynamics.metrics import IdentityMetric, Metric
from hmcvi.internal.checks import at_least, positive
from hmcvi.internal.compile import Compiled, Programs
from hmcvi.internal.random import integer, standard_normal, uniform
from hmcvi.internal.trees import map_tensors
from hmcvi.kernels.mcmc.kernel import Info, Kernel
from hmcvi.kernels.mcmc.retarget import tempered
from hmcvi.kernels.mcmc.transitions import (
    Stepwise,
    TransitionFunction,
    make_transition,
    make_transitions,
    plain,
)

UNROLLED = 16  # forces in one compiled program; longer and random trajectories are made of single steps
UNTUNED = 10  # steps, before warm-up has chosen their number


@dataclass(frozen=True, eq=False)
class HMC(Kernel):
    """v ~ N(0, M), L steps of the integrator, accept with probability min(1, e^{−ΔH}).

    step_size: number, [d] or one per chain [..., 1].
    num_steps: L; None leaves it to warm-up, which tunes it over many chains.
    persistence: α of v ← α v + √(1−α²) n.  The momentum then outlives the transition and turns round where
        the proposal was rejected.  [Horowitz 1991]
    jitter: L is drawn for each transition, uniformly from the integers of [(1−jitter) L, (1+jitter) L], the
        same for all chains.  None: where warm-up tunes L, 1 until it has chosen a half or 1; else 0.
    compile: run a transition as one compiled program; the first call takes some ten seconds.
    chunk: how many transitions `steps` makes.  If compiled, short and of fixed length, they are one program,
        for cheap densities, of which a call costs more than its arithmetic; `step` is then not compiled.

    >>> kernel = HMC(Density(lambda z: -0.5 * z.square().sum(-1)), step_size=0.5, num_steps=4)
    >>> state, info = kernel.step(kernel.init(torch.zeros(3, 2)), torch.Generator().manual_seed(0))
    >>> state.position.shape, sorted(info)[:4]
    (torch.Size([3, 2]), ['acceptance_rate', 'accepted', 'diverged', 'energy'])
    """

    density: Density
    step_size: float | Tensor
    num_steps: int = None  # type: ignore[assignment]
    metric: Metric = None  # type: ignore[assignment]
    persistence: float = 0.0
    jitter: float = None  # type: ignore[assignment]
    integrator: Splitting = leapfrog
    compile: bool = False
    chunk: int = 1
    _: KW_ONLY
    beta: Tensor | None = None  # at which the dynamics run; None: the density itself
    tunes_num_steps: bool = None  # type: ignore[assignment]
    _tunes_jitter: bool = field(default=None, repr=False)  # type: ignore[assignment]
    _programs: Programs = field(default_factory=Programs, repr=False)  # shared by copies with other settings

    uses_gradient = True

    def __post_init__(self) -> None:
        settle = functools.partial(object.__setattr__, self)
        left_to_warmup = self.num_steps is None
        if self.tunes_num_steps is None:
            settle("tunes_num_steps", left_to_warmup)
        if self._tunes_jitter is None:
            settle("_tunes_jitter", self.tunes_num_steps and self.jitter is None)
        if self.jitter is None:
            settle("jitter", float(left_to_warmup))
        if left_to_warmup:
            settle("num_steps", UNTUNED)
        if self.metric is None:
            settle("metric", IdentityMetric())
        settle("step_size", positive(self.step_size, "step_size"))
        at_least(1, num_steps=self.num_steps, chunk=self.chunk)
        if not -1 < self.persistence < 1:
            raise ValueError(f"persistence must lie in (-1, 1), got {self.persistence}")
        if not 0 <= self.jitter <= 1:
            raise ValueError(f"jitter must lie in [0, 1], got {self.jitter}")

    @torch.no_grad()
    def step(self, state: Phase, generator: torch.Generator | None = None) -> tuple[Phase, Info]:
        transition = self._transition(self._draw_num_steps(generator))
        start, kept = self._start(state)
        assert start.log_prob is not None
        noise, number = standard_normal(start.position, generator), uniform(start.log_prob, generator)
        new, info = transition(
            start, self.metric, self._epsilon(noise), noise, number, self._beta(noise), kept
        )
        if state.grad is None:
            info["num_gradients"] += 1
        return new, info

    @torch.no_grad()
    def steps(self, state: Phase, generator: torch.Generator | None = None) -> tuple[Phase, Phase, Info]:
        """`chunk` transitions in a row: the last state, and all states and diagnostics [chunk, ...]."""
        if not self._is_one_program:
            return self._one_by_one(state, generator)
        transition = make_transition(self.density, self.integrator, self.num_steps)
        program = self._programs.get(
            (self.density, self.num_steps, self.beta is not None, self.chunk),
            lambda: Compiled(make_transitions(transition), "a chunk of transitions", loops=True),
        )
        if self.persistence != 0 and state.momentum is None:
            state = state._replace(momentum=self.metric.sample(state.position, generator))
        start, kept = self._start(state)
        assert start.log_prob is not None
        noises, numbers = (
            draw(like.expand(self.chunk, *like.shape), generator)
            for draw, like in ((standard_normal, start.position), (uniform, start.log_prob))
        )
        last, states, info = program(
            start, self.metric, self._epsilon(noises), noises, numbers, self._beta(noises), kept
        )
        if state.grad is None:
            info["num_gradients"][0] += 1
        return last, states, info

    def _one_by_one(self, state: Phase, generator: torch.Generator | None) -> tuple[Phase, Phase, Info]:
        states, infos = [], []
        for _ in range(self.chunk):
            state, info = self.step(state, generator)
            states.append(state)
            infos.append(info)
        trace = map_tensors(lambda *parts: torch.stack(parts), *states)
        return state, trace, {name: torch.stack([info[name] for info in infos]) for name in infos[0]}

    @property
    def _is_one_program(self) -> bool:
        return self.compile and self.chunk > 1 and self._is_short

    @property
    def _is_short(self) -> bool:
        """Whether all of a trajectory fits into one program."""
        return self.jitter == 0 and self.num_steps * self.integrator.num_stages <= UNROLLED

    def _start(self, state: Phase) -> tuple[Phase, Tensor | None]:
        """The state as programs take it, and α of its momentum if that persists."""
        start = state.evaluate(self.density)
        if self.compile:
            start = plain(start)
        if self.persistence == 0:
            return start._replace(momentum=None), None
        kept = start.position.new_tensor(self.persistence)
        if start.momentum is None:
            return start._replace(momentum=torch.zeros_like(start.position)), torch.zeros_like(kept)
        return start, kept

    def _epsilon(self, like: Tensor) -> Tensor:
        """ε as programs take it: a number is no reason to compile again."""
        return torch.atleast_1d(torch.as_tensor(self.step_size).to(like))

    def _beta(self, like: Tensor) -> Tensor | None:
        return None if self.beta is None else self.beta.to(like)

    def _transition(self, num_steps: int) -> TransitionFunction:
        if not self.compile or self._is_one_program:
            return make_transition(self.density, self.integrator, num_steps)
        if not self._is_short:
            stepwise = self._programs.get(self.integrator, lambda: Stepwise(self.integrator))
            return make_transition(self.density, stepwise, num_steps)
        is_tempered = self.beta is not None  # annealing has a pilot run with another number of chains

        def compiled() -> TransitionFunction:
            transition = make_transition(self.density, self.integrator, num_steps)
            return Compiled(transition, "the transition", any_size=is_tempered)

        return self._programs.get((self.density, num_steps, is_tempered), compiled)

    def _draw_num_steps(self, generator: torch.Generator | None) -> int:
        if self.jitter == 0:
            return self.num_steps
        low, high = (1 - self.jitter) * self.num_steps, (1 + self.jitter) * self.num_steps
        return integer(max(1, math.ceil(low)), math.floor(high), generator)


@tempered.register
def _(kernel: HMC, beta: Tensor) -> HMC:
    """Here β is an input of the dynamics, and no force is computed twice."""
    return kernel.replace(beta=beta)
