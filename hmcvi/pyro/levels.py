"""Guides of global and local latents: how their bases are built and fitted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from pyro import poutine
from pyro.infer.autoguide import AutoContinuous
from pyro.infer.autoguide.initialization import init_to_median
from torch import Tensor
from torch.distributions import Distribution, Transform, identity_transform

from hmcvi.chain import Step
from hmcvi.density import Density
from hmcvi.internal.checks import at_least
from hmcvi.internal.random import own_random_numbers
from hmcvi.pyro.base import FULL_RANK_LIMIT, FittedBase, make_base
from hmcvi.pyro.chains import ChainSettings, MakeChain
from hmcvi.pyro.data import Call, find_sites, refuse_no_data
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
from hmcvi.pyro.fit import FIT_FACTOR, affordable, fit_posterior
from hmcvi.pyro.joint import refuse_random
from hmcvi.pyro.latents import Model, check_same_sites, find_latents, retried
from hmcvi.pyro.local import LocalNormal
from hmcvi.pyro.refined import RefinedGuide
from hmcvi.pyro.store import is_stored
from hmcvi.pyro.transport import transport

MAX_LOCAL_PARTICLES = 32


class TwoLevelGuide(RefinedGuide):
    """Base class of guides with a base for global latents g, and one for the local latents of each entry."""

    def __init__(
        self,
        model: Model,
        chain: str | Step | MakeChain | None,
        settings: ChainSettings,
        create_plates: Callable[..., Any] | None,
        base: str | Callable[[Model], AutoContinuous],
        encoder: Callable[..., Distribution] | None,
        plate: str | None,
        num_particles: int | None,
        init_loc_fn: Callable[..., Any] | None,
        init_scale: float,
    ) -> None:
        super().__init__(model, chain, settings, create_plates)
        if num_particles is not None:
            at_least(1, num_particles=num_particles)
        if isinstance(base, str):
            make_base(model, base, init_loc_fn, init_scale)  # refuses wrong names at once
        self._base, self._init_loc_fn, self._init_scale = base, init_loc_fn, init_scale
        self._num_particles, self._plate, self.encoder = num_particles, plate, encoder
        self.base: AutoContinuous | None = None
        self.local: LocalNormal | None = None

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if self.base is not None:
            self.base.master = None

    def _setup_prototype(self, *args: Any, **kwargs: Any) -> None:
        call, who = Call(args, kwargs), type(self).__name__
        refuse_no_data(who, find_sites(who, self.model, call, subsample=True))
        latents = find_latents(who, self.model, args, kwargs, subsample=True)
        if latents.summed_out:
            raise NotImplementedError(
                f"{who} does not sum out discrete latents: {sorted(latents.summed_out)}"
            )
        nodes = run(self.model, call, self._init_loc_fn or init_to_median)
        plate = find_plate(who, nodes, latents, self._plate)
        self._outer, self._inner = split(who, nodes, latents, plate)
        retried(lambda: super(TwoLevelGuide, self)._setup_prototype(*args, **kwargs))
        self._prototype_frames.pop(plate)  # each call has other entries
        self._plate, self._layout = plate, self._inner.event_layout
        self._nesting = max(-frame.dim for site in latents.sites.values() for frame in site.frames)
        self._begin(nodes, call, find_entries(nodes, plate, self.encoder is None))
        self.latents = latents

    def _begin(self, nodes: Nodes, call: Call, entries: Entries) -> None:
        """Build bases and chain; fit the bases to the posterior given these entries."""
        joint, who = self._joint(call, entries), type(self).__name__
        z, g = joint.coordinates(nodes), self._outer.coordinates(nodes)
        values = self._outer.values(g)
        refuse_random(who, joint(values, z)[0], joint(values, z)[0], [*values, *self._inner.sites])
        self._vectorized = vectorizes(joint, values, z)
        density, at_once = Density(whole(joint, self._outer, self._vectorized)), 1
        if self._vectorized:
            num_data = sum(site["value"].numel() for site in nodes.values() if site["is_observed"])
            at_once = affordable(density.log_prob, len(g) + z.numel(), num_data, z)
        if self._num_particles is None:
            self._num_particles = min(MAX_LOCAL_PARTICLES, at_once)
        was_trained = is_stored(self, "base") or is_stored(self, "local")
        if len(g):
            self._build_base(call)
        if self.encoder is None:
            self.local = LocalNormal(entries.size, self._layout.dim, len(g), z)
        self._build_chain(self._layout.dim, 0, z)
        if was_trained and self.local is not None:
            self.local.seen.fill_(True)
        if not was_trained:
            self._fit(density, torch.cat([g.to(z), z.flatten()]), entries, FIT_FACTOR * at_once)

    def _build_base(self, call: Call) -> None:
        part = poutine.block(self.model, expose=list(self._outer.sites))
        kind = "lowrank" if self._base == "auto" and self._outer.dim > FULL_RANK_LIMIT else self._base
        base = make_base(part, kind, self._init_loc_fn, self._init_scale)
        check_same_sites(find_latents(type(self).__name__, base.model, *call, subsample=True), self._outer)
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
            self.base.begin(mean[:skip], root[:skip, :skip], narrower)
        if self.local is not None:
            self.local.begin(
                entries.indices,
                mean[skip:].reshape(count, -1),
                root[skip:, skip:].norm(dim=-1).reshape(count, -1),
                narrower * root[skip:, :skip].reshape(count, self._layout.dim, skip),
            )

    def _visit(self, call: Call, entries: Entries) -> None:
        """Fit the base of entries that have not been seen, if many of a batch of the training have not."""
        if self.local is None or not torch.is_grad_enabled() or not self.local.is_new(entries.indices):
            return
        with torch.no_grad(), own_random_numbers():
            noise = self._standard()[0].new_zeros(1, self._outer.dim)
            outer = self._outer.values(self._transport(call)(noise))
            log_prob = over_particles(self._joint(call, entries), self._vectorized)
            self.local.fit(entries.indices, Density(lambda z: log_prob(outer, z[:, None])[:, 0]))

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
        return EntryJoint(type(self).__name__, self.model, call, self._inner, entries)
