"""Guides of global and local latents: a base for the former, a chain for each data point for the latter."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from pyro import distributions as dist
from pyro import poutine
from pyro.infer.autoguide import AutoContinuous
from pyro.infer.autoguide.initialization import init_to_median
from pyro.poutine.runtime import get_mask
from torch import Tensor
from torch.distributions import AffineTransform, Distribution, Transform, identity_transform

from hmcvi.chain import Step
from hmcvi.density import Density
from hmcvi.internal.checks import at_least
from hmcvi.internal.random import own_random_numbers
from hmcvi.pyro.amortized import check_encoder
from hmcvi.pyro.base import FULL_RANK_LIMIT, INIT_SCALE, FittedBase, make_base
from hmcvi.pyro.chains import ChainSettings, MakeChain
from hmcvi.pyro.data import Call, Known, find_sites, refuse_no_data
from hmcvi.pyro.entries import (
    Entries,
    EntryJoint,
    Nodes,
    find_entries,
    find_plate,
    over_particles,
    run,
    split,
    vectorizes,
    whole,
)
from hmcvi.pyro.fit import CHAINS_AT_ONCE, FIT_FACTOR, MAX_PARTICLES, affordable, fit_posterior
from hmcvi.pyro.joint import refuse_random
from hmcvi.pyro.latents import Model, check_same_sites, find_latents, retried
from hmcvi.pyro.local import LocalNormal
from hmcvi.pyro.refined import Refined, RefinedGuide
from hmcvi.pyro.store import is_stored, synchronise
from hmcvi.pyro.transport import transport

WHO = "AutoSemiHMC"


class AutoSemiHMC(RefinedGuide):
    """q(g) Π_n q(z_n | g): a base for global latents g, and a chain for the local latents z_n of each entry.

    For models with latents in a plate of data, all of which or a minibatch is seen in each step of `SVI` with
    `Trace_ELBO`.  The chains of an entry follow p(x_n, z_n | g) of that entry, so the bound

        E log p(g) − log q(g) + Σ_n log mean_k w_nk,   E[w_nk | g] = p(x_n | g),

    is estimated without bias by the entries of a minibatch, weighted by plate.  [Geffner & Domke 2022;
    Jankowiak & Phan 2022]

    When it first sees the model it fits a normal distribution to the posterior given the entries of that call;
    global and local bases begin there, and are trained in its units.  The local base depends on g linearly.

    base: the guide of the global latents: "mvn", "diagonal", "lowrank", "iaf" ("auto": mvn, in more than 300
        dimensions lowrank), or a function of the model without its local latents, such as AutoLowRankMultivariateNormal.
    encoder(*args, **kwargs): with the model's arguments, the initial distribution of each entry, as in
        `AmortizedHMC`, in place of parameters for each of them.
    plate: the plate of the local latents; needed only if there are several.
    num_particles: chains for each entry, one of which is kept by its weight; by default as many as cost little
        more than one, at most 64.
    create_plates: as in Pyro's guides.  Not needed: the guide takes the subsample of the model.
    The other arguments are those of `AutoHMC`.

    >>> import pyro
    >>> from pyro.distributions import Normal
    >>> def model(x):
    ...     mean = pyro.sample("mean", Normal(0.0, 1.0))
    ...     with pyro.plate("data", len(x), subsample_size=3) as index:
    ...         z = pyro.sample("z", Normal(mean, 1.0))
    ...         pyro.sample("x", Normal(z, 0.1), obs=x[index])
    >>> pyro.clear_param_store()
    >>> guide = AutoSemiHMC(model)
    >>> {name: tuple(value.shape) for name, value in guide(torch.rand(9)).items()}
    {'mean': (), 'z': (3,)}
    >>> guide.sample_posterior(5, torch.rand(9))["z"].shape
    torch.Size([5, 9])
    """

    def __init__(
        self,
        model: Model,
        num_hmc: int | None = None,
        num_leapfrog: int | None = None,
        partial: bool | float = True,
        mass: str = "global",
        accept: str | None = None,
        base: str | Callable[[Model], AutoContinuous] = "auto",
        chain: str | Step | MakeChain | None = None,
        hidden: Sequence[int] = (32,),
        initial_step_size: float | None = None,
        reverse_sees: Sequence[str] = ("position", "force"),
        *,
        encoder: Callable[..., Distribution] | None = None,
        plate: str | None = None,
        num_particles: int | None = None,
        init_loc_fn: Callable[..., Any] | None = None,
        init_scale: float = INIT_SCALE,
        create_plates: Callable[..., Any] | None = None,
    ) -> None:
        settings = ChainSettings(
            num_hmc, num_leapfrog, partial, mass, accept, hidden, initial_step_size, reverse_sees
        )
        super().__init__(model, chain, settings, create_plates)
        if num_particles is not None:
            at_least(1, num_particles=num_particles)
        if isinstance(base, str):
            make_base(model, base, init_loc_fn, init_scale)  # refuses wrong names at once
        self._base = base
        self._init_loc_fn, self._init_scale = init_loc_fn, init_scale
        self._num_particles, self._plate, self.encoder = num_particles, plate, encoder
        self.base: AutoContinuous | None = None
        self.local: LocalNormal | None = None

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if self.base is not None:
            self.base.master = None

    def _setup_prototype(self, *args: Any, **kwargs: Any) -> None:
        call = Call(args, kwargs)
        refuse_no_data(WHO, find_sites(WHO, self.model, call, subsample=True))
        latents = find_latents(WHO, self.model, args, kwargs, subsample=True)
        if latents.summed_out:
            raise NotImplementedError(
                f"{WHO} does not sum out discrete latents: {sorted(latents.summed_out)}"
            )
        nodes = run(self.model, call, self._init_loc_fn or init_to_median)
        plate = find_plate(WHO, nodes, latents, self._plate)
        self._outer, self._inner = split(WHO, nodes, latents, plate)
        retried(lambda: super(AutoSemiHMC, self)._setup_prototype(*args, **kwargs))
        self._prototype_frames.pop(plate)  # each call has other entries
        self._plate, self._layout = plate, self._inner.event_layout
        self._nesting = max(-frame.dim for site in latents.sites.values() for frame in site.frames)
        self._begin(nodes, call, find_entries(nodes, plate, self.encoder is None))
        self.latents = latents

    def _begin(self, nodes: Nodes, call: Call, entries: Entries) -> None:
        """Build bases and chain; fit the bases to the posterior given these entries."""
        joint = self._joint(call, entries)
        z, g = joint.coordinates(nodes), self._outer.coordinates(nodes)
        values = self._outer.values(g)
        refuse_random(WHO, joint(values, z)[0], joint(values, z)[0], [*values, *self._inner.sites])
        self._vectorized = vectorizes(joint, values, z)
        density, at_once = Density(whole(joint, self._outer, self._vectorized)), 1
        if self._vectorized:
            num_data = sum(site["value"].numel() for site in nodes.values() if site["is_observed"])
            at_once = affordable(density.log_prob, len(g) + z.numel(), num_data, z)
        if self._num_particles is None:
            self._num_particles = min(MAX_PARTICLES, at_once)
        was_trained = is_stored(self, "base") or is_stored(self, "local")
        if len(g):
            self._build_base(call)
        if self.encoder is None:
            self.local = LocalNormal(entries.size, self._layout.dim, len(g), z)
        self._build_chain(self._layout.dim, 0, z)
        if not was_trained:
            self._fit(density, torch.cat([g.to(z), z.flatten()]), entries, FIT_FACTOR * at_once)

    def _build_base(self, call: Call) -> None:
        part = poutine.block(self.model, expose=list(self._outer.sites))
        kind = "lowrank" if self._base == "auto" and self._outer.dim > FULL_RANK_LIMIT else self._base
        base = make_base(part, kind, self._init_loc_fn, self._init_scale)
        check_same_sites(find_latents(WHO, base.model, *call, subsample=True), self._outer)
        base.master = None
        if base.prototype_trace is None:
            retried(lambda: base._setup_prototype(*call.args, **call.kwargs))
        base.get_posterior(*call.args, **call.kwargs)  # builds the flow, if it has one
        self.base = base.to(next(iter(self._outer.sites.values())).value.dtype)
        base.master = None  # only its distribution is used

    def _fit(self, density: Density, first: Tensor, entries: Entries, at_once: int) -> None:
        """Begin with a fit of the posterior given B of N entries, global scales shrunk by (B/N)^½."""
        full_rank, given = len(first) <= FULL_RANK_LIMIT, self._init_loc_fn is not None
        with own_random_numbers():
            found = fit_posterior(density, first, self._init_scale, full_rank, at_once, given)
        if found is None:
            return
        mean, root = found[0], found[1] if full_rank else torch.diag_embed(found[1])
        skip, count = self._outer.dim, len(entries.indices)
        narrower = (count / entries.size) ** 0.5
        if isinstance(self.base, FittedBase):
            self.base.begin(mean[:skip], narrower * root[:skip, :skip])
        if self.local is not None:
            self.local.begin(
                entries.indices,
                mean[skip:].reshape(count, -1),
                root[skip:, skip:].norm(dim=-1).reshape(count, -1),
                narrower * root[skip:, :skip].reshape(count, -1, skip),
            )

    def forward(self, *args: Any, **kwargs: Any) -> dict[str, Tensor]:
        """Draw from the refined posterior.  {site: value}, local ones of the entries that the call selects"""
        self._refuse_tracing()
        call = Call(args, kwargs)
        if self.latents is None:
            self._setup_prototype(*args, **kwargs)
        synchronise(self)
        entries = self._entries(call)
        if entries.is_part and entries.is_drawn and get_mask() is False:
            raise RuntimeError(
                f"the model draws a subsample of {self._plate!r}, another one than its guide in Predictive: give "
                "Predictive(model, posterior_samples) draws of all entries, by guide.sample_posterior"
            )
        plates = self._create_plates(*args, **kwargs)
        if entries.name not in plates:
            plates[entries.name] = entries.plate()
        outer_noise, result = self._sample_outer(call, plates)
        with plates[entries.name] as indices:
            entries = entries._replace(indices=indices)
            noise = self._auxiliary("noise", dist.Normal(*self._standard()).to_event(2))
            self._check_particles(noise[..., 0, :], self._nesting, {entries.dim})
            refined = self._refined(noise, outer_noise, call, entries)
            log_det = self._log_det(self._layout.unflatten(refined.position), refined.position.shape[:-1])
            latent = self._sample_latent(refined, log_det)
        return result | self._sample_sites(self._layout.unflatten(latent), plates)

    def _entries(self, call: Call) -> Entries:
        """The entries that the model selects in this call."""
        latents = self._seen()
        assert self._plate is not None
        nodes = run(self.model, call, Known(latents))
        if missing := sorted(latents.sites.keys() - nodes.keys()):
            raise ValueError(
                f"{WHO} was made for the latents {list(latents.sites)}, and finds no {missing[0]!r}"
            )
        entries = find_entries(nodes, self._plate, self.encoder is None)
        if self.local is not None and entries.size != len(self.local.loc):
            raise ValueError(
                f"plate {self._plate!r} had {len(self.local.loc)} entries and has {entries.size}: make another "
                "guide for it, or one with an encoder"
            )
        return entries

    def _sample_outer(self, call: Call, plates: Mapping[str, Any]) -> tuple[Tensor, dict[str, Tensor]]:
        """e_0 ~ N(0, I), the noise of the global base [..., g], and the global sites."""
        zeros = self._standard()[0].new_zeros(self._outer.dim)
        if self.base is None:
            return zeros, {}
        noise = self._auxiliary("global_noise", dist.Normal(zeros, torch.ones_like(zeros)).to_event(1))
        self._check_particles(noise, self._nesting)
        transform = self._transport(call)
        position = transform(noise)
        refined = Refined(position, -transform.log_abs_det_jacobian(noise, position))
        log_det = self._log_det(self._outer.variables(position), position.shape[:-1])
        latent = self._sample_latent(refined, log_det, "global_latent")
        return noise, self._sample_sites(self._outer.variables(latent), plates)

    def _transport(self, call: Call) -> Transform:
        """T with T(e_0) ~ base."""
        if self.base is None:
            return identity_transform
        if isinstance(self.base, FittedBase):
            return self.base.get_transform()
        return transport(self.base.get_posterior(*call.args, **call.kwargs))

    def _standard(self) -> tuple[Tensor, Tensor]:
        """Mean and scale of the noise of an entry.  [K, d]"""
        assert self._num_particles is not None
        example = next(iter(self._inner.sites.values())).value
        zeros = example.new_zeros(self._num_particles, self._layout.dim)
        return zeros, torch.ones_like(zeros)

    def _joint(self, call: Call, entries: Entries) -> EntryJoint:
        return EntryJoint(WHO, self.model, call, self._inner, entries)

    def _refined(self, noise: Tensor, outer_noise: Tensor, call: Call, entries: Entries) -> Refined:
        """Run the chains, inside of the plate.  noise: [..., B, 1…, K, d], outer_noise: [..., 1…, g]"""
        left, dim = noise.shape[: entries.dim - 2], self._layout.dim
        outer_noise = outer_noise.reshape(*left, self._outer.dim)
        outer = self._outer.values(self._transport(call)(outer_noise).reshape(-1, outer_noise.shape[-1]))
        log_prob = over_particles(self._joint(call, entries), self._vectorized)

        def log_joint(z: Tensor) -> Tensor:
            rows = z.reshape(-1, left.numel(), len(entries.indices), dim)
            return log_prob(outer, rows).reshape(z.shape[:-1])

        return self._resample(
            noise.movedim(-2, 0),
            self._local_transport(call, entries, outer_noise),
            log_joint,
            independent=-entries.dim,
        )

    def _local_transport(self, call: Call, entries: Entries, outer_noise: Tensor) -> Transform:
        """T with T(e) ~ base of each entry.  [..., B, 1…, d]"""
        if self.local is not None:
            loc, scale = self.local(entries.indices, outer_noise)
            return AffineTransform(entries.align(loc), entries.align(scale), event_dim=1)
        assert self.encoder is not None
        base = self.encoder(*call.args, **call.kwargs)
        check_encoder(base, self._layout.dim, {entries.name: (entries.dim, len(entries.indices))})
        return transport(base)

    @torch.no_grad()
    def sample_globals(self, num_samples: int, *args: Any, **kwargs: Any) -> dict[str, Tensor]:
        """Independent draws of the global latents, which need no data.  {site: [num_samples, *shape]}"""
        self._seen()
        return self._draw_globals(num_samples, Call(args, kwargs))[1]

    def _draw_globals(self, num_samples: int, call: Call) -> tuple[Tensor, dict[str, Tensor]]:
        noise = torch.randn(num_samples, self._outer.dim).to(self._standard()[0])
        return noise, self._outer.values(self._transport(call)(noise))

    @torch.no_grad()
    def sample_posterior(self, num_samples: int, *args: Any, **kwargs: Any) -> dict[str, Tensor]:
        """Independent draws from the refined posterior.  {site: [num_samples, *shape]}

        Local latents are those of the entries that the call selects; of all entries, if the model draws its
        subsample at random.
        """
        self._seen()
        at_least(1, num_samples=num_samples)
        synchronise(self)
        call = Call(args, kwargs)
        batches = self._entries(call).batches()
        most = max(1, CHAINS_AT_ONCE // (len(batches[0][0].indices) * len(self._standard()[0])))
        parts = (min(most, num_samples - begin) for begin in range(0, num_samples, most))
        draws = [self._draw(part, call, batches) for part in parts]
        return {name: torch.cat([draw[name] for draw in draws]) for name in self._seen().sites}

    def _draw(self, num_samples: int, call: Call, batches: list[tuple[Entries, int]]) -> dict[str, Tensor]:
        outer_noise, values = self._draw_globals(num_samples, call)
        found: dict[str, list[Tensor]] = {name: [] for name in self._inner.sites}
        for entries, new in batches:
            zeros = self._standard()[0]
            with poutine.block(), entries.plate():
                noise = torch.randn(num_samples, *entries.batch, *zeros.shape).to(zeros)
                refined = self._refined(noise, outer_noise, call, entries)
            for name, value in self._layout.unflatten(refined.position).items():
                to_support = self._inner.sites[name].to_support
                assert to_support is not None
                found[name].append(to_support(value).narrow(1, len(entries.indices) - new, new))
        return values | {name: torch.cat(parts, 1) for name, parts in found.items()}
