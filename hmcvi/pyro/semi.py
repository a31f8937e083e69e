"""Guides of global and local latents: a base for the former, a chain for each data point for the latter."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from pyro import distributions as dist
from pyro import poutine
from pyro.infer.autoguide import AutoContinuous
from pyro.poutine.runtime import get_mask
from torch import Tensor
from torch.distributions import AffineTransform, Distribution, Transform

from hmcvi.chain import Step
from hmcvi.internal.checks import at_least
from hmcvi.pyro.amortized import check_encoder
from hmcvi.pyro.base import INIT_SCALE
from hmcvi.pyro.chains import ChainSettings, MakeChain
from hmcvi.pyro.data import Call, Known
from hmcvi.pyro.entries import Entries, find_entries, over_particles, run
from hmcvi.pyro.fit import CHAINS_AT_ONCE
from hmcvi.pyro.latents import Model
from hmcvi.pyro.levels import TwoLevelGuide
from hmcvi.pyro.refined import Refined
from hmcvi.pyro.store import synchronise
from hmcvi.pyro.transport import transport


class AutoSemiHMC(TwoLevelGuide):
    """q(g) Π_n q(z_n | g): a base for global latents g, and a chain for the local latents z_n of each entry.

    For models with latents in a plate of data, all of which or a minibatch is seen in each step of `SVI` with
    `Trace_ELBO`.  The chains of an entry follow p(x_n, z_n | g) of that entry, so the bound

        E log p(g) − log q(g) + Σ_n log mean_k w_nk,   E[w_nk | g] = p(x_n | g),

    is estimated without bias by the entries of a minibatch, weighted by plate.  [Geffner & Domke 2022;
    Jankowiak & Phan 2022]

    When it first sees the model it fits a normal distribution to the posterior given the entries of that
    call, later one to each entry that is new: bases begin there, and are trained in units of these fits.
    That of an entry depends on g linearly.

    base: the guide of the global latents: "mvn", "diagonal", "lowrank", "iaf" ("auto": mvn, in more than 300
        dimensions lowrank), or a function of the model without local latents, such as AutoDiagonalNormal.
    encoder(*args, **kwargs): with the model's arguments, the initial distribution of each entry, as in
        `AmortizedHMC`, in place of parameters for each of them.
    plate: the plate of the local latents; needed only if there are several.
    num_particles: chains for each entry, one of which is kept by its weight; by default as many as cost
        little more than one, at most 32.
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
        super().__init__(
            model,
            chain,
            settings,
            create_plates,
            base,
            encoder,
            plate,
            num_particles,
            init_loc_fn,
            init_scale,
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
                f"the model draws a subsample of {self._plate!r}, another one than its guide in Predictive: "
                "give Predictive(model, posterior_samples) draws of all entries, by guide.sample_posterior"
            )
        plates = self._create_plates(*args, **kwargs)
        if entries.name not in plates:
            plates[entries.name] = entries.plate()
        outer_noise, result = self._sample_outer(call, plates)
        with plates[entries.name] as indices:
            entries = entries._replace(indices=indices)
            self._visit(call, entries)
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
                f"AutoSemiHMC was made for the latents {list(latents.sites)}, and finds no {missing[0]!r}"
            )
        entries = find_entries(nodes, self._plate, self.encoder is None)
        if self.local is not None and entries.size != len(self.local.loc):
            raise ValueError(
                f"plate {self._plate!r} had {len(self.local.loc)} entries and has {entries.size}: make "
                "another guide for it, or one with an encoder"
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
        variables, batch = self._outer.variables(position), position.shape[:-1]
        log_det = self._log_det(variables, batch) + self._outer.stand_in(variables, batch)
        latent = self._sample_latent(refined, log_det, "global_latent")
        return noise, self._sample_sites(self._outer.variables(latent), plates)

    def _refined(self, noise: Tensor, outer_noise: Tensor, call: Call, entries: Entries) -> Refined:
        """Run the chains, inside of the plate.  noise: [..., B, 1…, K, d], outer_noise: [..., 1…, g]"""
        left, dim = noise.shape[: entries.dim - 2], self._layout.dim
        outer_noise = outer_noise.reshape(*left, self._outer.dim)
        outer = self._outer.values(self._transport(call)(outer_noise).reshape(left.numel(), self._outer.dim))
        joint = self._joint(call, entries)
        log_prob = over_particles(joint, self._vectorized)

        def log_joint(z: Tensor) -> Tensor:
            rows = z.reshape(-1, left.numel(), len(entries.indices), dim)
            return log_prob(outer, rows).reshape(z.shape[:-1])

        refined = self._resample(
            noise.movedim(-2, 0),
            self._local_transport(call, entries, outer_noise),
            log_joint,
            independent=-entries.dim,
        )
        price = joint.stand_in(refined.position.reshape(*left, len(entries.indices), dim))
        if isinstance(price, Tensor):  # log p of the model's trace does not have it
            price = price.reshape(refined.log_density.shape)
        return refined._replace(log_density=refined.log_density - price)

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
