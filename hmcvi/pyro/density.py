"""Pyro models as densities, for kernels, evidence estimators and chains."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import torch
from pyro import poutine
from pyro.infer import config_enumerate
from pyro.infer.autoguide.initialization import InitMessenger, init_to_uniform
from torch import Tensor
from torch.distributions import Distribution

from hmcvi.density import Density, LogProb
from hmcvi.internal.checks import at_least
from hmcvi.kernels import EmbeddedDensity
from hmcvi.pyro.data import Call, find_sites
from hmcvi.pyro.joint import Joint, batched, vectorizes
from hmcvi.pyro.latents import MAX_TRIES, Latents, Model, Transforms, find_latents, retried
from hmcvi.pyro.repeated import Repeated

SCALE_DRAWS = 400


class _OfModel:
    """What densities of Pyro models have in addition: maps between positions and values of the sites."""

    latents: Latents
    layout: Any  # of the density
    vectorized: bool
    dtype: torch.dtype  # of log p(x, z), and so of positions
    _source: tuple[Model, tuple[Any, ...], dict[str, Any]]

    def constrain(self, position: Tensor) -> dict[str, Tensor]:
        """Positions to values of the latent sites.  [..., d] -> {name: [..., *shape]}"""
        return self.latents.constrain(self.layout.unflatten(position))[0]

    def unconstrain(self, values: Mapping[str, Tensor]) -> Tensor:
        """Values of the latent sites to positions.  {name: [..., *shape]} -> [..., d]"""
        position: Tensor = self.layout.flatten(self.latents.unconstrain(values))
        return position.to(self.dtype)

    def initial(self, num_chains: int, init_strategy: Callable[..., Any] = init_to_uniform) -> Tensor:
        """Positions with a finite density and gradient, by a strategy of Pyro's.  [num_chains, d]"""
        assert isinstance(self, Density)
        at_least(1, num_chains=num_chains)
        model, args, kwargs = self._source
        found: list[Tensor] = []
        for _ in range(MAX_TRIES * num_chains):
            with poutine.block(), InitMessenger(_or_sample(init_strategy)):
                trace = retried(lambda: poutine.trace(model).get_trace(*args, **kwargs))
            nodes: Any = trace.nodes
            position = self.unconstrain({n: nodes[n]["value"].detach() for n in self.latents.sites})
            if self._is_usable(position):
                found.append(position)
            if len(found) == num_chains:
                return torch.stack(found)
        raise ValueError(
            "Model specification seems incorrect - cannot find valid initial params: log p or its gradient "
            f"is not finite {_culprits(trace)}. Check the data and the supports, or say where to begin by "
            "init_strategy."
        )

    @torch.no_grad()
    def _is_usable(self, position: Tensor) -> bool:
        assert isinstance(self, Density)
        if self.latents.discrete:
            return bool(self.finite_log_prob(position).isfinite())
        value, grad = self.value_and_grad(position)
        return bool(value.isfinite() and grad.isfinite().all())


class PyroDensity(_OfModel, Density):
    """log p(x, z) of a model with continuous latents; see `density_from_pyro`."""

    def repeat(self) -> None:
        """Do without the model's Python before long: first derivatives only, while model and data stay."""
        if self.vectorized:
            self._function = Repeated(self._function)

    @property
    def prior(self) -> Prior:
        """`base` as a distribution to draw from: hmcvi.evidence.ais(density.prior, density)."""
        model, args, kwargs = self._source
        return Prior(self, functools.partial(model, *args, **kwargs))


class Prior(Distribution):
    """The prior p(z) of the latents of a model in its unconstrained coordinates, a base for evidence.

    run: runs the model once; each draw is a run.
    """

    arg_constraints: ClassVar[dict[str, Any]] = {}

    def __init__(self, density: PyroDensity, run: Callable[[], Any]) -> None:
        assert density.layout is not None and density.base is not None
        super().__init__(event_shape=torch.Size([density.layout.dim]), validate_args=False)
        self._density, self._log_prob, self._run = density, density.base.finite_log_prob, run
        nodes = self._nodes()
        weighed = [n for n in density.latents.sites if nodes[n]["mask"] is not None or nodes[n]["scale"] != 1]
        if weighed:
            raise ValueError(
                f"the prior of {', '.join(map(repr, weighed))} is scaled or masked and not normalised: give "
                "a base, such as a trained AutoDiagonalNormal"
            )

    def _nodes(self) -> Any:
        with poutine.block():
            return retried(lambda: poutine.trace(self._run).get_trace()).nodes

    def log_prob(self, value: Tensor) -> Tensor:
        """log p(z)  [..., d] -> [...]"""
        return self._log_prob(value)

    @torch.no_grad()
    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """[*sample_shape, d]"""
        shape = torch.Size(sample_shape)
        runs = [self._nodes() for _ in range(shape.numel())]
        values = {name: torch.stack([r[name]["value"] for r in runs]) for name in self._density.latents.sites}
        return self._density.unconstrain(values).reshape(shape + self.event_shape)

    @property
    def stddev(self) -> Tensor:
        """The scale of each coordinate, by the middle 68 % of draws: variances may be infinite.  [d]"""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            draws = self.sample([SCALE_DRAWS])
        low, high = draws.quantile(torch.tensor([0.16, 0.84]).to(draws), dim=0)
        return (high - low) / 2


