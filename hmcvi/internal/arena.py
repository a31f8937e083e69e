"""An arena for small tensors that stay, apart from large ones that come and go."""

from __future__ import annotations

import threading

import torch
from torch import Tensor

BLOCK = 4 * 2**20  # bytes allocated at a time
ALIGNMENT = 64


class Arena(threading.local):
    """Copies tensors side by side into long blocks; a block is freed with the last tensor in it.

    A long chain keeps a few small tensors of each step, allocated between the large ones of a force.  Left
    where they are, they cut the heap into holes that no large tensor fits into again, and the process takes
    many times the memory that its tensors do.  Other devices have allocators that see to this themselves.
    """

    def __init__(self) -> None:  # once in every thread
        super().__init__()
        self._block = torch.UntypedStorage(0)
        self._used = 0

    def keep(self, tensor: Tensor) -> Tensor:
        """A copy of the values, without a graph; large tensors are not copied."""
        size = tensor.numel() * tensor.element_size()
        if tensor.device.type != "cpu" or 4 * size > BLOCK:
            return tensor.detach()
        if self._used + size > len(self._block):
            self._block, self._used = torch.UntypedStorage(BLOCK), 0
        place = torch.empty(0, dtype=tensor.dtype)
        place.set_(self._block, self._used // tensor.element_size(), tensor.shape)  # type: ignore[call-overload]
        self._used += -(-size // ALIGNMENT) * ALIGNMENT
        return place.copy_(tensor.detach())


arena = Arena()
