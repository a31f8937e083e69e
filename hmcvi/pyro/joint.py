"""log p(x, z) of a Pyro model as a function of unconstrained latents, one point or many at once."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import nullcontext
from typing import Any

import pyro
import torch
from pyro import poutine
from pyro.poutine.subsample_messenger import _Subsample
from torch import Tensor

from hmcvi.internal.linalg import LinAlgError
from hmcvi.pyro.assignable import Assignable
from hmcvi.pyro.enumeration import Enumeration, log_marginal
from hmcvi.pyro.latents import Latents, Model, apart

CHECKED_POINTS = 30  # of a model that draws random numbers, besides the values that were seen
Variables = Mapping[str, Tensor]


class Joint:
    """The joint density: variables {name: [*shape]} ↦ log p(x, z) + Σ log|det|, a number.

    It runs the model, hidden from handlers around it and without validation: a chain may propose anything.
    """

    def __init__(
        self,
        model: Model,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        latents: Latents,
        prior_only: bool = False,
    ) -> None:
        self._model, self._args, self._kwargs = model, args, dict(kwargs)
        self._latents, self._prior_only = latents, prior_only

    def __call__(self, variables: Variables) -> Tensor:
        values, log_det = self._latents.constrain(variables)
        log_det = log_det + self._latents.stand_in(variables, torch.Size())
        example = next(iter(variables.values()))
        assigning = Assignable(example) if self._latents.assigns else nullcontext()
        with apart(), pyro.validation_enabled(False), assigning:
            conditioned = poutine.condition(self._model, values)
            if self._latents.summed_out:
                conditioned = Enumeration(-1 - self._latents.nesting)(conditioned)
            trace = poutine.trace(conditioned).get_trace(*self._args, **self._kwargs)
            _refuse_free(trace, self._latents.summed_out)
            if self._latents.summed_out:
                return self._marginal(trace) + log_det
            return torch.as_tensor(trace.log_prob_sum(self._counts) + log_det)

    def _marginal(self, trace: Any) -> Tensor:
        """log Σ p over the discrete latents, along whose own dimensions the trace has all values.  []"""
        for name in list(trace.nodes):
            site = trace.nodes[name]
            kept = self._counts(name, site) or name in self._latents.summed_out
            if site["type"] == "sample" and not kept:
                trace.remove_node(name)
        return log_marginal(trace)

    @torch.no_grad()
    def dtype(self) -> torch.dtype:
        """The dtype of its values."""
        return self(self._latents.example()).dtype

    @torch.no_grad()
    def check(self, who: str) -> None:
        """Refuse a model whose log density is random, which one that draws random numbers need not be."""
        for point in self._points():
            before = torch.get_rng_state()
            try:
                first, second = self(point), self(point)
            except LinAlgError:
                continue
            refuse_random(who, first, second, self._latents.sites)
            if torch.equal(before, torch.get_rng_state()):
                return

    def _points(self) -> Iterator[dict[str, Tensor]]:
        """The values that were seen, and others whose coordinates are uniform in (−2, 2)."""
        example, generator = self._latents.example(), torch.Generator().manual_seed(0)
        yield example
        for _ in range(CHECKED_POINTS):
            yield {
                name: value
                if name in self._latents.discrete
                else (4 * torch.rand(value.shape, generator=generator) - 2).to(value)
                for name, value in example.items()
            }

    def _counts(self, name: str, site: Any) -> bool:
        return not self._prior_only or name in self._latents.sites


def refuse_random(who: str, first: Tensor, second: Tensor, names: Iterable[str]) -> None:
    """Refuse a log density that is different when it is evaluated again."""
    if not torch.allclose(first, second, equal_nan=True):
        raise ValueError(
            f"{who} needs log p as a function of {', '.join(names)}, but it is random: it depends on sites "
            "hidden by poutine.block, or drawn without pyro.sample. Leave them visible, or fix them by "
            "poutine.condition(model, data={...})."
        )


def _refuse_free(trace: Any, summed_out: Collection[str]) -> None:
    """Refuse sites that are neither latents nor observed, which would make log p random."""
    sites = ((n, site) for n, site in trace.iter_stochastic_nodes() if n not in summed_out)
    free = [name for name, site in sites if not isinstance(site["fn"], _Subsample)]
    if free:
        raise ValueError(
            f"site {free[0]!r} is neither observed nor one of the latents that the model had at first: give "
            "the data, or sample the same sites in every run"
        )


Batched = Callable[[Variables], Tensor]  # {name: [..., *shape]} -> [...]


def batched(joint: Joint, latents: Latents, vectorized: bool) -> Batched:
    """The joint density of many points: by vmap in one run of the model, or one by one."""

    def log_prob(variables: Variables) -> Tensor:
        name, shape = next(iter(latents.shapes.items()))
        batch = variables[name].shape[: variables[name].ndim - len(shape)]
        count = batch.numel()
        rows = {name: variables[name].reshape(count, *shape) for name, shape in latents.shapes.items()}
        if vectorized and count > 1:
            return torch.func.vmap(joint, randomness="same")(rows).reshape(batch)
        points = ({name: value[index] for name, value in rows.items()} for index in range(count))
        return torch.stack([joint(point) for point in points]).reshape(batch)

    return log_prob


def vectorizes(joint: Joint, latents: Latents, warn: bool = True) -> bool:
    """Whether vmap can run the model, by comparing two points to their values one by one."""
    reason = _obstacle(joint, latents)
    if reason is not None and warn:
        warnings.warn(
            f"the model does not vectorise, its chains are evaluated one by one: {reason}", stacklevel=3
        )
    return reason is None


@torch.no_grad()
def _obstacle(joint: Joint, latents: Latents) -> str | None:
    """Why vmap cannot run the model; None if it can, with `latents.assigns` if need be."""
    latents.assigns = False
    try:
        pairs = _pairs(latents, 0.1)
        expected = batched(joint, latents, False)(pairs)
    except LinAlgError:
        pairs = _pairs(latents, 0.0)
        expected = batched(joint, latents, False)(pairs)
    reasons = []
    for latents.assigns in (False, True):
        try:
            actual = batched(joint, latents, True)(pairs)
        except Exception as error:  # whatever the model does that vmap cannot
            reasons.append(str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__)
            continue
        if torch.allclose(actual, expected, rtol=1e-4, atol=1e-4, equal_nan=True):
            return None
        reasons.append("its log density comes out different")
    latents.assigns = False
    return reasons[0]


def _pairs(latents: Latents, shift: float) -> dict[str, Tensor]:
    """The values that were seen and others, shifted unless they are integers.  {name: [2, *shape]}"""
    return {
        name: torch.stack([value, value if name in latents.discrete else value + shift])
        for name, value in latents.example().items()
    }
