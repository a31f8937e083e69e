"""Kernels of this library in Pyro's MCMC."""

from __future__ import annotations

import warnings
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

from pyro.infer.autoguide.initialization import init_to_uniform
from pyro.infer.mcmc.mcmc_kernel import MCMCKernel
from torch import Tensor
from torch.distributions import Transform, constraints

from hmcvi.adaptation.warmup import Warmup, make_tuner, tuning_step
from hmcvi.density import Density
from hmcvi.internal.layout import Layout
from hmcvi.kernels import HMC, Embedding, Kernel
from hmcvi.pyro.chains_of_run import ChainsOfRun
from hmcvi.pyro.density import EmbeddedPyroDensity, PyroDensity, make_density
from hmcvi.pyro.factory import KernelFactory, build_kernel, embeds, find_initial, moved_by
from hmcvi.pyro.latents import Latent, Model, NoLatents, Transforms
from hmcvi.sampling.diagnostics import SamplingWarning, is_persistent

FEW_DRAWS = 400  # a shorter run is a trial, and not warned about
Potential = Callable[[Mapping[str, Tensor]], Tensor]


class KernelAdapter(MCMCKernel):
    """A kernel of this library as one of Pyro's, for `pyro.infer.MCMC` and `StreamingMCMC`.

    model: a Pyro model; or None with potential_fn, a function of unconstrained parameters {name: value} as in
        Pyro's HMC, for which MCMC must be given initial_params.
    kernel_factory: called as kernel_factory(density, **settings): HMC, EllipticalSlice, a function that
        builds a composition ...  Required settings that are left out take common values.  One that takes
        `discontinuous` (DiscontinuousHMC) gets the discrete sites there, and others if they are named.
        Tempering adds a site `inverse_temperature`; a pseudo-marginal kernel on `integrate_out` moves the
        remaining sites.
    transforms: {site: map from its support to R^n}, torch's choice for the others; with potential_fn, those
        whose inverses make samples of its parameters.
    init_strategy: one of Pyro's, for chains without initial_params.
    warmup: what the warm-up steps of MCMC may tune.

    The parameters it moves are unconstrained; MCMC returns values of the sites, integers as whole numbers of
    floating point.  Draws come from torch's generator, which `pyro.set_rng_seed` seeds.

    >>> import pyro, torch
    >>> from pyro.distributions import Normal
    >>> from pyro.infer import MCMC
    >>> from hmcvi.kernels import HMC
    >>> def model(x):
    ...     z = pyro.sample("z", Normal(torch.zeros(2), 1.0).to_event(1))
    ...     pyro.sample("x", Normal(z.sum(), 0.5), obs=x)
    >>> kernel = KernelAdapter(model, HMC, num_steps=4)
    >>> mcmc = MCMC(kernel, num_samples=20, warmup_steps=30, disable_progbar=True)
    >>> mcmc.run(torch.tensor(1.0))
    >>> mcmc.get_samples()["z"].shape
    torch.Size([20, 2])
    """

    def __init__(
        self,
        model: Model | None,
        kernel_factory: KernelFactory,
        *,
        potential_fn: Potential | None = None,
        transforms: Transforms | None = None,
        init_strategy: Callable[..., Any] = init_to_uniform,
        warmup: Warmup | None = None,
        **settings: Any,
    ) -> None:
        if (model is None) == (potential_fn is None):
            raise ValueError("Only one of `model` or `potential_fn` must be specified.")
        _check_order(model, kernel_factory)
        if not (warmup is None or isinstance(warmup, Warmup)):
            raise TypeError(
                f"warmup says what to tune, as Warmup(mass='dense') does, got {warmup!r}: the number of "
                "warm-up steps is that of MCMC(kernel, warmup_steps=...)"
            )
        self.model, self.potential_fn = model, potential_fn
        self._factory, self._settings = kernel_factory, settings
        self._site_transforms, self._init_strategy = transforms, init_strategy
        self._warmup = Warmup() if warmup is None else warmup
        self.transforms: dict[str, Transform] | None = None
        self._chains = ChainsOfRun()
        self._reset()

    def _reset(self) -> None:
        self._initial_params: dict[str, Tensor] | None = None
        self._layout: Layout | None = None
        self._tuner: Any = None
        self._state: Any = None
        self._returned: dict[str, Tensor] | None = None
        self._index = self._num_warmup = self._num_accepted = 0
        self._mean_acceptance = 0.0
        self._divergences: list[int] = []

    def __getstate__(self) -> dict[str, Any]:
        """Without the state of a run, so that it can be sent to the process of a chain."""
        clean = type(self).__new__(type(self))
        clean.__dict__.update(self.__dict__)
        clean._reset()
        clean._chains = ChainsOfRun()
        clean._initial_params = self._initial_params
        return clean.__dict__

    @property
    def initial_params(self) -> dict[str, Tensor] | None:
        return self._initial_params

    @initial_params.setter
    def initial_params(self, params: dict[str, Tensor]) -> None:
        self._initial_params = params

    def setup(self, warmup_steps: int, *args: Any, **kwargs: Any) -> None:
        try:
            density = self._make_density(args, kwargs)
        except NoLatents:  # there is nothing to move, as with Pyro's kernels
            self._initial_params, self.transforms, self._num_warmup = {}, {}, warmup_steps
            return
        kernel = build_kernel(self._factory, density, self._settings)
        if isinstance(kernel, HMC) and isinstance(density, PyroDensity):
            density.repeat()
        self._layout, self._num_warmup = moved_by(kernel, density), warmup_steps
        if self._initial_params is None:
            assert isinstance(density, PyroDensity | EmbeddedPyroDensity)
            self._initial_params = self._params(find_initial(kernel, density, 1, self._init_strategy))
        self._state = kernel.init(self._position(self._initial_params))
        if not self._state.log_prob.isfinite().all():
            raise ValueError("log p is not finite at initial_params: begin where the density is positive")
        self._tuner = make_tuner(kernel, self._warmup, max(warmup_steps, 1))
        if warmup_steps:
            self._state = self._tuner.approach(self._state)
            self._tuner.start(self._state, None)
        self._returned = self._initial_params
        self._chains.begin([*args, *kwargs.values()])

    def _make_density(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Density:
        if self.model is None:
            return self._density_of_potential()
        density = make_density(
            "KernelAdapter",
            self.model,
            args,
            kwargs,
            self._site_transforms,
            embeds(self._factory),
            warn=False,
        )
        self.transforms = {name: _from_support(site) for name, site in density.latents.sites.items()}
        return density

    def _density_of_potential(self) -> Density:
        potential, params = self.potential_fn, self._initial_params
        assert potential is not None
        if params is None:
            raise ValueError(
                "Must provide valid initial parameters to begin sampling when using `potential_fn`."
            )
        if not params:
            raise NoLatents("potential_fn has no parameters")
        self.transforms = dict(self._site_transforms or {})
        if unknown := self.transforms.keys() - params.keys():
            raise ValueError(f"there is no parameter {sorted(unknown)[0]!r} to transform")

        def log_prob(variables: Mapping[str, Tensor]) -> Tensor:  # of the one chain, [1, *shape]
            energy = potential({name: value[0] for name, value in variables.items()})
            if energy.numel() != 1:
                raise ValueError(f"potential_fn must return one number, got {list(energy.shape)}")
            return -energy.reshape(1)

        return Density(log_prob, shapes={name: value.shape for name, value in params.items()})

    def _position(self, params: Mapping[str, Tensor]) -> Tensor:
        """The parameters as one chain  [1, d]"""
        assert self._layout is not None
        return self._layout.flatten({name: value.detach()[None] for name, value in params.items()})

    def _params(self, position: Tensor) -> dict[str, Tensor]:
        """The parameters of the one chain."""
        assert self._layout is not None
        return {name: value[0] for name, value in self._layout.unflatten(position).items()}

    def cleanup(self) -> None:
        self._reset()

    def clear_cache(self) -> None:
        """Forget the state of the last step; the next one begins with the parameters that it is given."""
        self._returned = None

    def sample(self, params: dict[str, Tensor]) -> dict[str, Tensor]:
        if self._initial_params == {}:
            self._observe({}, self._index < self._num_warmup)
            return params
        if self._tuner is None:
            raise RuntimeError(
                "KernelAdapter must be set up before it samples: run it by MCMC(kernel, ...).run"
            )
        known = self._returned
        if known is None or any(params[name] is not value for name, value in known.items()):
            self._state = self._tuner.kernel.init(self._position(params))  # changed from outside
        warming = self._index < self._num_warmup
        if warming:
            self._state, info = tuning_step(self._tuner, self._state, None)
        else:
            self._state, info = self._tuner.kernel.step(self._state)
        self._observe(info, warming)
        if not warming:
            self._chains.add(self._state.position, info)
        if warming and self._index == self._num_warmup:
            self._tuner.kernel = self._tuner.finish()
        self._returned = self._params(self._state.position)
        return dict(self._returned)

    def _observe(self, info: Mapping[str, Tensor], warming: bool) -> None:
        self._index += 1
        count = self._index if warming else self._index - self._num_warmup
        accepted = float(_of_target(info, "accepted", 1.0))
        rate = float(_of_target(info, "acceptance_rate", accepted))
        self._mean_acceptance += (rate - self._mean_acceptance) / count
        if not warming:
            self._num_accepted += int(accepted)
            if bool(_of_target(info, "diverged", False)):
                self._divergences.append(count - 1)

    def logging(self) -> OrderedDict[str, str]:
        kernel = None if self._tuner is None else self._tuner.kernel
        shown: OrderedDict[str, str] = OrderedDict()
        if (step_size := getattr(kernel, "step_size", None)) is not None:
            shown["step size"] = f"{float(step_size.mean()):.2e}"
        shown["acc. prob"] = f"{self._mean_acceptance:.3f}"
        return shown

    def diagnostics(self) -> dict[str, Any]:
        """What MCMC asks for at the end of each chain; then problems, if there are any, are warned about."""
        count = self._index - self._num_warmup
        known = {"divergences": self._divergences, "acceptance rate": self._num_accepted / max(count, 1)}
        if self._tuner is None or self._layout is None:
            return known
        kernel = self._tuner.kernel
        layout = self._layout if kernel.density.layout is None else kernel.density.layout
        self._chains.end()
        problems = self._chains.problems(layout, is_persistent(kernel))
        if problems and count >= FEW_DRAWS:
            warnings.warn("; ".join(problems), SamplingWarning, stacklevel=6)  # where MCMC.run was called
        return {**known, "problems": problems}


def _check_order(model: Model | None, kernel_factory: KernelFactory) -> None:
    """Refuse arguments that are swapped, and a kernel in place of what makes one."""
    if isinstance(model, Kernel) or (isinstance(model, type) and issubclass(model, Kernel)):
        name = getattr(model, "__name__", type(model).__name__)
        raise TypeError(f"the model comes first: KernelAdapter(model, {name}, ...)")
    if isinstance(kernel_factory, Kernel) or not callable(kernel_factory):
        raise TypeError(
            "kernel_factory makes a kernel of the model's density: give a class such as HMC and its "
            f"settings, or a function, got {type(kernel_factory).__name__}"
        )


def _of_target(info: Mapping[str, Tensor], name: str, default: float) -> Tensor | float:
    """An entry of info, or that of the target of a kernel with auxiliary variables."""
    return info.get(name, info.get(f"{name}_target", default))


def _from_support(site: Latent) -> Transform:
    if site.embedding is not None:
        return _Embedded(site.embedding)
    assert site.to_support is not None
    return site.to_support.inv


class _Embedded(Transform):
    """Integers ↔ the real line; `inv` gives them as whole numbers of the position's dtype.

    Pyro's summaries and diagnostics take means of all samples, which torch refuses for int64.
    """

    domain = constraints.integer_interval(0, 0)
    codomain = constraints.real

    def __init__(self, embedding: Embedding) -> None:
        super().__init__()
        self._embedding = embedding

    def _call(self, x: Tensor) -> Tensor:
        return self._embedding.embed(x)

    def _inverse(self, y: Tensor) -> Tensor:
        return self._embedding.discretize(y).to(y.dtype)
