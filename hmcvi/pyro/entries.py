"""The entries of a plate with local latents: which there are, and log p of each of them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import pyro
import torch
from pyro import poutine
from pyro.distributions.util import sum_rightmost
from pyro.infer.autoguide.initialization import InitMessenger
from pyro.poutine.subsample_messenger import _Subsample
from torch import Tensor

from hmcvi.density import LogProb
from hmcvi.internal.checks import choose
from hmcvi.internal.layout import Layout
from hmcvi.pyro.data import Call, Known
from hmcvi.pyro.latents import Latents, Model, apart, retried
from hmcvi.pyro.masks import entries_kept, standard_log_prob_where

Nodes = Mapping[str, Any]  # the sample sites of a trace
Values = Mapping[str, Tensor]


class Entries(NamedTuple):
    """Those entries of a plate that a call selects."""

    name: str
    dim: int  # of the plate, counted from the right
    size: int  # of the whole plate
    indices: Tensor  # [B]
    is_drawn: bool  # at random, by the model

    @property
    def is_part(self) -> bool:
        """Whether there are others."""
        return len(self.indices) < self.size

    @property
    def batch(self) -> torch.Size:
        """The shape of a value for each entry.  [B, 1…]"""
        return torch.Size([len(self.indices)] + [1] * (-self.dim - 1))

    def align(self, value: Tensor, event_dim: int = 1) -> Tensor:
        """Values of entries at the dimension of the plate.  [..., B, *event] -> [..., B, 1…, *event]"""
        event = value.shape[value.ndim - event_dim :]
        return value.reshape(value.shape[: value.ndim - event_dim - 1] + self.batch + event)

    def plate(self) -> Any:
        return pyro.plate(self.name, self.size, subsample=self.indices, dim=self.dim)

    def batches(self) -> list[tuple[Entries, int]]:
        """These entries; of a plate that the model subsamples all entries, in batches of the same size.

        With each batch the number of its last entries that no other batch has.
        """
        if not (self.is_part and self.is_drawn):
            return [(self, len(self.indices))]
        count, everyone = len(self.indices), torch.arange(self.size, device=self.indices.device)
        ends = [*range(count, self.size, count), self.size]
        news = [count] + [end - before for before, end in itertools.pairwise(ends)]
        return [
            (self._replace(indices=everyone[end - count : end]), new)
            for end, new in zip(ends, news, strict=True)
        ]


def run(model: Model, call: Call, init: Callable[..., Any]) -> dict[str, Any]:
    """The sample sites of one run of a model, its latents by a strategy of Pyro's."""
    with torch.no_grad(), apart(), InitMessenger(init):
        trace = retried(lambda: poutine.trace(model).get_trace(*call.args, **call.kwargs))
    return {name: site for name, site in trace.nodes.items() if site["type"] == "sample"}


def find_plate(who: str, nodes: Nodes, latents: Latents, plate: str | None) -> str:
    """The plate of the local latents: named, or subsampled, or the one that has latents and data."""
    frames = {frame.name: frame for site in latents.sites.values() for frame in site.frames}
    if plate is not None:
        return choose("plate", plate, {name: name for name in frames})
    observed = {f.name for site in nodes.values() if site["is_observed"] for f in site["cond_indep_stack"]}
    found = [name for name, frame in frames.items() if _is_part(frame)]
    found = found or [name for name in frames if name in observed]
    if not found:
        raise ValueError(
            f"{who} refines latents inside of a plate with data, and the model has none there: use AutoHMC "
            "if it sees all the data at once, or else one of Pyro's guides"
        )
    if len(found) > 1:
        raise ValueError(f"{who} refines latents in one plate: say by plate= which one of {found}")
    return found[0]


def find_entries(nodes: Nodes, plate: str, by_index: bool = True) -> Entries:
    """The entries that a run of the model has selected; by_index: refuse them if they are not indices."""
    if plate not in nodes:
        raise ValueError(f"the model has no plate {plate!r} in this call")
    value, subsample = nodes[plate]["value"], nodes[plate]["fn"]
    dim = next(f.dim for s in nodes.values() for f in s["cond_indep_stack"] if f.name == plate)
    indices = torch.as_tensor(value)
    if by_index:
        check_indices(plate, subsample.size, indices)
    return Entries(
        plate, dim, subsample.size, indices, subsample.subsample_size not in (None, subsample.size)
    )


