"""Pyro models with some of their latents integrated out, for pseudo-marginal kernels."""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import Tensor

from hmcvi.internal.layout import Layout
from hmcvi.kernels import ImportanceEstimator, LaplaceProposal
from hmcvi.pyro.density import PyroDensity


def integrate_out(
    density: PyroDensity, sites: Collection[str], num_importance: int = 1
) -> ImportanceEstimator:
    """Estimator of ∫ p(x, z) over the coordinates of `sites`, for the other latents of `density_from_pyro`.

    By num_importance draws from Laplace's approximation of the sites given the others, in which log p(x, z)
    should have a single mode.  For pseudo-marginal kernels:
    KernelAdapter(model, lambda density: apm_mi_mh(integrate_out(density, ["z"], num_importance=8), 0.5)).

    >>> import pyro
    >>> from pyro.distributions import Normal
    >>> from hmcvi.pyro import density_from_pyro
    >>> def model(x):  # x ~ N(mu, 2)
    ...     mu = pyro.sample("mu", Normal(0.0, 1.0))
    ...     z = pyro.sample("z", Normal(mu, 1.0))
    ...     pyro.sample("x", Normal(z, 1.0), obs=x)
    >>> estimator = integrate_out(density_from_pyro(model, torch.tensor(1.0)), ["z"])
    >>> estimator.layout.shapes
    {'mu': ()}
    """
    layout = density.layout
    assert layout is not None
    if unknown := sorted(set(sites) - layout.shapes.keys()):
        raise ValueError(f"there is no latent site {unknown[0]!r} to integrate out of {list(layout.shapes)}")
    kept = {name: shape for name, shape in layout.shapes.items() if name not in sites}
    if not kept or not sites:
        raise ValueError(f"integrate out some of the latents {list(layout.shapes)} and keep some")
    if not density.vectorized:
        raise ValueError("Laplace's approximation needs a model that vectorises, without branches on values")
    outer = Layout(kept)
    inner = Layout({name: shape for name, shape in layout.shapes.items() if name in sites})

    def log_joint(target: Tensor, latent: Tensor) -> Tensor:
        batch = torch.broadcast_shapes(target.shape[:-1], latent.shape[:-1])
        variables = outer.unflatten(target.expand(*batch, -1)) | inner.unflatten(latent.expand(*batch, -1))
        return density.log_prob(layout.flatten({name: variables[name] for name in layout.shapes}))

    return ImportanceEstimator(log_joint, LaplaceProposal(log_joint, inner.dim), num_importance, shapes=kept)
