"""Autoguides refined by Hamiltonian Monte Carlo."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import pyro
import torch
from pyro import distributions as dist
from pyro.infer.autoguide import AutoContinuous, AutoDiagonalNormal, AutoGuide
from torch import Tensor

from hmcvi.chain import Step
from hmcvi.internal.layout import Layout
from hmcvi.pyro.data import Call, Shared, Training, check_unchanged, find_sites, refuse_no_data
from hmcvi.pyro.joint import Joint, batched, vectorizes
from hmcvi.pyro.latents import Latents, Model, apart, check_same_sites, find_latents, retried
from hmcvi.pyro.refined import Refined, RefinedGuide
from hmcvi.pyro.store import forget, synchronise
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

    It is the posterior given the data of its training: the arguments of the last call that had all of them
    while gradients were on.  Other calls, such as those of `Predictive`, draw from it whatever they get.
    `median`, `quantiles` and `sample_posterior` describe it by draws.

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
        self._base_model = Shared(self.base.model)
        self._base_is_trained = self.base.prototype_trace is not None
        self._training: Training | None = None
        self._warned = False

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.base.master = None

    def _setup_prototype(self, *args: Any, **kwargs: Any) -> None:
        call = Call(args, kwargs)
        sites = find_sites("AutoHMC", self.model, call)
        refuse_no_data("AutoHMC", sites)
        latents = find_latents("AutoHMC", self.model, args, kwargs)
        Joint(self.model, args, kwargs, latents).check("AutoHMC")
        with apart():
            retried(lambda: super(AutoHMC, self)._setup_prototype(*args, **kwargs))
        self._setup_base(latents, call)
        self._layout = Layout(latents.shapes)
        example = next(iter(latents.sites.values())).value
        self.base.to(example.dtype)
        self._build_chain(self._layout.dim, 0, example)
        self._max_plate_nesting = max((-f.dim for s in latents.sites.values() for f in s.frames), default=0)
        self._training = Training(call, sites.data, torch.is_grad_enabled())
        self.latents = latents

    def _setup_base(self, latents: Latents, call: Call) -> None:
        if self._base_is_trained:
            forget(self, "base")  # what the param store has under its new name is another guide's
        if self.base._model is None:  # Pyro's guides lose their model when they are pickled
            self.base._model = (self._base_model.value,)
        check_same_sites(find_latents("AutoHMC", self.base.model, *call), latents)
        if self.base.prototype_trace is None:
            retried(lambda: self.base._setup_prototype(*call.args, **call.kwargs))
        self.base.get_posterior(*call.args, **call.kwargs)  # builds the flow, if it has one

    def _training_call(self, call: Call) -> Call:
        """The arguments of training, which a call replaces if gradients are on and it has all the data."""
        training = self._training
        assert training is not None
        if not call.args and not call.kwargs:
            call = training.call  # median() and the like, as Pyro's guides take them
        sites = find_sites("AutoHMC", self.model, call, self._seen())
        check_unchanged("AutoHMC", self._seen(), training.data, sites)
        if not torch.is_grad_enabled() or not training.data.keys() <= sites.data.keys():
            return training.call
        if training.by_gradient and not self._warned and training.differs(sites.data):
            self._warned = True
            warnings.warn(
                "the data are not those of the last call: AutoHMC is a posterior given all the data of one "
                "call, and draws from that of the last one with gradients. Train it without minibatches, and "
                "evaluate it on other data under torch.no_grad().",
                stacklevel=4,
            )
        self._training = Training(call, sites.data, by_gradient=True)
        return call

    def _refined(self, noise: Tensor, call: Call) -> Refined:
        latents = self._seen()
        joint = Joint(self.model, *call, latents)
        if self._vectorized is None and noise.shape[:-1].numel() > 1:
            self._vectorized = vectorizes(joint, latents)
        log_prob = batched(joint, latents, bool(self._vectorized))
        return self._refine(
            noise,
            transport(self.base.get_posterior(*call.args, **call.kwargs)),
            lambda position: log_prob(self._layout.unflatten(position)),
        )

    def forward(self, *args: Any, **kwargs: Any) -> dict[str, Tensor]:
        """Draw from the refined posterior.  {site: value}"""
        self._refuse_tracing()
        if self.latents is None:
            self._setup_prototype(*args, **kwargs)
        synchronise(self)
        standard = dist.Normal(*self._standard()).to_event(1)
        noise = pyro.sample(f"_{self._pyro_name}_noise", standard, infer={"is_auxiliary": True})
        self._check_particles(noise, self._max_plate_nesting)
        refined = self._refined(noise, self._training_call(Call(args, kwargs)))
        log_det = self._log_det(self._variables(refined.position), refined.position.shape[:-1])
        latent = self._sample_latent(refined, log_det)
        return self._sample_sites(self._variables(latent), self._create_plates(*args, **kwargs))

    def _variables(self, position: Tensor) -> dict[str, Tensor]:
        """The coordinates of each site.  [..., d] -> {name: [..., *shape]}"""
        batch, variables = position.shape[:-1], {}
        for name, site in self._seen().sites.items():
            # particles are left of the plates, whose sizes are 1 in the batch
            shape = torch.broadcast_shapes(site.shape, batch + (1,) * len(site.event_shape))
            variables[name] = position[..., self._layout.slices[name]].reshape(shape)
        return variables

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
        position = self._refined(noise, self._training_call(Call(args, kwargs))).position
        return latents.constrain(self._layout.unflatten(position))[0]
