"""Pyro models sampled by many chains in one batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from pyro.infer.autoguide.initialization import init_to_uniform
from pyro.infer.mcmc.util import select_samples
from torch import Tensor

from hmcvi.internal.layout import Layout
from hmcvi.internal.seeds import seed_all
from hmcvi.pyro.density import make_density
from hmcvi.pyro.factory import KernelFactory, ModelDensity, build_kernel, embeds, find_initial, moved_by
from hmcvi.pyro.latents import Model, Transforms
from hmcvi.sampling import Warmup, sample


def vectorized_mcmc(
    model: Model,
    kernel: KernelFactory,
    *args: Any,
    num_chains: int = 100,
    num_samples: int = 1000,
    warmup_steps: int | None = None,
    seed: int = 0,
    settings: dict[str, Any] | None = None,
    transforms: Transforms | None = None,
    init_strategy: Callable[..., Any] = init_to_uniform,
    warmup: Warmup | None = None,
    group_by_chain: bool = False,
    progress: bool = False,
    **kwargs: Any,
) -> dict[str, Tensor]:
    """Run MCMC on model(*args, **kwargs) with all chains at once; returns what `MCMC.get_samples()` would.

    kernel: a class or function as in `KernelAdapter`, its settings in `settings`.
    num_samples: of each chain.  warmup_steps: as many as samples if None.
    -> {site: [num_chains · num_samples, *shape]}, or [num_chains, num_samples, *shape] if group_by_chain.

    For ArviZ, checkpoints and diagnostics use `hmcvi.sample` on `density_from_pyro(model, *args)`.

    >>> import pyro
    >>> from pyro.distributions import Normal
    >>> from hmcvi.kernels import HMC
    >>> def model(x):
    ...     z = pyro.sample("z", Normal(torch.zeros(2), 1.0).to_event(1))
    ...     pyro.sample("x", Normal(z.sum(), 0.5), obs=x)
    >>> samples = vectorized_mcmc(model, HMC, torch.tensor(1.0), num_samples=300, settings={"num_steps": 3})
    >>> samples["z"].shape
    torch.Size([30000, 2])
    """
    density = make_density("vectorized_mcmc", model, args, kwargs, transforms, embeds(kernel))
    moving = build_kernel(kernel, density, settings or {})
    with torch.random.fork_rng():
        seed_all(seed)
        init = find_initial(moving, density, num_chains, init_strategy)
    draws = sample(
        moving,
        init,
        num_samples,
        num_warmup=num_samples if warmup_steps is None else warmup_steps,
        seed=seed,
        progress=progress,
        warmup=warmup,
    )
    return select_samples(
        _values(density, moved_by(moving, density), draws.position), group_by_chain=group_by_chain
    )


def _values(density: ModelDensity, moved: Layout, position: Tensor) -> dict[str, Tensor]:
    """Values of the sites that were moved; a temperature stays as it is."""
    if moved.shapes == density.layout.shapes:
        return density.constrain(position)
    values = moved.unflatten(position)
    for name in values.keys() & density.latents.sites.keys():
        to_support = density.latents.sites[name].to_support
        assert to_support is not None
        values[name] = to_support(values[name])
    return values