def check_indices(plate: str, size: int, indices: Tensor) -> None:
    """Refuse a subsample that does not say which entries it has."""
    if indices.ndim != 1 or indices.is_floating_point() or indices.is_complex():
        raise ValueError(
            f"plate {plate!r} must be subsampled by indices of its entries, got values {list(indices.shape)} "
            f"of {indices.dtype}: pyro.plate({plate!r}, {size}, subsample=indices), or use AmortizedHMC"
        )
    if len(indices) and not (int(indices.min()) >= 0 and int(indices.max()) < size):
        raise ValueError(f"plate {plate!r} has {size} entries, got {indices.tolist()}")


def split(who: str, nodes: Nodes, latents: Latents, plate: str) -> tuple[Latents, Latents]:
    """Global and local latents, the latter in this plate and no other."""
    plates = {site.name: [frame.name for frame in site.frames] for site in latents.sites.values()}
    local = [name for name, names in plates.items() if plate in names]
    for name in local:
        if len(plates[name]) > 1:
            raise ValueError(
                f"{who} has a chain for each entry of {plate!r}, and {name!r} is in {plates[name]}: replace "
                "the other plates by .to_event(...), so that it is a vector for each entry"
            )
    for name, site in nodes.items():
        frames = site["cond_indep_stack"]
        twice = [f.name for f in frames if f.name != plate and f.vectorized and _is_part(f)]
        if twice and any(f.name == plate for f in frames):
            raise ValueError(
                f"{who} subsamples one plate, {plate!r}, and site {name!r} is in {twice[0]!r} too: its "
                "entries need all of their data"
            )
    return latents.only(plates.keys() - set(local)), latents.only(local)


def _is_part(frame: Any) -> bool:
    return frame.full_size is not None and frame.size < frame.full_size


class StandIn:
    """log N(z; 0, I) of the local latents whose entries are masked out of log p, as in `Latents.stand_in`.

    Masks are those of a call, of the entries {plate: indices} that it selects.
    """

    def __init__(self, model: Model, call: Call, local: Latents, indices: Mapping[str, Tensor]) -> None:
        self._dims = {name: len(site.event_shape) for name, site in local.sites.items()}
        self._masked: dict[str, Tensor] = {}
        if not any(site.has_mask for site in local.sites.values()):
            return
        nodes = run(poutine.condition(model, dict(indices)), call, Known(local))
        for name in self._dims:
            kept = entries_kept(nodes[name])
            if kept is not None and not kept.all():
                self._masked[name] = ~kept

    def __call__(self, variables: Mapping[str, Tensor]) -> Tensor | float:
        """Coordinates {name: [..., *plates, *event]} -> [..., *plates]; 0 where nothing is masked out"""
        total: Tensor | float = 0.0
        for name, masked in self._masked.items():
            masked = masked.reshape(masked.shape + (1,) * self._dims[name])
            total = total + standard_log_prob_where(variables[name], masked, self._dims[name])
        return total


