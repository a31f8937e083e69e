"""Guides of local latents: an encoder for the initial distribution, a chain for each data point."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import pyro
import torch
from pyro import distributions as dist
from pyro import poutine
from pyro.distributions.util import sum_rightmost
from torch import Tensor
from torch.distributions import Distribution

from hmcvi.chain import Step
from hmcvi.density import LogProb
from hmcvi.pyro.chains import ChainSettings, MakeChain
from hmcvi.pyro.data import Call, find_sites, refuse_no_data
from hmcvi.pyro.entries import StandIn
from hmcvi.pyro.latents import Model, apart, find_latents, retried
from hmcvi.pyro.refined import RefinedGuide
from hmcvi.pyro.store import synchronise
from hmcvi.pyro.transport import transport


class AmortizedHMC(RefinedGuide):
    """q(z_n | x_n) = encoder(x_n), refined by a chain of its own: for models with all latents in one plate.

    encoder(*args, **kwargs): with the model's arguments, a normal distribution over R^d (or a flow of one)
        for each entry of the plate, over its unconstrained latents in the order of the model.
    context(*args, **kwargs): what the chain's networks see of each entry, [..., c]; needed by mass="nn".
    create_plates: as in Pyro's guides, for minibatches: lambda x: pyro.plate("data", size, subsample=x).
        Where the model draws the subsample itself, encoder and context may call `pyro.subsample`.
    The other arguments are those of `AutoHMC`.  Modules that the encoder uses are trained if the encoder is a
    module, or registers them by `pyro.module`.

    Each chain targets p(x_n, z_n) of its own entry, whatever the weight of a minibatch.
    `median`, `quantiles` and `sample_posterior` describe the refined posteriors of the entries given to them,
    with their data.

    >>> from pyro.distributions import Normal
    >>> def model(x):
    ...     with pyro.plate("data", len(x)):
    ...         z = pyro.sample("z", Normal(torch.zeros(2), 1.0).to_event(1))
    ...         pyro.sample("x", Normal(z.square().sum(-1), 0.1), obs=x)
    >>> guide = AmortizedHMC(model, lambda x: Normal(torch.zeros(len(x), 2), 1.0).to_event(1))
    >>> guide(torch.rand(5))["z"].shape
    torch.Size([5, 2])
    """

    def __init__(
        self,
        model: Model,
        encoder: Callable[..., Distribution],
        num_hmc: int | None = None,
        num_leapfrog: int | None = None,
        partial: bool | float = True,
        mass: str = "global",
        accept: str | None = None,
        chain: str | Step | MakeChain | None = None,
        hidden: Sequence[int] = (64, 64),
        initial_step_size: float | None = None,
        reverse_sees: Sequence[str] = ("position", "force"),
        *,
        context: Callable[..., Tensor] | None = None,
        create_plates: Callable[..., Any] | None = None,
    ) -> None:
        settings = ChainSettings(
            num_hmc, num_leapfrog, partial, mass, accept, hidden, initial_step_size, reverse_sees
        )
        super().__init__(model, chain, settings, create_plates)
        self.encoder, self.context = encoder, context

    def _setup_prototype(self, *args: Any, **kwargs: Any) -> None:
        data = find_sites("AmortizedHMC", self.model, Call(args, kwargs), subsample=True)
        refuse_no_data("AmortizedHMC", data)
        latents = find_latents("AmortizedHMC", self.model, args, kwargs, subsample=True)
        sites = list(latents.sites.values())
        self._frames = max((site.frames for site in sites), key=len)
        outside = [site.name for site in sites if not site.frames or site.frames != self._frames]
        if outside:
            raise ValueError(
                "AmortizedHMC needs all latents in one plate, with a chain for each of its entries; "
                f"outside are {', '.join(map(repr, outside))}: use AutoHMC"
            )
        retried(lambda: super(AmortizedHMC, self)._setup_prototype(*args, **kwargs))
        self._observed = set(data.data)
        self._layout, self._local_dims = latents.event_layout, {frame.dim for frame in self._frames}
        self.latents = latents

    def forward(self, *args: Any, **kwargs: Any) -> dict[str, Tensor]:
        """Draw from the refined posteriors of all entries.  {site: value}"""
        self._refuse_tracing()
        if self.latents is None:
            self._setup_prototype(*args, **kwargs)
        else:
            self._check_data(Call(args, kwargs))
            if self.create_plates is None:  # the next batch may have another size
                retried(lambda: super(AmortizedHMC, self)._setup_prototype(*args, **kwargs))
        plates = self._create_plates(*args, **kwargs)
        with self._inside(plates) as indices:
            base = self.encoder(*args, **kwargs)
            check_encoder(
                base, self._layout.dim, {f.name: (f.dim, len(indices[f.name])) for f in self._frames}
            )
            context = None if self.context is None else self.context(*args, **kwargs)
            noise = self._noise(0 if context is None else context.shape[-1])
        stand_in = StandIn(self.model, Call(args, kwargs), self._seen(), indices)
        log_joint = self._log_joint(args, kwargs, indices, stand_in)
        refined = self._refine(noise, transport(base), log_joint, len(self._local_dims), context)
        variables = self._layout.unflatten(refined.position)
        log_det = self._log_det(variables, refined.position.shape[:-1]) + stand_in(variables)
        with self._inside(plates):
            latent = self._sample_latent(refined, log_det)
        return self._sample_sites(self._layout.unflatten(latent), plates)

    def _check_data(self, call: Call) -> None:
        """Refuse a call without the data, or with other latents."""
        sites = find_sites("AmortizedHMC", self.model, call, subsample=True)
        if missing := sorted(self._observed - sites.data.keys()):
            raise ValueError(
                f"AmortizedHMC refines the posterior of each entry given its own data, and {missing[0]!r} is "
                "not observed in this call: draw latents by guide.sample_posterior(num_samples, x), with the "
                "data x, and predict by Predictive(model, posterior_samples)"
            )
        if (before := list(self._seen().sites)) != (now := list(sites.latent)):
            raise ValueError(
                f"AmortizedHMC was made for the latent sites {before} and finds {now}: the model has "
                "changed. Make another guide for it."
            )

    @contextmanager
    def _inside(self, plates: Mapping[str, Any]) -> Iterator[dict[str, Tensor]]:
        """Enter the plates of the latents; gives the entries they select."""
        with ExitStack() as stack:
            yield {frame.name: stack.enter_context(plates[frame.name]) for frame in self._frames}

    def _noise(self, context_dim: int) -> Tensor:
        """e ~ N(0, I), one for each entry  [..., N, d]"""
        dim, example = self._layout.dim, next(iter(self._seen().sites.values())).value
        self._build_chain(dim, context_dim, example)
        synchronise(self)
        zeros = example.new_zeros(dim)
        standard = dist.Normal(zeros, torch.ones_like(zeros)).to_event(1)
        noise = self._auxiliary("noise", standard)
        self._check_particles(noise, -min(self._local_dims), self._local_dims)
        return noise

    def _log_joint(
        self,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        indices: Mapping[str, Tensor],
        stand_in: StandIn,
    ) -> LogProb:
        """log p(x_n, z_n) + log|det| as a function of z [..., N, d]  -> [..., N]"""

        def log_prob(position: Tensor) -> Tensor:
            variables = self._layout.unflatten(position)
            values, total = {}, torch.zeros_like(position[..., 0]) + stand_in(variables)
            for name, site in self._seen().sites.items():
                assert site.to_support is not None
                values[name] = site.to_support(variables[name])
                price = site.to_support.log_abs_det_jacobian(variables[name], values[name])
                total = total + sum_rightmost(price, price.ndim - total.ndim)
            with apart(), pyro.validation_enabled(False):
                conditioned = poutine.condition(self.model, {**values, **indices})
                trace = poutine.trace(conditioned).get_trace(*args, **kwargs)
                trace.compute_log_prob()
            for node in trace.nodes.values():
                if node["type"] == "sample":
                    total = total + self._of_entries(node)
            return total

        return log_prob

    def _of_entries(self, site: Mapping[str, Any]) -> Tensor | float:
        """log p of a site for each entry: without the weight of the minibatch, summed over other plates."""
        local = [frame for frame in site["cond_indep_stack"] if frame.dim in self._local_dims]
        if len(local) < len(self._local_dims):
            return 0.0  # the same for all entries
        log_prob = site["log_prob"]
        for frame in local:
            log_prob = log_prob * (frame.size / (frame.full_size or frame.size))
        others = [f.dim for f in site["cond_indep_stack"] if f.vectorized and f not in local]
        return log_prob.sum(others, keepdim=True) if others else log_prob

    @torch.no_grad()
    def sample_posterior(self, num_samples: int, *args: Any, **kwargs: Any) -> dict[str, Tensor]:
        """Independent draws from the refined posteriors.  {site: [num_samples, N, *event_shape]}"""
        self._seen()
        draws = pyro.plate(f"_{self._pyro_name}_draws", num_samples, dim=min(self._local_dims) - 1)
        with poutine.block(), draws:
            return self(*args, **kwargs)


def check_encoder(base: Distribution, dim: int, plates: Mapping[str, tuple[int, int]]) -> None:
    """Refuse an encoder that does not give one distribution over vectors for each entry.

    plates: {name: its dimension, the number of its entries}
    """
    if base.event_shape != (dim,):
        raise ValueError(
            f"the latents of an entry fill {dim} dimensions, the encoder gives {list(base.event_shape)}"
        )
    for name, (plate_dim, entries) in plates.items():
        given = base.batch_shape[plate_dim] if len(base.batch_shape) >= -plate_dim else 1
        if given not in (1, entries):
            raise ValueError(f"plate {name!r} has {entries} entries, the encoder gives {given} distributions")
