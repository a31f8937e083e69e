"""The evidence of a Pyro model."""

from __future__ import annotations

from typing import Any

from pyro.infer.autoguide import AutoContinuous

from hmcvi.evidence import Evidence
from hmcvi.evidence.bases import Base
from hmcvi.evidence.methods import METHODS, NEED_EXACT_DRAWS, method_name
from hmcvi.pyro.density import PyroDensity, make_density
from hmcvi.pyro.latents import Model, check_same_sites, find_latents


def evidence(
    model: Model,
    *args: Any,
    method: str = "ais",
    base: Base | AutoContinuous | None = None,
    **settings: Any,
) -> Evidence:
    """log p(x) of model(*args), all latents integrated out, with its error.

    method: the name of an estimator of `hmcvi.evidence` that needs a base alone: ais, smc, importance, iwae,
        thermodynamic_integration, simulated_tempering, gibbs_tempering or tempered_hmc.
    base: the prior if None; a trained autoguide such as AutoMultivariateNormal; or any distribution over the
        unconstrained vectors of `density_from_pyro(model, *args)`, such as its `fit_advi`.
    settings: of the estimator: num_temperatures, num_chains, seed, progress ...  Keyword arguments of
        the model are bound to it beforehand, by functools.partial.

    >>> import pyro, torch
    >>> from pyro.distributions import Normal
    >>> def model(x):  # x ~ N(0, 2)
    ...     z = pyro.sample("z", Normal(0.0, 1.0))
    ...     pyro.sample("x", Normal(z, 1.0), obs=x)
    >>> result = evidence(model, torch.tensor(1.0), num_temperatures=20, num_chains=100, progress=False)
    >>> bool((result.log_z - Normal(0.0, 2**0.5).log_prob(torch.tensor(1.0))).abs() < 4 * result.std_error)
    True
    """
    estimator = METHODS[method_name(method, without=NEED_EXACT_DRAWS)]
    density = make_density("evidence", model, args, {})
    assert isinstance(density, PyroDensity)
    return estimator(_base(base, density, args), density, **settings)


def _base(base: Base | AutoContinuous | None, density: PyroDensity, args: tuple[Any, ...]) -> Base:
    """The base of the path, a distribution over vectors [d]."""
    if base is None:
        return density.prior
    if not isinstance(base, AutoContinuous):
        return base
    if base.prototype_trace is None:
        raise RuntimeError(
            f"{type(base).__name__} has not seen its model yet: train it as a guide before it is a base"
        )
    check_same_sites(find_latents("evidence", base.model, args, {}), density.latents)
    posterior: Base = base.get_posterior(*args)
    return posterior
