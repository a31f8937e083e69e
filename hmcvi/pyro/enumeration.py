"""Discrete latents summed out, as Pyro does it, and for many points at once: vmap can run what is here."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import torch
from pyro.ops.contract import contract_to_tensor
from pyro.ops.einsum.util import Tensordot
from pyro.ops.rings import LogRing
from pyro.poutine.enum_messenger import EnumMessenger
from pyro.poutine.subsample_messenger import _Subsample
from torch import Tensor

transpose = torch.permute


class Enumeration(EnumMessenger):
    """Pyro's parallel enumeration, without a look at the data of values, which vmap does not allow."""

    def _pyro_post_sample(self, msg: Any) -> None:
        value = msg["value"]
        if isinstance(value, Tensor):
            msg["value"] = torch.empty(()).expand(value.shape)  # only its shape is asked for
        super()._pyro_post_sample(msg)
        msg["value"] = value


def log_marginal(trace: Any) -> Tensor:
    """log Σ p over the discrete latents, along whose own dimensions the trace has all values.  []"""
    trace.compute_log_prob()
    trace.pack_tensors()
    plates = trace.plate_to_symbol
    terms: OrderedDict[frozenset[str], list[Tensor]] = OrderedDict()
    for site in trace.nodes.values():
        if site["type"] == "sample" and not isinstance(site["fn"], _Subsample):
            inside = frozenset(plates[frame.name] for frame in site["cond_indep_stack"] if frame.vectorized)
            terms.setdefault(inside, []).append(site["packed"]["log_prob"])
    discrete = set(trace.symbol_to_dim) - set(plates.values())
    result: Tensor = contract_to_tensor(terms, discrete, ring=_LogRing())
    return result


class _LogRing(LogRing):
    """Sums and products of probabilities by their logarithms, with the functions of this module."""

    _backend = __name__


def einsum(equation: str, *operands: Tensor) -> Tensor:
    """log Σ Π exp(operands), which dimensions are shared and kept in the notation of einsum: "ab,bc->ac"."""
    inputs, output = equation.split("->")
    summed = sorted(set(inputs) - set(output) - {","})
    dims = [*output, *summed]
    total = sum(_aligned(term, own, dims) for term, own in zip(operands, inputs.split(","), strict=True))
    assert isinstance(total, Tensor)
    if not summed:
        return total
    low = torch.finfo(total.dtype).min / 4  # stands for −inf, whose gradient is not a number
    result = total.clamp(min=low).logsumexp(tuple(range(len(output), len(dims))))
    return result.masked_fill(result < low / 2, -torch.inf)


tensordot = Tensordot(einsum)


def _aligned(term: Tensor, own: str, dims: list[str]) -> Tensor:
    """A tensor whose dimensions have the names `own`, with those of `dims` in their order."""
    order = [own.index(name) for name in dims if name in own]
    shape = [term.shape[own.index(name)] if name in own else 1 for name in dims]
    return term.permute(order).reshape(shape)
