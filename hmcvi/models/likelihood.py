"""Log-likelihoods p(x|z) from what a decoder outputs."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F


def log_normal(z: Tensor, loc: Tensor, scale: Tensor) -> Tensor:
    """log N(z; loc, diag(scale²)).  [..., d] -> [...]"""
    residual = (z - loc) / scale
    return -(0.5 * residual.square() + scale.log() + 0.5 * math.log(2 * math.pi)).sum(-1)


def log_bernoulli(logits: Tensor, x: Tensor) -> Tensor:
    """log Π Bernoulli(x; σ(l)) = Σ x·l − log(1 + e^l).  l, x: [..., D] -> [...]"""
    # inside torch.func, torch.compile loses the second derivative of custom functions
    if torch.compiler.is_compiling():
        return _LogBernoulli.forward(logits, x)
    return _LogBernoulli.apply(logits, x)


class _LogBernoulli(torch.autograd.Function):
    """The same with its score x − σ(l) given, which is half as much work to differentiate again."""

    generate_vmap_rule = True

    @staticmethod
    def forward(logits: Tensor, x: Tensor) -> Tensor:
        return (x * logits - F.softplus(logits)).sum(-1)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)
        ctx.shapes = [tensor.shape for tensor in inputs]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
        logits, x = ctx.saved_tensors
        grad = grad[..., None]
        by_logits, by_x = ctx.needs_input_grad
        return (
            (grad * (x - logits.sigmoid())).sum_to_size(ctx.shapes[0]) if by_logits else None,
            (grad * logits).sum_to_size(ctx.shapes[1]) if by_x else None,
        )


def _log_gaussian(output: tuple[Tensor, Tensor], x: Tensor) -> Tensor:
    return log_normal(x, *output)


LIKELIHOODS: dict[str, Callable[..., Tensor]] = {"bernoulli": log_bernoulli, "gaussian": _log_gaussian}
