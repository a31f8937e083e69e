"""Hamiltonian Monte Carlo as a Markov kernel."""

from __future__ import annotations

import copy
import functools
import math
from dataclasses import KW_ONLY, InitVar, dataclass, field
from types import EllipsisType

import torch
from torch import Tensor

from hmcvi.chain import Phase
from hmcvi.density import Density
from hmcvi.dynamics.forces import Approximation, ForcedDensity
from hmcvi.dynamics.integrators import Splitting, leapfrog
from hmcvi.dynamics.metrics import IdentityMetric, Metric
from hmcvi.dynamics.noncentring import NoncentredDensity, Noncentring
from hmcvi.flows.force import with_force
from hmcvi.internal.checks import at_least, positive, whole
from hmcvi.internal.compile import Programs, varying
from hmcvi.internal.random import integer, integer_, standard_normal, standard_normal_, uniform, uniform_
from hmcvi.internal.trees import map_tensors
from hmcvi.kernels.mcmc.kernel import Info, Kernel
from hmcvi.kernels.mcmc.retarget import tempered
from hmcvi.kernels.mcmc.transitions import RandomNumbers, TransitionPrograms, make_transition, plain

UNROLLED = 16  # forces of trajectories whose fixed length is part of the program
UNTUNED = 10  # steps, before warm-up has chosen their number


