"""Autoguides refined by Hamiltonian Monte Carlo."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pyro
import torch
from pyro import distributions as dist
from pyro.infer.autoguide import AutoContinuous, AutoDiagonalNormal, AutoGuide
from torch import Tensor

from hmcvi.chain import Step
from hmcvi.internal.layout import Layout
from hmcvi.pyro.joint import Joint, batched, vectorizes
from hmcvi.pyro.latents import Model, check_same_sites, find_latents, retried
from hmcvi.pyro.refined import Refined, RefinedGuide
from hmcvi.pyro.transport import transport


class AutoHMC(RefinedGuide):
    """A guide of all latents together, refined by Hamiltonian Monte Carlo.  [Wolf et al. 2016]

    For models with continuous latents and `SVI` with `Trace_ELBO`; with `RenyiELBO`, or
    num_particles > 1 and vectorize_particles=True, as well.  Its ELBO is that of the refined guide.

    num_hmc, num_leapfrog, partial, mass, accept: as in `hamiltonian_chain`.  With accept the gradient has a
        score term that makes it unbiased under Trace_ELBO; under RenyiELBO only values are exact then.
    base: the guide to refine, a class such as AutoMultivariateNormal, any function of the model that
        returns such a guide, or a guide, trained or not.
    chain: another chain in place of these, such as annealed_chain(dim, 0, num_steps=10).
    hidden: layers of the reverse models.  initial_step_size: in units of the base's scales; halved when the
        model is first seen, as often as trajectories from the base need to keep their energy.
    reverse_sees: what the reverse models know, as in `hamiltonian_chain`.

    `median`, `quantiles` and `sample_posterior` describe the refined posterior by draws from it.

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
        hidden: Sequence[int] = (32,),
        initial_step_size: float = 0.2,
        reverse_sees: Sequence[str] = ("position", "force"),
    ) -> None:
        super().__init__(
            model,
            num_hmc,
            num_leapfrog,
            partial,
            mass,
            accept,
            chain,
            hidden,
            initial_step_size,
            reverse_sees,
        )
        self.base = base if isinstance(base, AutoGuide) else base(model)
        if not isinstance(self.base, AutoContinuous):
            raise ValueError(
                "base must be an autoguide over all latents such as AutoDiagonalNormal or "
                f"AutoMultivariateNormal, got {type(self.base).__name__}"
            )
        self.base.master = None  # only its distribution is used; it may be trained and drawn from on its own
        self._vectorized: bool | None = None

    def _setup_prototype(self, *args: Any, **kwargs: Any) -> None:
        latents = find_latents("AutoHMC", self.model, args, kwargs)
        Joint(self.model, args, kwargs, latents).check("AutoHMC")
        retried(lambda: super(AutoHMC, self)._setup_prototype(*args, **kwargs))
        check_same_sites(find_latents("AutoHMC", self.base.model, args, kwargs), latents)
        if self.base.prototype_trace is None:
            retried(lambda: self.base._setup_prototype(*args, **kwargs))
        self._layout = Layout(latents.shapes)
        example = next(iter(latents.sites.values())).value
        self.base.get_posterior(*args, **kwargs)  # builds the flow, if it has one
        self.base.to(example.dtype)
        self._build_chain(self._layout.dim, 0, example)
        self._max_plate_nesting = max((-f.dim for s in latents.sites.values() for f in s.frames), default=0)
        self.latents = latents

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
        """Draw from the refined posterior.  {site: value}"""
        if self.latents is None:
            self._setup_prototype(*args, **kwargs)
        latents = self._seen()
        standard = dist.Normal(*self._standard()).to_event(1)
        noise = pyro.sample(f"_{self._pyro_name}_noise", standard, infer={"is_auxiliary": True})
        self._check_particles(noise, self._max_plate_nesting)
        refined = self._refined(noise, args, kwargs)
        delta = dist.Delta(refined.position, log_density=refined.log_density, event_dim=1)
        latent = pyro.sample(f"_{self._pyro_name}_latent", delta, infer={"is_auxiliary": True})
        plates = self._create_plates(*args, **kwargs)
        batch, variables = latent.shape[:-1], {}
        for name, site in latents.sites.items():
            # particles are left of the plates, whose sizes are 1 in the batch of the latent
            shape = torch.broadcast_shapes(site.shape, batch + (1,) * len(site.event_shape))
            variables[name] = latent[..., self._layout.slices[name]].reshape(shape)
        return self._sample_sites(variables, plates)

    def _standard(self) -> tuple[Tensor, Tensor]:
        example = next(iter(self._seen().sites.values())).value
        zeros = example.new_zeros(self._layout.dim)
        return zeros, torch.ones_like(zeros)

    @torch.no_grad()
    def sample_posterior(self, num_samples: int, *args: Any, **kwargs: Any) -> dict[str, Tensor]:
        """Independent draws from the refined posterior.  {site: [num_samples, *shape]}"""
        latents = self._seen()
        zeros, _ = self._standard()
        noise = torch.randn(num_samples, *zeros.shape).to(zeros)
        position = self._refined(noise, args, kwargs).position
        return latents.constrain(self._layout.unflatten(position))[0]
