"""Log-likelihoods log p(x|z) from the outputs of a decoder."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from hmcvi.density import normal_log_prob


def bernoulli_log_prob(logits: Tensor, x: Tensor) -> Tensor:
    """log Π Bernoulli(x; σ(l)) = Σ x·l − log(1 + e^l).  l, x: [..., D] -> [...]"""
    # inside torch.func, torch.compile loses the second derivative of custom functions
    if torch.compiler.is_compiling():
        return _LogBernoulli.forward(logits, x)
    return _LogBernoulli.apply(logits, x)


class _LogBernoulli(torch.autograd.Function):
    """The same with its score x − σ(l) in closed form, which halves the work of differentiating it again."""

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


def _gaussian_log_prob(output: tuple[Tensor, Tensor], x: Tensor) -> Tensor:
    return normal_log_prob(x, *output)


LIKELIHOODS: dict[str, Callable[..., Tensor]] = {
    "bernoulli": bernoulli_log_prob,
    "gaussian": _gaussian_log_prob,
}
