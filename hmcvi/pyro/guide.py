"""Autoguides refined by Hamiltonian Monte Carlo."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from pyro import distributions as dist
from pyro import poutine
from pyro.infer.autoguide import AutoContinuous
from torch import Tensor
from torch.distributions import Transform

from hmcvi.chain import Phase, Step, weigh
from hmcvi.density import Density, LogProb, standard_log_prob
from hmcvi.evidence.pareto import pareto_k
from hmcvi.internal.checks import at_least
from hmcvi.internal.layout import Layout
from hmcvi.internal.random import own_random_numbers
from hmcvi.pyro.base import (
    FULL_RANK_LIMIT,
    INIT_SCALE,
    AutoFittedLowRankNormal,
    FittedBase,
    make_base,
)
from hmcvi.pyro.chains import ChainSettings, MakeChain
from hmcvi.pyro.data import Call, Shared, Training, check_unchanged, find_sites, refuse_no_data
from hmcvi.pyro.fit import CHAINS_AT_ONCE, FIT_FACTOR, MAX_PARTICLES, affordable
from hmcvi.pyro.joint import Joint, batched, vectorizes
from hmcvi.pyro.latents import (
    Latents,
    Model,
    apart,
    check_same_sites,
    find_latents,
    is_summed_out,
    retried,
)
from hmcvi.pyro.posterior import RefinedPosterior
from hmcvi.pyro.program import weigh_chains
from hmcvi.pyro.quantiles import LEAST_DRAWS, QUANTILE_DRAWS
from hmcvi.pyro.refined import Refined, RefinedGuide
from hmcvi.pyro.repeated import Repeated
from hmcvi.pyro.store import forget, is_stored, synchronise
from hmcvi.pyro.transport import pulled_back, transport


class AutoHMC(RefinedGuide):
    """A guide of all latents together, refined by Hamiltonian Monte Carlo.  [Wolf et al. 2016]

    For models with continuous latents and `SVI` with `Trace_ELBO`; with `RenyiELBO`, or
    num_particles > 1 and vectorize_particles=True, as well.  Its ELBO is that of the refined guide.  Discrete
    latents are summed out if the model is config_enumerate(model) and the loss TraceEnum_ELBO.

    When it first sees the model it fits a normal distribution to the posterior by natural gradients
    (`hmcvi.evidence.fit_normal`, seconds); training goes on from there, in units of that fit.  Each draw runs
    several chains from the base and keeps one of them by its weight, so the ELBO is that of an
    importance-weighted guide.  [Domke & Sheldon 2018]

    base: the guide to refine: "mvn", "diagonal", "lowrank" or "iaf", all begun with the fit ("auto": mvn, in
        more than 300 dimensions lowrank); a class such as AutoMultivariateNormal, any function of the model
        that returns such a guide, or a guide, trained or not, which are taken as they are.
    chain: "annealed", from the base to the posterior along learned temperatures; "ldvi", the same with a
        learned reversal; "hamiltonian", the chain of Wolf et al., which `accept` chooses too; a function of
        dim and context_dim such as functools.partial(annealed_chain, num_steps=10); or a chain.
    num_hmc, num_leapfrog: 8 temperatures of one leapfrog step, or 3 × 4 for "hamiltonian".
    partial, mass, accept, hidden, reverse_sees: as in `hamiltonian_chain`.  With accept the gradient has a
        score term that makes it unbiased under Trace_ELBO; under RenyiELBO only values are exact then.
    initial_step_size: in units of the base's scales; adapted when the model is first seen.
    num_particles: chains for each draw; by default as many as cost little more than one, at most 64, and one
        if vmap cannot run the model.
    init_loc_fn, init_scale: where the fit begins, as in Pyro's guides.  By default it begins in several
        places and keeps the best.

    It is the posterior given the data of its training: the arguments of the last call that had all of them
    while gradients were on.  Other calls, such as those of `Predictive`, draw from it whatever they get.
    `median`, `quantiles` and `sample_posterior` describe it by draws, `pareto_k` says how far to trust it.

    >>> import pyro
    >>> from pyro.distributions import Normal
    >>> from pyro.infer import SVI, Trace_ELBO
    >>> def model():
    ...     z = pyro.sample("z", Normal(torch.zeros(2), 1.0).to_event(1))
    ...     pyro.sample("x", Normal(z.sum(), 0.1), obs=torch.tensor(1.0))
    >>> pyro.clear_param_store()
    >>> guide = AutoHMC(model)
    >>> svi = SVI(model, guide, pyro.optim.Adam({"lr": 0.01}), Trace_ELBO())
    >>> loss = svi.step()
    >>> guide.sample_posterior(5)["z"].shape
    torch.Size([5, 2])
    """

    def __init__(
        self,
        model: Model,
        num_hmc: int | None = None,
        num_leapfrog: int | None = None,
        partial: bool | float = True,
        mass: str = "global",
        accept: str | None = None,
        base: str | Callable[[Model], AutoContinuous] | AutoContinuous = "auto",
        chain: str | Step | MakeChain | None = None,
        hidden: Sequence[int] = (32,),
        initial_step_size: float | None = None,
        reverse_sees: Sequence[str] = ("position", "force"),
        *,
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
        self._num_particles, self._is_auto = num_particles, base == "auto"
        self.base = make_base(model, base, init_loc_fn, init_scale)
        self.base.master = None  # only its distribution is used; it may be trained and drawn from on its own
        self._base_model = Shared(self.base.model)
        self._base_is_trained = self.base.prototype_trace is not None
        self._vectorized, self._warned, self._warned_of_loop = False, False, False
        self._training: Training | None = None

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.base.master = None

    def _setup_prototype(self, *args: Any, **kwargs: Any) -> None:
        call = Call(args, kwargs)
        sites = find_sites("AutoHMC", self.model, call)
        refuse_no_data("AutoHMC", sites)
        latents = find_latents("AutoHMC", self.model, args, kwargs)
        joint = Joint(self.model, args, kwargs, latents)
        joint.check("AutoHMC")
        with apart():
            retried(lambda: super(AutoHMC, self)._setup_prototype(*args, **kwargs))
        self._layout = Layout(latents.shapes)
        self._vectorized = vectorizes(joint, latents, warn=False)
        example = next(iter(latents.sites.values())).value
        self._evaluations = 1
        if self._vectorized:
            log_prob = batched(joint, latents, True)
            self._evaluations = affordable(
                lambda position: log_prob(self._layout.unflatten(position)),
                self._layout.dim,
                sum(value.numel() for value in sites.data.values()),
                example,
            )
        if self._num_particles is None:
            self._num_particles = min(MAX_PARTICLES, self._evaluations)
        self._setup_base(latents, call)
        self._build_chain(self._layout.dim, 0, example)
        self._max_plate_nesting = max((-f.dim for s in latents.sites.values() for f in s.frames), default=0)
        data = find_sites("AutoHMC", self.model, call, latents).data  # as later calls see them
        self._training = Training(call, data, torch.is_grad_enabled())
        self.latents = latents

    def _setup_base(self, latents: Latents, call: Call) -> None:
        if self._is_auto and self._layout.dim > FULL_RANK_LIMIT:
            assert isinstance(self.base, FittedBase)
            visible = poutine.block(self.model, hide_fn=is_summed_out)
            self.base = self.base.as_kind(AutoFittedLowRankNormal, visible)
            self.base.master = None
        if self._base_is_trained:
            forget(self, "base")  # what the param store has under its new name is another guide's
        if self.base._model is None:  # Pyro's guides lose their model when they are pickled
            self.base._model = (self._base_model.value,)
        check_same_sites(find_latents("AutoHMC", self.base.model, *call), latents)
        is_new = self.base.prototype_trace is None
        needs_fit = is_new and isinstance(self.base, FittedBase) and not is_stored(self, "base")
        if is_new:
            retried(lambda: self.base._setup_prototype(*call.args, **call.kwargs))
        self.base.get_posterior(*call.args, **call.kwargs)  # builds the flow, if it has one
        self.base.to(next(iter(latents.sites.values())).value.dtype)
        if needs_fit:
            log_prob = batched(Joint(self.model, *call, latents), latents, self._vectorized)
            density = Density(self._repeated(lambda position: log_prob(self._layout.unflatten(position))))
            try:
                with own_random_numbers():
                    self.base.fit(density, FIT_FACTOR * self._evaluations)
            except ValueError:
                self.base.prototype_trace = None  # another call will try again
                forget(self, "base")
                raise

    def _training_call(self, call: Call) -> Call:
        """The arguments of training, which a call replaces if gradients are on and it has all the data."""
        training = self._training
        assert training is not None
        if not call.args and not call.kwargs:
            call = training.call  # median() and the like, as Pyro's guides take them
        weigh_it = self._vectorized and torch.is_grad_enabled()
        sites = find_sites("AutoHMC", self.model, call, self._seen(), weigh=weigh_it)
        self._stamp = sites.log_prob
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
        """noise: [..., K, d]"""
        latents = self._seen()
        if not self._vectorized and not self._warned_of_loop and noise.shape[:-1].numel() > 1:
            self._warned_of_loop = True
            vectorizes(Joint(self.model, *call, latents), latents)  # says why not
        transform = self.transport(*call.args, **call.kwargs)
        return self._resample(noise.movedim(-2, 0), transform, self._log_joint(call))

    def _log_joint(self, call: Call) -> LogProb:
        """log p(x, z) of unconstrained latents  [..., d] -> [...]"""
        latents = self._seen()
        log_prob = batched(Joint(self.model, *call, latents), latents, self._vectorized)
        return lambda position: log_prob(self._layout.unflatten(position))

    def _repeated(self, log_joint: LogProb) -> LogProb:
        return Repeated(log_joint) if self._vectorized else log_joint

    def transport(self, *args: Any, **kwargs: Any) -> Transform:
        """T with T(e) ~ base for e ~ N(0, I): coordinates in which the posterior is about as simple as that.

        Of the unconstrained latents, [..., d].  `PulledBack(density_from_pyro(model), guide.transport())` is
        the posterior in them, for any kernel: neural transport.  [Hoffman et al. 2019]
        """
        self._seen()
        if isinstance(self.base, FittedBase):
            return self.base.get_transform()
        return transport(self.base.get_posterior(*args, **kwargs))

    def get_posterior(self, *args: Any, **kwargs: Any) -> RefinedPosterior:
        """The refined distribution of the unconstrained latents [d]: draws, but no density in closed form."""
        self._seen()
        return RefinedPosterior(lambda count: self._draw(count, Call(args, kwargs)), self._layout.dim)

    def forward(self, *args: Any, **kwargs: Any) -> dict[str, Tensor]:
        """Draw from the refined posterior.  {site: value}"""
        self._refuse_tracing()
        if self.latents is None:
            self._setup_prototype(*args, **kwargs)
        synchronise(self)
        standard = dist.Normal(*self._standard()).to_event(2)
        noise = self._auxiliary("noise", standard)
        self._check_particles(noise[..., 0, :], self._max_plate_nesting)
        refined = self._refined(noise, self._training_call(Call(args, kwargs)))
        latents, position = self._seen(), refined.position
        variables, batch = latents.variables(position), position.shape[:-1]
        log_det = self._log_det(variables, batch) + latents.stand_in(variables, batch)
        latent = self._sample_latent(refined, log_det)
        return self._sample_sites(latents.variables(latent), self._create_plates(*args, **kwargs))

    @property
    def not_recorded(self) -> str | None:
        """Why training runs its chains as they are; None if they are, or will be, one recorded program."""
        self._seen()
        return self._programs.why_not(self._vectorized, self._num_particles or 1)

    def _standard(self) -> tuple[Tensor, Tensor]:
        """Mean and scale of the initial noise.  [K, d]"""
        example = next(iter(self._seen().sites.values())).value
        zeros = example.new_zeros(self._num_particles or 1, self._layout.dim)
        return zeros, torch.ones_like(zeros)

    @torch.no_grad()
    def sample_posterior(self, num_samples: int, *args: Any, **kwargs: Any) -> dict[str, Tensor]:
        """Independent draws from the refined posterior.  {site: [num_samples, *shape]}"""
        position = self._draw(num_samples, Call(args, kwargs))
        return self._seen().constrain(self._layout.unflatten(position))[0]

    @torch.no_grad()
    def _draw(self, num_samples: int, call: Call) -> Tensor:
        """Unconstrained draws, in parts that keep memory bounded.  [num_samples, d]"""
        self._seen()
        at_least(1, num_samples=num_samples)
        call, (zeros, _) = self._training_call(call), self._standard()
        most = max(1, CHAINS_AT_ONCE // len(zeros))
        parts = (min(most, num_samples - begin) for begin in range(0, num_samples, most))
        noises = (torch.randn(part, *zeros.shape).to(zeros) for part in parts)
        return torch.cat([self._refined(noise, call).position for noise in noises])

    def _weighted_draws(self, call: Call) -> tuple[dict[str, Tensor], Tensor]:
        """All chains, with the probabilities by which the guide keeps one of each K.  Then fewer draws do."""
        self._seen()
        zeros, _ = self._standard()
        if len(zeros) == 1:
            return super()._weighted_draws(call)
        call = self._training_call(call)
        transform = self.transport(*call.args, **call.kwargs)
        target = pulled_back(self._log_joint(call), transform)
        draws = min(QUANTILE_DRAWS, max(LEAST_DRAWS, CHAINS_AT_ONCE // len(zeros)))
        positions, weights = [], []
        for noise in torch.randn(draws, *zeros.shape).to(zeros).split(max(1, CHAINS_AT_ONCE // len(zeros))):
            ends = weigh_chains(self.chain, noise.movedim(-2, 0), target)
            positions.append(transform(ends.position).flatten(0, 1))
            weights.append(ends.weights.log_weight.nan_to_num(-torch.inf).softmax(0).flatten())
        return self._layout.unflatten(torch.cat(positions)), torch.cat(weights).nan_to_num(0.0)

    @torch.no_grad()
    def log_weights(self, num_chains: int, *args: Any, **kwargs: Any) -> Tensor:
        """log w of single chains, whose mean weight estimates the evidence without bias.  [num_chains]"""
        at_least(1, num_chains=num_chains)
        self._seen()
        call = self._training_call(Call(args, kwargs))
        target = pulled_back(self._log_joint(call), self.transport(*call.args, **call.kwargs))
        noise = torch.randn(num_chains, self._layout.dim).to(self._standard()[0])
        parts = (Phase(part) for part in noise.split(CHAINS_AT_ONCE))
        weights = [weigh(self.chain, part, standard_log_prob(part.position), target) for part in parts]
        return torch.cat([part.log_weight for part in weights])

    def pareto_k(self, *args: Any, num_chains: int = 2000, **kwargs: Any) -> float:
        """k̂ of the weights of its chains, by random numbers of its own: below 0.7 it can be trusted."""
        with own_random_numbers():
            return float(pareto_k(self.log_weights(num_chains, *args, **kwargs)))
