"""The latent sites of a Pyro model: their shapes, and the maps between their supports and R^d."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
from pyro import poutine
from pyro.infer.autoguide.utils import helpful_support_errors
from pyro.poutine.runtime import _DIM_ALLOCATOR, _ENUM_ALLOCATOR
from pyro.poutine.subsample_messenger import _Subsample
from pyro.util import check_site_shape
from torch import Tensor
from torch.distributions import Transform, biject_to, constraints

from hmcvi.internal.layout import Layout
from hmcvi.internal.linalg import LinAlgError
from hmcvi.kernels import Counts, Embedding, Integers
from hmcvi.pyro.masks import entries_kept, standard_log_prob_where

T = TypeVar("T")
Model = Callable[..., Any]
Transforms = Mapping[str, Transform]  # from the support of a site to R^n, as Pyro's kernels take them
MAX_TRIES = 100
MAX_PLATES = 64  # torch's limit of dimensions
_TURNS = threading.RLock()


class NoLatents(RuntimeError):
    """A model without latent sites."""


@dataclass(frozen=True)
class Latent:
    """A latent site.  value: an example of it.  embedding: for integers; others have a transform."""

    name: str
    value: Tensor
    event_dim: int
    frames: tuple[Any, ...]  # the plates it is in
    to_support: Transform | None  # R^n -> support
    embedding: Embedding | None = None
    has_mask: bool = False  # in this run of the model, of entries of plates
    masked: Tensor | None = None  # coordinates whose log p is masked out, which may be anything

    @property
    def shape(self) -> torch.Size:
        """The shape of its coordinates, plates included."""
        if self.to_support is None:
            return self.value.shape
        return self.to_support.inverse_shape(self.value.shape)

    @property
    def event_shape(self) -> torch.Size:
        """The shape of its coordinates, without plates."""
        batch_dim = self.value.ndim - self.event_dim
        return self.shape[batch_dim:]


class Latents:
    """All latent sites of a model, in the order in which it samples them."""

    assigns = False  # whether vmap can run the model only if it may assign to what it makes

    def __init__(self, sites: list[Latent], summed_out: Collection[str] = (), nesting: int = 0) -> None:
        self.sites = {site.name: site for site in sites}
        self.summed_out, self.nesting = frozenset(summed_out), nesting  # depth of the model's plates
        self.discrete = {site.name: site.embedding for site in sites if site.embedding is not None}

    @property
    def shapes(self) -> dict[str, torch.Size]:
        return {name: site.shape for name, site in self.sites.items()}

    @property
    def event_layout(self) -> Layout:
        """The layout of the coordinates of one entry of the plates."""
        return Layout({name: site.event_shape for name, site in self.sites.items()})

    @property
    def dim(self) -> int:
        """The number of coordinates."""
        return sum(shape.numel() for shape in self.shapes.values())

    def only(self, names: Collection[str]) -> Latents:
        """Some of them, or none."""
        return Latents([site for name, site in self.sites.items() if name in names])

    def coordinates(self, nodes: Mapping[str, Any]) -> Tensor:
        """Those of the values that a run of the model had.  [d]"""
        variables = self.unconstrain({name: nodes[name]["value"] for name in self.sites})
        return torch.cat([torch.empty(0), *(value.flatten() for value in variables.values())])

    def values(self, position: Tensor) -> dict[str, Tensor]:
        """The values of each site.  [..., d] -> {name: [..., *shape]}"""
        return self.constrain(Layout(self.shapes).unflatten(position))[0] if self.sites else {}

    def variables(self, position: Tensor) -> dict[str, Tensor]:
        """The coordinates of each site, particles left of the plates.  [..., d] -> {name: [..., *shape]}"""
        batch, layout, variables = position.shape[:-1], Layout(self.shapes), {}
        for name, site in self.sites.items():
            # the sizes of plates are 1 in the batch
            shape = torch.broadcast_shapes(site.shape, batch + (1,) * len(site.event_shape))
            variables[name] = position[..., layout.slices[name]].reshape(shape)
        return variables

    def example(self) -> dict[str, Tensor]:
        """Coordinates of the values that were seen."""
        return self.unconstrain({name: site.value for name, site in self.sites.items()})

    def constrain(self, variables: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], Tensor | float]:
        """Coordinates (integers as they are) to values of the sites, and Σ log|det| of all of them.

        The values keep leading dimensions; the sum runs over them too, and is meant for one point.
        """
        values, log_det = {}, 0.0
        for name, site in self.sites.items():
            if site.to_support is None:
                values[name] = variables[name].to(site.value.dtype)
                continue
            values[name] = site.to_support(variables[name])
            price = site.to_support.log_abs_det_jacobian(variables[name], values[name])
            log_det = log_det + price.sum()
        return values, log_det

    def stand_in(self, variables: Mapping[str, Tensor], batch: torch.Size) -> Tensor | float:
        """log N(z; 0, I) of the coordinates that are masked out of log p, which would be improper.

        In log p and in log q alike, where they cancel.  variables: of each chain  -> [*batch]
        """
        total: Tensor | float = 0.0
        for name, site in self.sites.items():
            if site.masked is not None:
                price = standard_log_prob_where(variables[name], site.masked, len(site.event_shape))
                total = total + (price.sum_to_size(batch) if batch else price.sum())
        return total

    def unconstrain(self, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Values of the sites to their coordinates; integers stay as they are."""
        if missing := self.sites.keys() - values.keys():
            raise ValueError(f"there is no value of {', '.join(sorted(missing))}")
        return {
            name: values[name] if site.to_support is None else site.to_support.inv(values[name])
            for name, site in self.sites.items()
        }


