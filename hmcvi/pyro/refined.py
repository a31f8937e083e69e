"""What guides with a chain share: initial noise, refinement, and its log-ratio in the trace."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple, Self

import pyro
import torch
from pyro import distributions as dist
from pyro.distributions.util import sum_rightmost
from pyro.infer.autoguide import AutoGuide
from torch import Tensor
from torch.distributions import Transform

from hmcvi.chain import Chain, Phase, Step, Weights, weigh
from hmcvi.density import Density, LogProb, standard_log_prob
from hmcvi.internal.random import own_random_numbers
from hmcvi.objectives import Bound
from hmcvi.pyro.chains import ChainSettings, MakeChain, chain_maker, check_chain
from hmcvi.pyro.data import Call, Shared
from hmcvi.pyro.first_steps import TRIALS, choose_step_size
from hmcvi.pyro.latents import Latents, Model
from hmcvi.pyro.program import Programs, weigh_chains
from hmcvi.pyro.quantiles import QUANTILE_DRAWS, weighted_quantiles
from hmcvi.pyro.store import is_stored, release
from hmcvi.pyro.transport import pulled_back


def _of_one_process(sums: Tensor) -> Tensor:
    """The sums of a batch that no other process shares; a function that can be pickled."""
    return sums


class Refined(NamedTuple):
    """The end of a chain, and log q of everything it drew but its initial noise."""

    position: Tensor  # [..., d]
    log_density: Tensor  # −Σ log_ratio − log|det|  [...]


class RefinedGuide(AutoGuide):
    """Base class of guides with a chain: z = T(e_T), e_T from e_0 ~ N(0, I) by the chain.

    T transports N(0, I) to the base, so the chain moves in coordinates in which the base is N(0, I).  The
    trace has two auxiliary sites, e_0 under N(0, I) and z with −Σ log_ratio − log|det ∂T/∂e_T| −
    log|det ∂x/∂z|, x the values of the latent sites, so that the difference of the traces' log-probabilities
    is log w and any ELBO of Pyro's bounds the evidence.  The sites of x have no density of their own, which
    TraceMeanField_ELBO would not see.
    """

    def __init__(
        self,
        model: Model,
        chain: str | Step | MakeChain | None,
        settings: ChainSettings,
        create_plates: Callable[..., Any] | None = None,
    ) -> None:
        super().__init__(model, create_plates=create_plates)
        self._held_model = Shared(model)
        self.latents: Latents | None = None
        self.prototype_trace: Any
        self._is_given = isinstance(chain, Step)
        self._make_chain = None if isinstance(chain, Step) else chain_maker(chain, settings)
        self._fits, self._is_settled = False, False
        self._programs = Programs()
        self._stamp: float | None = None  # of the model and its data
        self.chain: Step = chain if isinstance(chain, Step) else Chain()
        self.bound, self.importance_bound = Bound(), Bound(alpha=0.0)
        self.bound.pool = self.importance_bound.pool = _of_one_process

    @property
    def model(self) -> Model:
        """The model; unlike that of Pyro's guides it is kept in copies and pickles, because chains run it."""
        return self._held_model.value

    def __getstate__(self) -> dict[str, Any]:
        release(self)
        state = {**self.__dict__, "_model": None, "master": None}
        state.pop("plates", None)  # made by each call
        return state

    def _build_chain(self, dim: int, context_dim: int, like: Tensor) -> None:
        """Build the chain, or check that the one that was given fits; once."""
        if self._fits:
            return
        was_trained = is_stored(self, "chain")  # asked before the chain is touched, which stores it
        if self._make_chain is None:
            with own_random_numbers():
                check_chain(self.chain, dim, context_dim, like)
        else:
            chain = self._make_chain(dim=dim, context_dim=context_dim)
            self.chain = chain.to(dtype=like.dtype, device=like.device)
        self._is_settled = (
            self.chain.uses_force is None or was_trained
        )  # a chain of no steps has none to choose
        self._fits = True

    def requires_grad_(self, requires_grad: bool = True) -> Self:
        """Freeze it, or train it again: Pyro warns of modules that are frozen and in training mode."""
        return super().requires_grad_(requires_grad).train(requires_grad)

    def _refuse_tracing(self) -> None:
        if torch.jit.is_tracing():
            raise NotImplementedError(
                f"{type(self).__name__} cannot be compiled by torch.jit, because its chain decides by values "
                "what to do: use Trace_ELBO in place of JitTrace_ELBO"
            )

    def _settle(self, shape: torch.Size, target: Density, context: Tensor | None) -> None:
        self._is_settled = True
        choose_step_size(self.chain, shape, target, context, self._is_given)

    def _seen(self) -> Latents:
        if self.latents is None:
            name = type(self).__name__
            raise RuntimeError(f"{name} has not seen its model yet: call the guide, or SVI.step, first")
        return self.latents

    def _repeated(self, log_joint: LogProb) -> LogProb:
        """A function that is called many times by what sets the guide up."""
        return log_joint

    def _refine(
        self,
        noise: Tensor,
        transform: Transform,
        log_joint: LogProb,
        independent: int = 0,
        context: Tensor | None = None,
    ) -> Refined:
        """Run the chain.  noise: [..., d]; the last `independent` of its batch dimensions are data."""
        target = pulled_back(log_joint, transform)
        if not self._is_settled:
            self._settle(noise.shape, target, context)
        weights = weigh(self.chain, Phase(noise), standard_log_prob(noise), target, context)
        assert weights.transition is not None
        end = weights.transition.state.position
        position = transform(end)
        log_density = -weights.transition.log_ratio - transform.log_abs_det_jacobian(end, position)
        if weights.log_choice.requires_grad:
            log_density = log_density - self._score(weights, independent)
        return Refined(position, log_density)

    def _resample(
        self, noise: Tensor, transform: Transform, log_joint: LogProb, independent: int = 0
    ) -> Refined:
        """Run K chains and keep one of them, chosen by weight.  noise: [K, ..., d], the rest as in `_refine`

        Given the density log γ(z) − log mean_k w_k, its log-weight is log mean_k w_k, whose mean is the bound
        of K weighted chains: choosing by weight is a distribution over z as close to the posterior as that.
        [Domke & Sheldon 2018]
        """
        target = pulled_back(log_joint, transform)
        if not self._is_settled:
            chains, *each = noise.shape
            most = max(chains, math.ceil(TRIALS / math.prod(each[:-1])))  # all trials at once
            self._settle(torch.Size([most, *each]), pulled_back(self._repeated(log_joint), transform), None)
        if len(noise) == 1:
            return self._refine(noise[0], transform, log_joint, independent)
        stamp = self._stamp if torch.is_grad_enabled() else None
        program = self._programs.find(self.chain, transform, log_joint, noise, stamp)
        if program is None:
            ends = weigh_chains(self.chain, noise, target)
        else:
            ends = program(self.chain, transform, noise, target)
        log_mean = self.importance_bound(ends.weights)
        end, log_target = ends.kept()
        position = transform(end)
        log_density = log_target - transform.log_abs_det_jacobian(end, position) - log_mean
        alive = log_mean.detach().isfinite()
        log_density = log_density.where(alive, 0.0) - standard_log_prob(noise).sum(0)
        return Refined(position, log_density)

    def _score(self, weights: Weights, independent: int) -> Tensor:
        """Zero, with the gradient Σ_k (log w_k − b_k) ∇log_choice_k that acceptance adds to ∇E[log w]."""
        shape = weights.log_weight.shape
        data = shape[len(shape) - independent :]

        def particles(value: Tensor) -> Tensor:
            return value.reshape(-1, *data)

        log_weight = particles(weights.log_weight.detach())
        initial = None if weights.initial is None else particles(weights.initial)
        bound = self.bound(
            Weights(log_weight, particles(weights.log_choice), torch.zeros_like(log_weight), initial)
        )
        return bound - bound.detach()

    def _auxiliary(self, name: str, fn: dist.TorchDistribution) -> Tensor:
        """A site of the guide's own, which the model does not have."""
        value: Tensor = pyro.sample(f"_{self._pyro_name}_{name}", fn, infer={"is_auxiliary": True})
        return value

    def _sample_latent(self, refined: Refined, log_det: Tensor, name: str = "latent") -> Tensor:
        """The auxiliary site of the end of the chain.  log_det: log|det ∂x/∂z|  [...]"""
        if refined.log_density.isnan().any():
            raise ValueError(
                f"log q of {self._pyro_name} is not a number, as after a step with a gradient that was not: "
                "lower the learning rate or clip gradients (pyro.optim.ClippedAdam), and check that the "
                "posterior is proper"
            )
        density = refined.log_density - log_det
        return self._auxiliary(name, dist.Delta(refined.position, log_density=density, event_dim=1))

    def _log_det(self, variables: Mapping[str, Tensor], batch: torch.Size) -> Tensor:
        """Σ log|det ∂x/∂z| of these latents, for each chain.  variables: their coordinates.  -> [*batch]"""
        total = next(iter(variables.values())).new_zeros(batch)
        for name in variables:
            site = self._seen().sites[name]
            assert site.to_support is not None
            z = variables[name]
            value = site.to_support(z)
            price = site.to_support.log_abs_det_jacobian(z, value)
            price = sum_rightmost(price, price.dim() - value.dim() + site.event_dim)
            total = total + price.sum_to_size(batch)
        return total

    def _sample_sites(self, variables: Mapping[str, Tensor], plates: Mapping[str, Any]) -> dict[str, Tensor]:
        """Delta sites at the values of these latents.  variables: their coordinates."""
        result = {}
        for name in variables:
            site = self._seen().sites[name]
            assert site.to_support is not None
            value = site.to_support(variables[name])
            with ExitStack() as stack:
                for frame in site.frames:
                    stack.enter_context(plates[frame.name])
                result[name] = pyro.sample(name, dist.Delta(value, event_dim=site.event_dim))
        return result

    def _check_particles(self, noise: Tensor, nesting: int, own: Collection[int] = ()) -> None:
        """Refuse particles that are not left of the model's plates.  own: dimensions that are plates."""
        batch = noise.shape[:-1]
        taken = (dim for dim in range(-min(nesting, len(batch)), 0) if dim not in own)
        if any(batch[dim] > 1 for dim in taken):
            raise ValueError(
                f"the particles {list(batch)} collide with the plates of the model: build the ELBO with a "
                "larger max_plate_nesting, or leave it out"
            )

    @abstractmethod
    def sample_posterior(self, num_samples: int, *args: Any, **kwargs: Any) -> dict[str, Tensor]:
        """Independent draws from the refined posterior.  {site: [num_samples, *shape]}"""

    def median(self, *args: Any, **kwargs: Any) -> dict[str, Tensor]:
        """{site: median of each of its entries}"""
        return {name: value[0] for name, value in self.quantiles([0.5], *args, **kwargs).items()}

    @torch.no_grad()
    def quantiles(self, quantiles: Sequence[float] | Tensor, *args: Any, **kwargs: Any) -> dict[str, Tensor]:
        """Quantiles of the unconstrained latents, mapped to the sites.  {site: [quantile, *shape]}

        Of draws by random numbers of their own: a function of the parameters.
        """
        latents = self._seen()
        with own_random_numbers():
            draws, weight = self._weighted_draws(Call(args, kwargs))
        found = {name: weighted_quantiles(value, weight, quantiles) for name, value in draws.items()}
        return latents.constrain(found)[0]

    def _weighted_draws(self, call: Call) -> tuple[dict[str, Tensor], Tensor]:
        """Unconstrained latents and their probabilities.  {site: [n, *shape]}, [n]"""
        values = self.sample_posterior(QUANTILE_DRAWS, *call.args, **call.kwargs)
        draws = self._seen().unconstrain(values)
        return draws, next(iter(draws.values())).new_full((QUANTILE_DRAWS,), 1 / QUANTILE_DRAWS)
