"""Log densities traced to straight lists of tensor operations, with their first two derivatives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx


class Traced:
    """log γ: z [n, d] ↦ [n], differentiable twice, without the Python that defined it.

    By two programs, made once at an example: z ↦ log γ, ∇log γ and what the other one needs, which gives
    u ↦ ∇²log γ u.  The function is taken to be the same, row by row, whenever it is called: it must not
    branch on values, and tensors other than z are constants.
    """

    def __init__(self, function: Callable[[Tensor], Tensor], example: Tensor) -> None:
        self.shape = example.shape

        def with_derivatives(z: Tensor, direction: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            z = z.detach().requires_grad_()
            value = function(z)
            (grad,) = torch.autograd.grad(value.sum(), z, create_graph=True)
            product = torch.zeros_like(z)
            if grad.requires_grad:
                (product,) = torch.autograd.grad(grad, z, direction)
            return value.detach(), grad.detach(), product

        with torch.enable_grad():
            whole = make_fx(with_derivatives)(example, torch.ones_like(example))
        self._first, self._second = _split(whole)

    def __call__(self, z: Tensor) -> Tensor:
        value, grad, *kept = self._first(z.detach())
        if not (torch.is_grad_enabled() and z.requires_grad):
            return value
        return _Value.apply(z, value, _Rest(grad, self._second, kept))


class _Rest:
    """What is left to do when a value is differentiated."""

    def __init__(self, grad: Tensor, second: Callable[..., Tensor], kept: list[Tensor]) -> None:
        self.grad, self.second, self.kept = grad, second, kept


class _Value(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, z: Tensor, value: Tensor, rest: _Rest) -> Tensor:
        ctx.save_for_backward(z)
        ctx.rest = rest
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, weight: Tensor) -> tuple[Tensor, None, None]:
        (z,) = ctx.saved_tensors
        grad = _Gradient.apply(z, ctx.rest) if torch.is_grad_enabled() else ctx.rest.grad
        return weight[..., None] * grad, None, None


class _Gradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, z: Tensor, rest: _Rest) -> Tensor:
        ctx.rest = rest
        return rest.grad.view_as(rest.grad)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, direction: Tensor) -> tuple[Tensor, None]:
        return ctx.rest.second(direction, *ctx.rest.kept), None


def _split(whole: fx.GraphModule) -> tuple[fx.GraphModule, fx.GraphModule]:
    """The part that needs no direction, and the rest as a function of the direction and of what it needs."""
    whole.graph.eliminate_dead_code()
    nodes = list(whole.graph.nodes)
    direction = [node for node in nodes if node.op == "placeholder"][1]
    (results,) = nodes[-1].args
    late = {direction}
    for node in nodes:
        if any(source in late for source in node.all_input_nodes):
            late.add(node)
    late.discard(nodes[-1])
    product = results[2]
    body = [n for n in nodes[:-1] if n in late and n is not direction]
    needed = dict.fromkeys(s for n in body for s in n.all_input_nodes if s not in late and s.op != "get_attr")
    if product not in late:
        needed[product] = None
    first, copies = fx.Graph(), {}
    for node in nodes[:-1]:
        if node not in late:
            copies[node] = first.node_copy(node, copies.__getitem__)
    first.output(tuple(copies[n] for n in (*results[:2], *needed)))
    second, again = fx.Graph(), {}
    again[direction] = second.placeholder("direction")
    for node in needed:
        again[node] = second.placeholder(f"kept_{len(again)}")
    for node in body:
        for source in node.all_input_nodes:
            if source not in again:
                again[source] = second.node_copy(source, again.__getitem__)
        again[node] = second.node_copy(node, again.__getitem__)
    second.output(again[product])
    return fx.GraphModule(whole, first), fx.GraphModule(whole, second)
