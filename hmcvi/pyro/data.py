"""The data of a guide: which sites of a model are observed, and the arguments it was trained with."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

import pyro
import torch
from pyro import distributions as dist
from pyro import poutine
from pyro.infer.autoguide.initialization import InitMessenger
from pyro.poutine.subsample_messenger import _Subsample
from torch import Tensor

from hmcvi.pyro.latents import Latents, Model, apart, is_summed_out, no_subsamples, retried

T = TypeVar("T")


class Shared(Generic[T]):
    """A value that is pickled with its owner, and shared by copies of it."""

    def __init__(self, value: T) -> None:
        self.value = value

    def __deepcopy__(self, memo: dict[int, Any]) -> Shared[T]:
        return self


class Call(NamedTuple):
    """Arguments of a model."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]


@dataclass(frozen=True)
class Training:
    """The call that a guide was last trained with.  data: the values of its observed sites."""

    call: Call
    data: Mapping[str, Tensor]
    by_gradient: bool  # whether gradients were on

    def __deepcopy__(self, memo: dict[int, Any]) -> Training:
        return self  # copies of a guide share its data

    def differs(self, data: Mapping[str, Tensor]) -> bool:
        """Whether some of its sites have other values."""
        return any(not _same(value, data[name]) for name, value in self.data.items())


class Sites(NamedTuple):
    """The sample sites of one run of a model."""

    data: dict[str, Tensor]  # values of those that are observed
    latent: dict[str, torch.Size]  # shapes of the others
    log_prob: float = math.nan  # log p of all of them, if it was asked for


def find_sites(
    who: str,
    model: Model,
    call: Call,
    latents: Latents | None = None,
    subsample: bool = False,
    weigh: bool = False,
) -> Sites:
    """Run the model once, at the values of `latents` if they are given; refuse data that are not numbers.

    subsample: whether plates may be subsampled.  weigh: whether to compute log p.
    """
    with torch.no_grad(), apart(), InitMessenger(Known(latents)):
        trace = retried(lambda: poutine.trace(model).get_trace(*call.args, **call.kwargs))
    nodes: dict[str, Any] = {name: site for name, site in trace.nodes.items() if site["type"] == "sample"}
    if not subsample:
        _refuse_subsamples(who, nodes)
    data = {name: site["value"] for name, site in nodes.items() if _is_data(site)}
    for name, value in data.items():
        if value.is_floating_point() and value.isnan().any() and not _is_weighable(trace, name):
            raise ValueError(
                f"Encountered NaN in the data: {who} needs log p, and that of site {name!r} is not a number. "
                "Leave out missing values, or replace them and mask their site by poutine.mask."
            )
    shapes = {
        name: site["fn"].batch_shape + site["fn"].event_shape
        for name, site in nodes.items()
        if not (site["is_observed"] or isinstance(site["fn"], _Subsample) or is_summed_out(site))
    }
    if not weigh:
        return Sites(data, shapes)
    with torch.no_grad(), pyro.validation_enabled(False):
        return Sites(data, shapes, float(trace.log_prob_sum()))


def check_unchanged(who: str, latents: Latents, known: Mapping[str, Any], sites: Sites) -> None:
    """Refuse a model with other latents than the guide.  known: sites that were observed at first."""
    before = {name: list(site.value.shape) for name, site in latents.sites.items()}
    now = {name: list(shape) for name, shape in sites.latent.items() if name not in known}
    if before != now:
        raise ValueError(
            f"{who} was made for the latent sites {before} and finds {now}: the model, or the shape of its "
            "arguments, has changed. Make another guide for it."
        )


def refuse_no_data(who: str, sites: Sites) -> None:
    """Refuse to draw, outside of training, from a posterior without data."""
    if not sites.data and not torch.is_grad_enabled():
        raise RuntimeError(
            f"{who} draws from the posterior given its data, and has seen none: the model has no observed "
            "sites in this call. Call the guide with the training data first: guide(x, y)."
        )


class Known:
    """The values of known latents; draws for other sites, and for latents that have another shape now."""

    def __init__(self, latents: Latents | None) -> None:
        sites = {} if latents is None else latents.sites
        self._values = {name: site.value for name, site in sites.items()}

    def __call__(self, site: Mapping[str, Any]) -> Tensor:
        fn, value = site["fn"], self._values.get(site["name"])
        if is_summed_out(site):
            return _first_of_support(fn)  # observed functions of it are then the same in all calls
        if value is None or value.shape != fn.batch_shape + fn.event_shape:
            value = fn.sample()
            value._pyro_custom_init = False  # a reparameterisation may replace it without a warning
        assert isinstance(value, Tensor)
        return value


def _first_of_support(fn: Any) -> Tensor:
    """The first value of a discrete distribution that can be enumerated, for all its entries."""
    value: Tensor = fn.enumerate_support(expand=True)[0]
    return value


def _is_data(site: Mapping[str, Any]) -> bool:
    """Whether a site is observed, and not a function of latents."""
    fn = site["fn"]
    while isinstance(fn, dist.MaskedDistribution | dist.Independent):
        fn = fn.base_dist
    return site["is_observed"] and not site["infer"].get("_deterministic") and not isinstance(fn, dist.Delta)


def _is_weighable(trace: Any, name: str) -> bool:
    """Whether log p of a site is a number."""
    try:
        with torch.no_grad():
            trace.compute_log_prob(lambda other, _: other == name)
    except ValueError:  # of validation
        return False
    return not trace.nodes[name]["log_prob"].isnan().any()


def _refuse_subsamples(who: str, nodes: Mapping[str, Any]) -> None:
    frames = {frame for site in nodes.values() for frame in site["cond_indep_stack"]}
    for frame in frames:
        if frame.full_size is not None and frame.size < frame.full_size:
            raise no_subsamples(who, frame.name)


def _same(first: Tensor, second: Tensor) -> bool:
    return first is second or (first.shape == second.shape and torch.equal(first, second))