class EmbeddedPyroDensity(_OfModel, EmbeddedDensity):
    """log p(x, z) of a model with some integers among its latents; see `density_from_pyro`."""


def density_from_pyro(
    model: Model,
    *args: Any,
    transforms: Transforms | None = None,
    embed: bool = False,
    **kwargs: Any,
) -> PyroDensity | EmbeddedPyroDensity:
    """log p(x, z) of model(*args, **kwargs) over its latent sites, each mapped to R^n, as a `Density`.

    Its variables are named after the sites; `constrain` and `unconstrain` go between positions [..., d] and
    values {site: [..., *shape]}, `initial(num_chains)` finds initial positions, and `base` is the prior.
    transforms: {site: map from its support to R^n} in place of torch's choice, such as
        {"weights": AdditiveLogRatio().inv}.
    embed: embed discrete latents in the real line, for `DiscontinuousHMC`; without it they are refused.

    Many chains are evaluated in one run of the model, by vmap, where the model allows it.

    >>> import pyro
    >>> from pyro.distributions import HalfNormal, Normal
    >>> def model(x):
    ...     scale = pyro.sample("scale", HalfNormal(1.0))
    ...     pyro.sample("x", Normal(0.0, scale), obs=x)
    >>> density = density_from_pyro(model, torch.tensor(0.5))
    >>> position = density.unconstrain({"scale": torch.tensor([1.0, 2.0, 4.0])})
    >>> density.log_prob(position).shape, density.constrain(position)["scale"].tolist()
    (torch.Size([3]), [1.0, 2.0, 4.0])
    """
    return make_density("density_from_pyro", model, args, kwargs, transforms, embed)


def make_density(
    who: str,
    model: Model,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    transforms: Transforms | None = None,
    embed: bool = False,
    warn: bool = True,
) -> PyroDensity | EmbeddedPyroDensity:
    """`density_from_pyro` on behalf of `who`, which errors name; warn: if chains are evaluated one by one."""
    enumerated = model if embed else config_enumerate(model)  # discrete latents, as Pyro's kernels do
    latents = find_latents(who, enumerated, args, kwargs, transforms, embed)
    model = enumerated if latents.summed_out else model
    find_sites(who, model, Call(args, dict(kwargs)), latents, subsample=True)  # refuses NaN
    joint = Joint(model, args, kwargs, latents)
    joint.check(who)
    vectorized = vectorizes(joint, latents, warn)
    prior = batched(Joint(model, args, kwargs, latents, prior_only=True), latents, vectorized)
    density = _assemble(batched(joint, latents, vectorized), latents, _assemble(prior, latents))
    density.latents, density.vectorized, density.dtype = latents, vectorized, joint.dtype()
    density._source = model, args, dict(kwargs)
    return density


def _assemble(
    log_prob: LogProb, latents: Latents, base: Density | None = None
) -> PyroDensity | EmbeddedPyroDensity:
    if latents.discrete:
        return EmbeddedPyroDensity(log_prob, shapes=latents.shapes, discrete=latents.discrete, base=base)
    return PyroDensity(log_prob, shapes=latents.shapes, base=base)


@torch.no_grad()
def _culprits(trace: Any) -> str:
    """Where log p is not finite in a run of a model, in words."""
    trace.compute_log_prob()
    sites = ((name, site) for name, site in trace.nodes.items() if site["type"] == "sample")
    names = [repr(name) for name, site in sites if not site["log_prob"].isfinite().all()]
    return f"at {', '.join(names)}" if names else f"at any of {MAX_TRIES} points"


def _or_sample(init_strategy: Callable[..., Any]) -> Callable[..., Any]:
    """The strategy, or a draw from the prior for integers whose support it does not know."""

    def init(site: Any) -> Any:
        try:
            return init_strategy(site)
        except NotImplementedError:
            if not site["fn"].support.is_discrete:
                raise
            return site["fn"].sample()

    return init