def no_subsamples(who: str, plate: str) -> NotImplementedError:
    """The error of what needs all data at once."""
    return NotImplementedError(
        f"{who} does not support model with subsample sites, found {plate!r}: give it all the data, or, for "
        "latents inside of that plate, use hmcvi.pyro.AutoSemiHMC"
    )


def find_latents(
    who: str,
    model: Model,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    transforms: Transforms | None = None,
    embed: bool = False,
    subsample: bool = False,
) -> Latents:
    """Find the latent sites by running the model once.  who: named in errors, as the one that needs them.

    embed: whether integers may be embedded in the line; subsample: whether plates may be subsampled.
    Sites that the model marks for parallel enumeration (`pyro.infer.config_enumerate`) are summed out.
    """
    with poutine.block() if subsample else apart():  # plates that are subsampled have to fit those around
        trace = retried(lambda: poutine.trace(model).get_trace(*args, **kwargs))
    if transforms and (unknown := transforms.keys() - set(trace.stochastic_nodes)):
        raise ValueError(f"there is no latent site {sorted(unknown)[0]!r} to transform")
    sites, summed_out = [], []
    for name, site in trace.iter_stochastic_nodes():
        if isinstance(site["fn"], _Subsample):
            if not subsample and len(site["value"]) < site["fn"].size:  # type: ignore[arg-type]
                raise no_subsamples(who, name)
            continue
        if is_summed_out(site) and not embed:
            summed_out.append(name)
            continue
        sites.append(_latent(name, site, (transforms or {}).get(name)))
    if not sites:
        raise NoLatents(f"{who} found no latent variables in the model")
    discrete = [site.name for site in sites if site.to_support is None]
    if discrete and not embed:
        names = ", ".join(map(repr, discrete))
        raise ValueError(
            f"{who} cannot handle discrete sample sites: {names}. Sum them out, by "
            "pyro.infer.config_enumerate(model) or dist.MixtureSameFamily, or move them by "
            "KernelAdapter(model, DiscontinuousHMC). See https://pyro.ai/examples/enumeration.html"
        )
    if summed_out:
        _check_plates(trace)
    frames: list[Any] = [f for site in trace.nodes.values() for f in site.get("cond_indep_stack", ())]
    return Latents(sites, summed_out, max((-frame.dim for frame in frames if frame.vectorized), default=0))


def is_summed_out(site: Mapping[str, Any]) -> bool:
    """Whether a site is a discrete latent that is marked for parallel enumeration."""
    if site["type"] != "sample" or site["is_observed"]:
        return False
    return site["infer"].get("enumerate") == "parallel" and site["fn"].has_enumerate_support


@torch.no_grad()
def _check_plates(trace: Any) -> None:
    """Refuse dimensions that no plate declares: they would meet those of enumeration."""
    trace.compute_log_prob()
    for site in trace.nodes.values():
        if site["type"] == "sample" and not isinstance(site["fn"], _Subsample):
            check_site_shape(site, MAX_PLATES)


@contextmanager
def apart() -> Iterator[None]:
    """Run a model apart from handlers around it, and from dimensions that plates and labels there take.

    Handlers, dimensions and validation are globals of Pyro: threads take turns.
    """
    with _TURNS:
        taken, _DIM_ALLOCATOR._stack = _DIM_ALLOCATOR._stack, []
        enumerated = dict(vars(_ENUM_ALLOCATOR))
        try:
            with poutine.block():
                yield
        finally:
            _DIM_ALLOCATOR._stack = taken
            vars(_ENUM_ALLOCATOR).update(enumerated)


def retried(run: Callable[[], T]) -> T:
    """run(), again while the linear algebra of a model fails at the values it draws from its prior."""
    for _ in range(MAX_TRIES - 1):
        try:
            return run()
        except LinAlgError:
            continue
    return run()


def check_same_sites(of_base: Latents, of_model: Latents) -> None:
    """Refuse a base that is a guide of other sites than the model's, or has them in another order."""
    known, needed = list(of_base.sites), list(of_model.sites)
    if known != needed:
        raise ValueError(f"the base is a guide of {known}, the latents of the model are {needed}")


def _latent(name: str, site: Mapping[str, Any], from_support: Transform | None) -> Latent:
    fn, value = site["fn"], site["value"].detach()
    frames = tuple(frame for frame in site["cond_indep_stack"] if frame.vectorized)
    if from_support is None and fn.support.is_discrete:
        return Latent(name, value, fn.event_dim, frames, None, _embedding(name, fn.support))
    with helpful_support_errors(site):
        to_support = biject_to(fn.support) if from_support is None else from_support.inv
    latent = Latent(name, value, fn.event_dim, frames, to_support)
    kept = entries_kept(site)
    if kept is None:
        return latent
    masked = ~kept.reshape(kept.shape + (1,) * len(latent.event_shape)).expand(latent.shape)
    return replace(latent, has_mask=True, masked=masked if masked.any() else None)


def _embedding(name: str, support: Any) -> Embedding:
    """The embedding of the integers of a support."""
    while isinstance(support, constraints.independent):
        support = support.base_constraint
    if support is constraints.boolean:
        return Integers(0, 1)
    if isinstance(support, type(constraints.nonnegative_integer)):
        return Counts(_bound(name, support.lower_bound))
    if isinstance(support, constraints.integer_interval):
        return Integers(_bound(name, support.lower_bound), _bound(name, support.upper_bound))
    raise ValueError(
        f"cannot move the discrete sample site {name!r} along the line: its support {support} is not a range "
        "of integers"
    )


def _bound(name: str, bound: Any) -> int:
    values = torch.as_tensor(bound).unique()
    if len(values) > 1:
        raise ValueError(f"the entries of the discrete sample site {name!r} have different ranges")
    return int(values)