@dataclass(frozen=True, eq=False)
class HMC(Kernel):
    """v ~ N(0, M), L steps of the integrator, accept with probability min(1, e^{−ΔH}).

    step_size: number, [d] or one per chain [..., 1]; where warm-up begins.
    num_steps: L; None leaves it to warm-up, which tunes it over many chains.
    persistence: α of v ← α v + √(1−α²) n.  The momentum then outlives the transition and turns round where
        the proposal was rejected.  [Horowitz 1991]
    jitter: L is drawn for each transition, uniformly from the integers of [(1−jitter) L, (1+jitter) L], the
        same for all chains.  None: where warm-up tunes L, 1 until it has chosen a half or 1; else 0.
    compile: run transitions as a compiled program, many in one call; the first call takes up to ten seconds.
        "auto": `hmcvi.sample` does so by itself in runs that are long enough to gain by it, and repeats the
        recorded operations of log_prob and its gradient before.
        Programs are for trajectories of any length, or for the one that was given, if short and not random.
    force: trajectories follow the force of another density, cheaper to compute, and are accepted by the
        energies of this one, so that it stays invariant: "bf16", "surrogate(rank)", or a function of the
        density that makes the other one.  The same as `with_force(density, force)`, which is for all
        kernels.
    chunk: how many transitions `steps` makes unless it is told.  More than one: also those of a given length
        are made by one program; `step` is then not compiled.
    coordinates: those in which trajectories run, instead of z itself; states and draws are z all the same.
        Warm-up learns them where scales change from place to place, as in a funnel.

    >>> kernel = HMC(Density(lambda z: -0.5 * z.square().sum(-1)), step_size=0.5, num_steps=4)
    >>> state, info = kernel.step(kernel.init(torch.zeros(3, 2)), torch.Generator().manual_seed(0))
    >>> state.position.shape, sorted(info)[:4]
    (torch.Size([3, 2]), ['acceptance_rate', 'accepted', 'diverged', 'energy'])
    """

    density: Density
    step_size: float | Tensor = 0.1
    num_steps: int = None  # type: ignore[assignment]
    metric: Metric = None  # type: ignore[assignment]
    persistence: float = 0.0
    jitter: float = None  # type: ignore[assignment]
    integrator: Splitting = leapfrog
    compile: bool | str = "auto"
    chunk: int = 1
    _: KW_ONLY
    coordinates: Noncentring | None = None
    force: InitVar[str | Approximation | None] = None
    beta: Tensor | None = None  # at which the dynamics run; None: the density itself
    tunes_num_steps: bool = None  # type: ignore[assignment]
    _tunes_jitter: bool = field(default=None, repr=False)  # type: ignore[assignment]
    _programs: Programs = field(default_factory=Programs, repr=False)  # shared by copies with other settings

    uses_gradient = True

    def __post_init__(self, force: str | Approximation | None) -> None:
        settle = functools.partial(object.__setattr__, self)
        if force is not None:
            settle("density", with_force(self.density, force))
        left_to_warmup = self.num_steps is None
        if self.tunes_num_steps is None:
            settle("tunes_num_steps", left_to_warmup)
        if self._tunes_jitter is None:
            settle("_tunes_jitter", self.tunes_num_steps and self.jitter is None)
        if self.jitter is None:
            settle("jitter", float(left_to_warmup))
        if left_to_warmup:
            settle("num_steps", UNTUNED)
        if self.coordinates is not None and isinstance(self.density, ForcedDensity):
            raise ValueError(
                "a density with another force has no coordinates of its own: leave one of them out"
            )
        if self.metric is None:
            settle("metric", IdentityMetric())
        settle("step_size", positive(self.step_size, "step_size"))
        at_least(1, num_steps=self.num_steps, chunk=self.chunk)
        if self.compile not in (True, False, "auto"):
            raise ValueError(f"compile must be True, False or 'auto', got {self.compile!r}")
        if not -1 < self.persistence < 1:
            raise ValueError(f"persistence must lie in (-1, 1), got {self.persistence}")
        if not 0 <= self.jitter <= 1:
            raise ValueError(f"jitter must lie in [0, 1], got {self.jitter}")

    @torch.no_grad()
    def step(self, state: Phase, generator: torch.Generator | None = None) -> tuple[Phase, Info]:
        if self.coordinates is not None or (self.in_one_call and self._program_steps is None):
            state, _, infos = self.steps(state, generator, 1)
            return state, {name: part[0] for name, part in infos.items()}
        start, kept = self._start(state)
        numbers = self._draw(start, kept, generator)
        if self.compile is True and not self.in_one_call:
            transition, start = self._program.one, plain(start)
        else:
            transition = make_transition(self.density, self.integrator)
        new, info = transition(start, self.metric, *self._settings(start.position), numbers)
        return new, self._counted(info, state)

    @torch.no_grad()
    def steps(
        self, state: Phase, generator: torch.Generator | None = None, count: int | None = None
    ) -> tuple[Phase, Phase, Info]:
        """`count` (`chunk`) transitions in a row: the last state, all states and diagnostics [count, ...].

        The same random numbers as one by one; compiled, in one call of the program.
        """
        count = self.chunk if count is None else whole("count", count, 1)
        if self.coordinates is not None:
            return self._noncentred(state, generator, count)
        if not self.in_one_call:
            return self._one_by_one(state, generator, count)
        start, kept = self._start(state)
        numbers = self._draw_several(start, kept, generator, count)
        varying(*(part for part in numbers if isinstance(part, Tensor)))
        last, states, info = self._program.several(
            plain(start), self.metric, *self._settings(start.position), numbers
        )
        if count == 1:
            states = map_tensors(lambda part: part[:1], states)
            info = {name: part[:1] for name, part in info.items()}
            last = map_tensors(lambda part: part[0], states)
        return last, states, self._counted(info, state, 0)

    def _noncentred(
        self, state: Phase, generator: torch.Generator | None, count: int
    ) -> tuple[Phase, Phase, Info]:
        """`steps` in the coordinates y, and back."""
        target, coordinates = self.density, self.coordinates
        assert coordinates is not None
        key = target, coordinates
        density = self._programs.get(key, lambda: NoncentredDensity(target, coordinates))
        start = state.evaluate(self.density)
        inner = copy.copy(self)  # checked already
        object.__setattr__(inner, "density", density)
        object.__setattr__(inner, "coordinates", None)
        _, moved, info = inner.steps(density.to_reference(start), generator, count)
        if state.grad is None:
            info["num_gradients"][0] += 1
        trace = density.from_reference(moved, start, info["accepted"])
        return map_tensors(lambda part: part[-1], trace), trace, info

    def _counted(self, info: Info, state: Phase, first: int | EllipsisType = ...) -> Info:
        """What transitions report, with what was evaluated besides their forces; the first from `state`."""
        forced = isinstance(self.density, ForcedDensity)
        if forced:
            info["num_evaluations"] = torch.ones_like(info["num_gradients"])
        if state.grad is None:
            info["num_gradients"][first] += 1
            if forced:
                info["num_evaluations"][first] += 1
        return info

    def _one_by_one(
        self, state: Phase, generator: torch.Generator | None, count: int
    ) -> tuple[Phase, Phase, Info]:
        states, infos = [], []
        for _ in range(count):
            state, info = self.step(state, generator)
            states.append(state)
            infos.append(info)
        trace = map_tensors(lambda *parts: torch.stack(parts), *states)
        return state, trace, {name: torch.stack([info[name] for info in infos]) for name in infos[0]}

    def _start(self, state: Phase) -> tuple[Phase, Tensor | None]:
        """The state as transitions take it, and α of its momentum if that persists."""
        start = state.evaluate(self.density)
        if self.persistence == 0:
            return start._replace(momentum=None), None
        kept = start.position.new_tensor(self.persistence)
        if start.momentum is None:
            return start._replace(momentum=torch.zeros_like(start.position)), torch.zeros_like(kept)
        return start, kept

    def _draw(self, start: Phase, kept: Tensor | None, generator: torch.Generator | None) -> RandomNumbers:
        assert start.log_prob is not None
        num_steps = self._draw_num_steps(generator)
        return RandomNumbers(
            num_steps, standard_normal(start.position, generator), uniform(start.log_prob, generator), kept
        )

    def _draw_several(
        self, start: Phase, kept: Tensor | None, generator: torch.Generator | None, count: int
    ) -> RandomNumbers:
        """Those of so many transitions; of one, with another short one, since programs are for many."""
        assert start.log_prob is not None
        rows = max(count, 2)
        lengths = torch.ones(rows, dtype=torch.int64, device=None if generator is None else generator.device)
        normals = start.position.new_zeros(rows, *start.position.shape)
        uniforms = start.log_prob.new_zeros(rows, *start.log_prob.shape)
        low, high = self._range_of_num_steps()
        rooms = (part[:count].unbind() for part in (lengths, normals, uniforms))
        for length, normal, level in zip(*rooms, strict=True):
            if self.jitter == 0:
                length.fill_(low)
            else:
                integer_(length, low, high, generator)
            standard_normal_(normal, generator)
            uniform_(level, generator)
        alphas = None
        if kept is not None:
            alphas = kept.new_full((rows,), self.persistence)
            alphas[0] = kept
        return RandomNumbers(lengths.to(start.position.device), normals, uniforms, alphas)

    def _settings(self, like: Tensor) -> tuple[Tensor, Tensor | None]:
        """ε and β as programs take them: other numbers are no reason to compile again."""
        step_size = torch.as_tensor(self.step_size, dtype=like.dtype, device=like.device)
        step_size = step_size if step_size.ndim else step_size[None]
        return step_size, None if self.beta is None else self.beta.to(like)

    @property
    def in_one_call(self) -> bool:
        """Whether `steps` is one call of a program."""
        return self.compile is True and (self.chunk > 1 or self._program_steps is None)

    @property
    def _program_steps(self) -> int | None:
        """The length that compiled programs are made for; None: for any."""
        short = self.jitter == 0 and self.num_steps * self.integrator.num_stages <= UNROLLED
        return int(self.num_steps) if short and not self.tunes_num_steps else None

    @property
    def _program(self) -> TransitionPrograms:
        any_size = self.beta is not None  # annealing has a pilot run with another number of chains
        key = self.density, self.integrator, self._program_steps, any_size
        return self._programs.get(key, lambda: TransitionPrograms(*key))

    def _draw_num_steps(self, generator: torch.Generator | None) -> int:
        return int(self.num_steps) if self.jitter == 0 else integer(*self._range_of_num_steps(), generator)

    def _range_of_num_steps(self) -> tuple[int, int]:
        """The least and the most."""
        low, high = (1 - self.jitter) * self.num_steps, (1 + self.jitter) * self.num_steps
        return max(1, math.ceil(low)), math.floor(high)


@tempered.register
def _(kernel: HMC, beta: Tensor) -> HMC:
    """Here β is an input of the dynamics, and no force is computed twice."""
    return kernel.replace(beta=beta)
