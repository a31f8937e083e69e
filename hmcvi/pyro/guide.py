"""Autoguides refined by Hamiltonian Monte Carlo."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

import pyro
import torch
from pyro import distributions as dist
from pyro.distributions.util import sum_rightmost
from pyro.infer.autoguide import AutoContinuous, AutoDiagonalNormal, AutoGuide
from torch import Tensor
from torch.distributions import Transform

from hmcvi.chain import Chain, Phase, Step
from hmcvi.density import LogProb
from hmcvi.kernels import hamiltonian_chain
from hmcvi.layout import Layout
from hmcvi.objectives import Bound, Weights
from hmcvi.pyro.joint import Joint, batched, vectorizes
from hmcvi.pyro.latents import Latents, Model, check_same_sites, find_latents
from hmcvi.pyro.transport import pulled_back, standard_log_prob, transport

QUANTILE_DRAWS = 1000


class Refined(NamedTuple):
    """Where a chain ended, and log q of everything it drew, its starting noise apart."""

    position: Tensor  # [..., d]
    log_density: Tensor  # −Σ log_ratio − log|det|  [...]


class RefinedGuide(AutoGuide):
    """What guides with a chain share: z = T(e_T), e_T from e_0 ~ N(0, I) by the chain.

    T is the transport of the base law, so the chain moves in coordinates in which its start is N(0, I).  The
    trace has two auxiliary sites, e_0 under its law and z with −Σ log_ratio − log|det ∂T/∂e_T|, so that the
    difference of the traces' log-probabilities is log w and any ELBO of Pyro's is a bound of the refined law.
    """

    def __init__(
        self,
        model: Model,
        num_hmc: int,
        num_leapfrog: int,
        partial: bool | float,
        mass: str,
        accept: str | None,
        chain: Step | None,
        hidden: Sequence[int],
        initial_step_size: float,
        create_plates: Callable[..., Any] | None = None,
    ) -> None:
        super().__init__(model, create_plates=create_plates)
        self.latents: Latents | None = None
        self.prototype_trace: Any
        self._make_chain = functools.partial(
            hamiltonian_chain,
            num_hmc=num_hmc,
            num_leapfrog=num_leapfrog,
            partial=partial,
            mass=mass,
            accept=accept,
            hidden=hidden,
            initial_step_size=initial_step_size,
        )
        self._make_chain(dim=1, context_dim=1)  # refuses wrong settings here and now
        self._has_chain = chain is not None
        self.chain: Step = Chain() if chain is None else chain
        self.bound = Bound()

    def _build_chain(self, dim: int, context_dim: int, like: Tensor) -> None:
        if not self._has_chain:
            chain = self._make_chain(dim=dim, context_dim=context_dim)
            self.chain = chain.to(dtype=like.dtype, device=like.device)
            self._has_chain = True

    def _seen(self) -> Latents:
        if self.latents is None:
            name = type(self).__name__
            raise RuntimeError(f"{name} has not seen its model yet: call the guide, or SVI.step, first")
        return self.latents

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
        start = Phase(noise).evaluate(target) if self.chain.uses_force else Phase(noise)
        transition = self.chain(start, target, context)
        end = transition.state.position
        position = transform(end)
        log_density = -transition.log_ratio - transform.log_abs_det_jacobian(end, position)
        if transition.log_choice.requires_grad:
            log_q0 = standard_log_prob(noise)
            log_weight = transition.state.log_density(target) - log_q0 + transition.log_ratio
            initial = None if start.log_prob is None else start.log_prob - log_q0
            log_density = log_density - self._score(log_weight, initial, transition.log_choice, independent)
        return Refined(position, log_density)

    def _score(
        self, log_weight: Tensor, initial: Tensor | None, log_choice: Tensor, independent: int
    ) -> Tensor:
        """Zero, with the gradient Σ_k (log w_k − b_k) ∇log_choice_k that coins add to that of E[log w]."""
        shape = log_weight.shape
        data = shape[len(shape) - independent :]

        def particles(value: Tensor) -> Tensor:
            return value.reshape(-1, *data)

        weights = Weights(
            particles(log_weight.detach()),
            particles(log_choice),
            torch.zeros_like(particles(log_weight.detach())),
            None if initial is None else particles(initial.detach()),
        )
        bound = self.bound(weights)
        return bound - bound.detach()

    def _sample_sites(self, variables: Mapping[str, Tensor], plates: Mapping[str, Any]) -> dict[str, Tensor]:
        """Delta sites at the values of all latents.  variables: their coordinates."""
        result = {}
        for name, site in self._seen().sites.items():
            assert site.to_support is not None
            value = site.to_support(variables[name])
            price = site.to_support.log_abs_det_jacobian(variables[name], value)
            price = sum_rightmost(price, price.dim() - value.dim() + site.event_dim)
            with ExitStack() as stack:
                for frame in site.frames:
                    stack.enter_context(plates[frame.name])
                delta = dist.Delta(value, log_density=-price, event_dim=site.event_dim)
                result[name] = pyro.sample(name, delta)
        return result


class AutoHMC(RefinedGuide):
    """A guide of all latents together, refined by Hamiltonian Monte Carlo.  [Wolf et al. 2016]

    For models with continuous latents and `SVI` with `Trace_ELBO`; with `RenyiELBO`, or
    num_particles > 1 and vectorize_particles=True, as well.  Its ELBO is a bound of the refined law.

    num_hmc, num_leapfrog, partial, mass, accept: as in `hamiltonian_chain`.  With accept the gradient has a
        score term that makes it unbiased under Trace_ELBO; under RenyiELBO only values are exact then.
    base: the guide it starts from, a class such as AutoMultivariateNormal, any function of the model that
        gives such a guide, or a guide, trained or not.
    chain: another chain in place of these, such as annealed_chain(dim, 0, num_steps=10).
    hidden: layers of the reverse models.  initial_step_size: in units of the base's scales.

    `median`, `quantiles` and `sample_posterior` describe the refined law by draws from it.

    >>> from pyro.distributions import Normal
    >>> from pyro.infer import SVI, Trace_ELBO
    >>> def model():
    ...     z = pyro.sample("z", Normal(torch.zeros(2), 1.0).to_event(1))
    ...     pyro.sample("x", Normal(z.sum(), 0.1), obs=torch.tensor(1.0))
    >>> pyro.clear_param_store()
    >>> guide = AutoHMC(model, num_hmc=2, num_leapfrog=3)
    >>> svi = SVI(model, guide, pyro.optim.Adam({"lr": 0.01}), Trace_ELBO())
    >>> loss = svi.step()
    >>> guide.sample_posterior(5)["z"].shape
    torch.Size([5, 2])
    """

    def __init__(
        self,
        model: Model,
        num_hmc: int = 3,
        num_leapfrog: int = 4,
        partial: bool | float = True,
        mass: str = "global",
        accept: str | None = None,
        base: Callable[[Model], AutoContinuous] | AutoContinuous = AutoDiagonalNormal,
        chain: Step | None = None,
        hidden: Sequence[int] = (64, 64),
        initial_step_size: float = 0.2,
    ) -> None:
        super().__init__(
            model, num_hmc, num_leapfrog, partial, mass, accept, chain, hidden, initial_step_size
        )
        self.base = base if isinstance(base, AutoGuide) else base(model)
        if not isinstance(self.base, AutoContinuous):
            raise ValueError(
                "base must be an autoguide over all latents such as AutoDiagonalNormal or "
                f"AutoMultivariateNormal, got {type(self.base).__name__}"
            )
        self._vectorized: bool | None = None

    def _setup_prototype(self, *args: Any, **kwargs: Any) -> None:
        latents = find_latents("AutoHMC", self.model, args, kwargs)
        super()._setup_prototype(*args, **kwargs)
        if self.base.prototype_trace is None:
            self.base._setup_prototype(*args, **kwargs)
        self._check_prototype(self.base.prototype_trace)
        self._layout = Layout(latents.shapes)
        example = next(iter(latents.sites.values())).value
        self.base.get_posterior(*args, **kwargs)  # builds the flow of those that have one
        self.base.to(example.dtype)
        self._build_chain(self._layout.dim, 0, example)
        self._max_plate_nesting = max((-f.dim for s in latents.sites.values() for f in s.frames), default=0)
        self.latents = latents

    def _check_prototype(self, base_trace: Any) -> None:
        """Called by the base too, as Pyro's guides do with the guide that they are a part of."""
        check_same_sites(base_trace, [name for name, _ in self.prototype_trace.iter_stochastic_nodes()])

    def _refined(self, noise: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Refined:
        latents = self._seen()
        joint = Joint(self.model, args, kwargs, latents)
        if self._vectorized is None and noise.shape[:-1].numel() > 1:
            self._vectorized = vectorizes(joint, latents)
        log_prob = batched(joint, latents, bool(self._vectorized))
        return self._refine(
            noise,
            transport(self.base.get_posterior(*args, **kwargs)),
            lambda position: log_prob(self._layout.unflatten(position)),
        )

    def forward(self, *args: Any, **kwargs: Any) -> dict[str, Tensor]:
        """Draw from the refined law.  {site: value}"""
        if self.latents is None:
            self._setup_prototype(*args, **kwargs)
        latents = self._seen()
        law = dist.Normal(*self._standard()).to_event(1)
        noise = pyro.sample(f"_{self._pyro_name}_noise", law, infer={"is_auxiliary": True})
        self._check_particles(noise)
        refined = self._refined(noise, args, kwargs)
        delta = dist.Delta(refined.position, log_density=refined.log_density, event_dim=1)
        latent = pyro.sample(f"_{self._pyro_name}_latent", delta, infer={"is_auxiliary": True})
        plates = self._create_plates(*args, **kwargs)
        batch, variables = latent.shape[:-1], {}
        for name, site in latents.sites.items():
            # particles stand left of the plates, which are ones in the batch of the latent
            shape = torch.broadcast_shapes(site.shape, batch + (1,) * len(site.event_shape))
            variables[name] = latent[..., self._layout.slices[name]].reshape(shape)
        return self._sample_sites(variables, plates)

    def _standard(self) -> tuple[Tensor, Tensor]:
        example = next(iter(self._seen().sites.values())).value
        zeros = example.new_zeros(self._layout.dim)
        return zeros, torch.ones_like(zeros)

    def _check_particles(self, noise: Tensor) -> None:
        """Plates around the guide, of particles, must stand left of those in the model."""
        inner = noise.shape[:-1][-self._max_plate_nesting :] if self._max_plate_nesting else ()
        if any(size > 1 for size in inner):
            raise ValueError(
                f"the particles {list(noise.shape[:-1])} collide with the plates of the model, which is "
                f"{self._max_plate_nesting} deep: build the ELBO with max_plate_nesting="
                f"{self._max_plate_nesting}, or leave it out"
            )

    @torch.no_grad()
    def _draws(self, num_samples: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        """Refined positions.  [num_samples, d]"""
        self._seen()
        zeros, _ = self._standard()
        return self._refined(torch.randn(num_samples, *zeros.shape).to(zeros), args, kwargs).position

    def _values(self, position: Tensor) -> dict[str, Tensor]:
        return self._seen().constrain(self._layout.unflatten(position))[0]

    def sample_posterior(self, num_samples: int, *args: Any, **kwargs: Any) -> dict[str, Tensor]:
        """Independent draws from the refined law.  {site: [num_samples, *shape]}"""
        return self._values(self._draws(num_samples, args, kwargs))

    def median(self, *args: Any, **kwargs: Any) -> dict[str, Tensor]:
        """{site: median of each of its entries}"""
        return {name: value[0] for name, value in self.quantiles([0.5], *args, **kwargs).items()}

    def quantiles(self, quantiles: Sequence[float] | Tensor, *args: Any, **kwargs: Any) -> dict[str, Tensor]:
        """Quantiles of the unconstrained latents, by draws, at the sites.  {site: [quantile, *shape]}"""
        draws = self._draws(QUANTILE_DRAWS, args, kwargs)
        return self._values(draws.quantile(torch.as_tensor(quantiles, dtype=draws.dtype), dim=0))
