"""Functions of a tensor written out as graphs of tensor operations, which programs can be made of."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def is_tracing() -> bool:
    """Whether operations are written down at the moment, so that no value is known."""
    module = sys.modules.get("torch.fx.experimental.proxy_tensor")  # slow to import
    return module is not None and module.get_proxy_mode() is not None


class Traced:
    """A function of x, traced at `example`: graph(x, *constants) has its values.

    Python in it has run once; derivatives, handlers and distributions leave only their tensor operations.
    What depends on values of x cannot be traced and raises; what depends on its shape holds for the shapes
    that `fits` accepts.  A Cholesky factor that does not exist is NaN instead of an error.  Tensors that the
    function closes over are inputs of the graph and may change.
    """

    def __init__(self, function: Callable[[Tensor], Any], example: Tensor) -> None:
        from torch.fx.experimental.proxy_tensor import make_fx

        trace = make_fx(lambda x: function(x), tracing_mode="symbolic", _allow_non_fake_inputs=True)
        module: Any = trace(example)
        self._like = example.dtype, example.device
        self._sizes = [_symbol(size) for size in next(iter(module.graph.nodes)).meta["val"].shape]
        self._guards = [guard.expr for guard in module.shape_env.guards]
        self.rank = _rank(module.graph)  # the most dimensions of a tensor in it
        _mask_failures(module.graph)
        _allow_strides(module.graph)
        names = _lift_constants(module)
        self._closed_over = [getattr(module, name) for name in names]
        self.graph: Callable[..., Any] = module.forward

    def fits(self, x: Tensor) -> bool:
        """Whether the function takes the same way for x."""
        if (x.dtype, x.device) != self._like or x.ndim != len(self._sizes):
            return False
        sizes: dict[Any, int] = {}
        for symbol, size in zip(self._sizes, x.shape, strict=True):
            if isinstance(symbol, int) or size < 2:  # sizes 0 and 1 are never symbols
                if symbol != size:
                    return False
            elif sizes.setdefault(symbol, size) != size:  # two that were equal at first
                return False
        return all(bool(guard.subs(sizes)) for guard in self._guards)

    def constants(self) -> list[Tensor]:
        """The tensors closed over, views of the same memory copied: a loop wants no tensor twice."""
        seen: set[int] = set()
        found = []
        for tensor in self._closed_over:
            place = tensor.untyped_storage().data_ptr()
            found.append(tensor.detach().clone() if place in seen else tensor.detach())
            seen.add(place)
        return found


def _symbol(size: Any) -> Any:
    """Of a size, also where it turned out to have only one value."""
    return size.node._expr if isinstance(size, torch.SymInt) else size


def _rank(graph: Any) -> int:
    values = [node.meta.get("val") for node in graph.nodes]
    return max((value.ndim for value in values if isinstance(value, Tensor)), default=0)


def _mask_failures(graph: Any) -> None:
    """Put NaN where a check of Cholesky factors would raise: programs with loops can have no such check."""
    aten = torch.ops.aten
    for check in graph.find_nodes(op="call_function", target=aten._linalg_check_errors.default):
        info = check.args[0]
        if info.args[0].target is not aten.linalg_cholesky_ex.default:
            continue
        for factor in [node for node in info.args[0].users if node.args[1] == 0]:
            with graph.inserting_after(max(info, factor)):
                failed = graph.call_function(aten.ne.Scalar, (info, 0))
            for _ in range(2):
                with graph.inserting_after(failed):
                    failed = graph.call_function(aten.unsqueeze.default, (failed, -1))
            with graph.inserting_after(failed):
                masked = graph.call_function(aten.masked_fill.Scalar, (factor, failed, torch.nan))
            factor.replace_all_uses_with(masked, lambda node, masked=masked: node is not masked)
        graph.erase_node(check)


def _allow_strides(graph: Any) -> None:
    """Let x be laid out in memory as it likes: views of it may then be copies."""
    for view in graph.find_nodes(op="call_function", target=torch.ops.aten.view.default):
        view.target = torch.ops.aten.reshape.default


def _lift_constants(module: Any) -> list[str]:
    """Make attributes of a traced module inputs of its graph; returns their names."""
    graph = module.graph
    *_, last = (node for node in graph.nodes if node.op == "placeholder")
    inputs: dict[str, Any] = {}
    for node in [node for node in graph.nodes if node.op == "get_attr"]:
        if node.target not in inputs:
            with graph.inserting_after(last):
                last = inputs[node.target] = graph.placeholder(node.target)
        node.replace_all_uses_with(inputs[node.target])
        graph.erase_node(node)
    module.recompile()
    return list(inputs)
