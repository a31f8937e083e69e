"""Models that assign to parts of tensors, which vmap refuses where the tensor is the same in all runs."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

_OF_TORCH = ("zeros", "ones", "empty", "full", "eye", "zeros_like", "ones_like", "empty_like", "full_like")
_OF_TENSORS = ("clone", "new_zeros", "new_ones", "new_empty", "new_full")
MAKERS = {getattr(torch, name) for name in (*_OF_TORCH, "clone")}
MAKERS |= {getattr(Tensor, name) for name in _OF_TENSORS}
is_batched = torch._C._functorch.is_batchedtensor


class Assignable(TorchFunctionMode):
    """Tensors that a model makes under vmap have the batch of `example`, so that it may assign to them.

    x[mask] = value, where the mask has a batch too, is then a choice between two values.
    """

    def __init__(self, example: Tensor) -> None:
        super().__init__()
        self._zero = torch.zeros_like(example).sum()

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is Tensor.__setitem__ and _is_choice(*args):
            tensor, mask, value = args
            return tensor.copy_(torch.where(mask, value, tensor))
        result = function(*args, **(kwargs or {}))
        if function in MAKERS and result.is_floating_point() and not is_batched(result):
            return result + self._zero.to(result)
        return result


def _is_choice(tensor: Tensor, index: Any, value: Any) -> bool:
    """Whether x[index] = value chooses by a batch of masks."""
    if not (isinstance(index, Tensor) and index.dtype == torch.bool and is_batched(index)):
        return False
    return index.shape == tensor.shape and not (isinstance(value, Tensor) and value.ndim)
