"""Where the random numbers of a weighted chain come from."""

from __future__ import annotations

import torch
from torch import Tensor


class Randomness:
    """torch's own generator, one number for each of `like`."""

    def normal(self, like: Tensor) -> Tensor:
        """n ~ N(0, I), shaped like vectors [..., d]."""
        return torch.randn_like(like)

    def uniform(self, like: Tensor) -> Tensor:
        """u ~ U[0, 1), shaped like numbers [...]."""
        return torch.rand_like(like)


class Share(Randomness):
    """The numbers of the data start, …, stop − 1 of a batch of `total`, as if drawn for all of it.

    Processes that share a batch, each with the same seed, move every datum as one process alone would.
    Data are the last dimension but that of a vector: [..., data, d] and [..., data].
    """

    def __init__(self, start: int, stop: int, total: int) -> None:
        if not 0 <= start < stop <= total:
            raise ValueError(f"a share {start}, …, {stop} − 1 of a batch of {total} is empty or beyond it")
        self._start, self._stop, self._total = start, stop, total

    def normal(self, like: Tensor) -> Tensor:
        return self._part(super().normal(self._whole(like, -2)), -2)

    def uniform(self, like: Tensor) -> Tensor:
        return self._part(super().uniform(self._whole(like, -1)), -1)

    def _whole(self, like: Tensor, dim: int) -> Tensor:
        if like.shape[dim] != self._stop - self._start:
            raise ValueError(f"a share of {self._stop - self._start} data, got {list(like.shape)}")
        shape = list(like.shape)
        shape[dim] = self._total
        return like.new_empty(()).expand(shape)

    def _part(self, whole: Tensor, dim: int) -> Tensor:
        return whole.narrow(dim, self._start, self._stop - self._start)