class EntryJoint:
    """log p of a model, apart for each entry of a plate.

    Given values of the global latents {name: [*shape]} and coordinates z [B, d] of the local ones,
    log p(x_n, z_n | global) + log|det| of each entry [B], whatever the weight of a minibatch, and log p of
    all sites outside of the plate [].
    """

    def __init__(self, who: str, model: Model, call: Call, local: Latents, entries: Entries) -> None:
        self._who, self._model, self._call, self.local, self.entries = who, model, call, local, entries
        self._stand_in = StandIn(model, call, local, {entries.name: entries.indices})

    def __call__(self, outer: Values, z: Tensor) -> tuple[Tensor, Tensor]:
        values, total = self.constrain(z)
        total, rest = total + self.stand_in(z), z.new_zeros(())
        with apart(), pyro.validation_enabled(False):
            known = {**outer, **values, self.entries.name: self.entries.indices}
            conditioned = poutine.condition(self._model, known)
            trace = poutine.trace(conditioned).get_trace(*self._call.args, **self._call.kwargs)
            self._refuse_free(trace, known)
            trace.compute_log_prob()
        for site in trace.nodes.values():
            if site["type"] != "sample" or isinstance(site["fn"], _Subsample):
                continue
            if any(frame.name == self.entries.name for frame in site["cond_indep_stack"]):
                total = total + self._of_entries(site["log_prob"])
            else:
                rest = rest + site["log_prob"].sum()
        return total, rest

    def constrain(self, z: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        """Values of the local sites, aligned to the plate, and Σ log|det|.  [..., B, d] -> …, [..., B]"""
        values, total = {}, torch.zeros_like(z[..., 0])
        for name, value in self.local.event_layout.unflatten(z).items():
            site = self.local.sites[name]
            assert site.to_support is not None
            x = site.to_support(value)
            price = site.to_support.log_abs_det_jacobian(value, x)
            total = total + sum_rightmost(price, price.ndim - total.ndim)
            values[name] = self.entries.align(x, site.event_dim)
        return values, total

    def stand_in(self, z: Tensor) -> Tensor | float:
        """log N(z; 0, I) of the coordinates that are masked out.  [..., B, d] -> [..., B]"""
        sites, values = self.local.sites, self.local.event_layout.unflatten(z)
        aligned = {name: self.entries.align(v, len(sites[name].event_shape)) for name, v in values.items()}
        price = self._stand_in(aligned)
        return price.reshape(z.shape[:-1]) if isinstance(price, Tensor) else price

    def coordinates(self, nodes: Nodes) -> Tensor:
        """Those of the values that a run of the model had.  [B, d]"""
        variables = self.local.unconstrain({name: nodes[name]["value"] for name in self.local.sites})
        flat = [value.reshape(len(self.entries.indices), -1) for value in variables.values()]
        return torch.cat(flat, -1)

    def _of_entries(self, log_prob: Tensor) -> Tensor:
        """Summed over other plates, without the weight of the minibatch.  [..., B, …] -> [B]"""
        count = len(self.entries.indices)
        if log_prob.shape[self.entries.dim] != count:
            raise ValueError(
                f"plate {self.entries.name!r} has {count} entries in the guide and "
                f"{log_prob.shape[self.entries.dim]} in the model"
            )
        rows = log_prob.movedim(self.entries.dim, 0).reshape(count, -1).sum(-1)
        return rows * (count / self.entries.size)

    def _refuse_free(self, trace: Any, known: Values) -> None:
        for name, site in trace.iter_stochastic_nodes():
            if name not in known and not isinstance(site["fn"], _Subsample):
                raise ValueError(
                    f"{self._who} refines the latents of each entry given its own data, and {name!r} is not "
                    "observed in this call: draw latents by guide.sample_posterior(num_samples, ...) with "
                    "the data, or global ones by guide.sample_globals(num_samples), and give them to "
                    "Predictive(model, posterior_samples)"
                )


def over_particles(joint: EntryJoint, vectorized: bool) -> Callable[[Values, Tensor], Tensor]:
    """log p of entries for many particles: global {name: [R, *shape]}, z [K, R, B, d] -> [K, R, B].

    By vmap in one run of the model, global latents once for all K; or one by one.
    """

    def one(outer: Values, z: Tensor) -> Tensor:
        return joint(outer, z)[0]

    def log_prob(outer: Values, z: Tensor) -> Tensor:
        repeats, rows = z.shape[:2]
        if vectorized and repeats * rows > 1:
            inner = torch.func.vmap(one, (None, 0), randomness="same")
            return torch.func.vmap(inner, (0, 1), 1, randomness="same")(outer, z)
        points = [{name: value[row] for name, value in outer.items()} for row in range(rows)]
        return torch.stack([torch.stack([one(points[r], part[r]) for r in range(rows)]) for part in z])

    return log_prob


def whole(joint: EntryJoint, outer: Latents, vectorized: bool) -> LogProb:
    """log p(x, z, g) of these entries alone, with all of g: vectors of g and all z_n [..., D] -> [...]."""

    def one(vector: Tensor) -> Tensor:
        g, z = vector.split([outer.dim, len(vector) - outer.dim])
        variables = Layout(outer.shapes).unflatten(g) if outer.sites else {}
        values, log_det = outer.constrain(variables)
        entries, rest = joint(values, z.reshape(len(joint.entries.indices), -1))
        return entries.sum() + rest + log_det + outer.stand_in(variables, torch.Size())

    def log_prob(position: Tensor) -> Tensor:
        rows = position.reshape(-1, position.shape[-1])
        if vectorized and len(rows) > 1:
            return torch.func.vmap(one, randomness="same")(rows).reshape(position.shape[:-1])
        return torch.stack([one(row) for row in rows]).reshape(position.shape[:-1])

    return log_prob


@torch.no_grad()
def vectorizes(joint: EntryJoint, outer: Values, z: Tensor) -> bool:
    """Whether vmap can run the model, by comparing two points to their values one by one."""
    pair = {name: torch.stack([value, value]) for name, value in outer.items()}
    points = torch.stack([z, z + 0.1])[None]
    try:
        actual = over_particles(joint, True)(pair, points)
        expected = over_particles(joint, False)(pair, points)
    except Exception:  # whatever the model does that vmap cannot
        return False
    return torch.allclose(actual, expected, rtol=1e-4, atol=1e-4, equal_nan=True)
