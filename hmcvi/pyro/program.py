"""The chains of a guide as one program: after the first steps of a training the model's Python is not run."""

from __future__ import annotations

import copy
import math
from typing import Any, NamedTuple, Self

import torch
from pyro.distributions.transforms import LowerCholeskyAffine
from torch import Tensor, nn
from torch.distributions import AffineTransform, Transform

from hmcvi.chain import Phase, Step, Weights, weigh
from hmcvi.density import Density, LogProb, standard_log_prob
from hmcvi.internal.context import Context, Randomness
from hmcvi.internal.recorded import Recorded, Untraceable
from hmcvi.pyro.base import LowRankAffine
from hmcvi.pyro.transport import pulled_back

MAX_CHANGES = 3  # of a model, after which its chains are no longer recorded


class Ends(NamedTuple):
    """Weighted chains, where they end, and log γ there.  All [K, ...]"""

    weights: Weights
    position: Tensor  # e_T  [K, ..., d]
    log_target: Tensor  # log γ(e_T)

    def kept(self) -> tuple[Tensor, Tensor]:
        """The end of one chain of each batch, chosen in proportion to its weight, and log γ there."""
        log_weight = self.weights.log_weight.detach()
        gumbel = -torch.empty_like(log_weight).exponential_().log()
        index = (log_weight.nan_to_num(-torch.inf) + gumbel).argmax(0)
        position = self.position.take_along_dim(index[None, ..., None], 0)[0]
        return position, self.log_target.take_along_dim(index[None], 0)[0]


def weigh_chains(chain: Step, noise: Tensor, target: Density, randomness: Randomness | None = None) -> Ends:
    """Chains from noise ~ N(0, I)."""
    weights = weigh(chain, Phase(noise), standard_log_prob(noise), target, Context(None, randomness))
    assert weights.transition is not None
    state = weights.transition.state
    return Ends(weights, state.position, state.log_density(target))


class Replayed(Randomness):
    """Random numbers that were drawn before; without them it draws, and keeps them in `numbers`."""

    def __init__(self, numbers: list[Tensor] | None = None) -> None:
        super().__init__()
        self._given = None if numbers is None else iter(numbers)
        self.numbers: list[Tensor] = []

    def normal(self, like: Tensor) -> Tensor:
        self.numbers.append(super().normal(like) if self._given is None else next(self._given))
        return self.numbers[-1]

    def uniform(self, like: Tensor) -> Tensor:
        raise Untraceable("acceptance branches on values")


class _Weighing(nn.Module):
    """Chains as a function of tensors: initial noise, random numbers, and the tensors of the base."""

    def __init__(self, chain: Step, transform: Transform, log_joint: LogProb) -> None:
        super().__init__()
        self.chain, self._transform, self._log_joint = chain, transform, log_joint

    def forward(self, noise: Tensor, numbers: list[Tensor] | None, base: list[Tensor]) -> tuple[Tensor, ...]:
        target = pulled_back(self._log_joint, _rebuilt(self._transform, base))
        self.randomness = Replayed(numbers)
        ends = weigh_chains(self.chain, noise, target, self.randomness)
        return ends.weights.log_weight, ends.position, ends.log_target


class Program:
    """Chains of one model, base and number, recorded."""

    def __init__(self, chain: Step, transform: Transform, log_joint: LogProb, noise: Tensor) -> None:
        # of a copy: Pyro looks after the parameters of the chain itself
        weighing, base = _Weighing(copy.deepcopy(chain), transform, log_joint), _tensors(transform)
        with torch.random.fork_rng():
            weighing(noise, None, base)
        self._likes = [number.detach() for number in weighing.randomness.numbers]
        names = [name for name, _ in weighing.named_parameters()]
        first, second = 1 + len(self._likes), 1 + len(self._likes) + len(base)

        def function(*tensors: Tensor) -> tuple[Tensor, ...]:
            parameters = dict(zip(names, tensors[second:], strict=True))
            given = (tensors[0], list(tensors[1:first]), list(tensors[first:second]))
            found: tuple[Tensor, ...] = torch.func.functional_call(weighing, parameters, given)
            return found

        self._recorded = Recorded(function, [noise, *self._likes, *base, *chain.parameters()])

    def __call__(self, chain: Step, transform: Transform, noise: Tensor, target: Density) -> Ends:
        """Chains with the random numbers that `weigh_chains` would draw; by it, if some diverge or fail."""
        numbers = [torch.randn_like(like) for like in self._likes]
        found = self._recorded(noise, *numbers, *_tensors(transform), *chain.parameters())
        if found is None:
            return weigh_chains(chain, noise, target, Replayed(numbers))
        zeros = torch.zeros_like(found[0])
        return Ends(Weights(found[0], zeros, zeros), *found[1:])


class Programs:
    """The program of a guide, made when a training goes on with the same data; copies of it have none."""

    def __init__(self) -> None:
        self._program: Program | None = None
        self._made_for: Any = None
        self._num_changes = 0
        self._obstacle: str | None = None

    def find(
        self, chain: Step, transform: Transform, log_joint: LogProb, noise: Tensor, stamp: float | None
    ) -> Program | None:
        """The program of these, if there is one.  stamp: a number that changes with the model and its data"""
        if stamp is None or math.isnan(stamp) or self._num_changes > MAX_CHANGES:
            return None
        if not _is_traceable(transform):
            self.stop("its base is not an affine map of normal noise")
            return None
        now = (stamp, noise.shape, noise.dtype, noise.device)
        if self._made_for != now:
            self._num_changes += 1
            self._program, self._made_for = None, now
            if self._num_changes > MAX_CHANGES:
                self.stop("the model or its data change from step to step")
            return None  # the next call will tell whether they last
        if self._program is None:
            try:
                self._program = Program(chain, transform, log_joint, noise)
            except Exception as error:  # whatever is more than a list of operations is run as it is
                self.stop(f"{type(error).__name__}: {str(error).partition(chr(10))[0]}")
        return self._program

    def stop(self, obstacle: str) -> None:
        """Make no more of them."""
        self._program, self._num_changes, self._obstacle = None, MAX_CHANGES + 1, obstacle

    def why_not(self, vectorized: bool, num_chains: int) -> str | None:
        """Why such chains have no program, and will have none."""
        if not vectorized:
            return "vmap cannot run the model"
        if num_chains == 1:
            return "a single chain, num_particles=1, is not recorded"
        return self._obstacle

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return type(self)()

    def __reduce__(self) -> tuple[type[Self], tuple[()]]:
        return type(self), ()


def _is_traceable(transform: Transform) -> bool:
    return isinstance(transform, AffineTransform | LowerCholeskyAffine | LowRankAffine)


def _tensors(transform: Transform) -> list[Tensor]:
    match transform:
        case LowerCholeskyAffine():
            return [transform.loc, transform.scale_tril]
        case LowRankAffine():
            return [transform.loc, transform.scale, transform.factor]
        case AffineTransform(loc=Tensor() as loc, scale=Tensor() as scale):
            return [loc, scale]
    raise Untraceable(f"{transform} is not affine")


def _rebuilt(transform: Transform, tensors: list[Tensor]) -> Transform:
    match transform:
        case LowerCholeskyAffine():
            loc, root = tensors
            return LowerCholeskyAffine(loc, root)
        case LowRankAffine():
            loc, scale, factor = tensors
            return LowRankAffine(loc, scale, factor)
    loc, scale = tensors
    return AffineTransform(loc, scale, event_dim=1)
