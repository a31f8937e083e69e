"""Gradients of parts of a batch, of some modules only, and of all processes together."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise

import torch
from torch import nn

from hmcvi.internal.processes import Processes


def split(start: int, stop: int, number: int) -> list[tuple[int, int]]:
    """The range start, …, stop − 1 in so many parts, as equal as can be.

    >>> split(10, 17, 3)
    [(10, 12), (12, 14), (14, 17)]
    """
    edges = [start + (stop - start) * part // number for part in range(number + 1)]
    return list(pairwise(edges))


@contextmanager
def constant(module: nn.Module) -> Iterator[None]:
    """Leave the module's parameters out of gradients."""
    learned = [p for p in module.parameters() if p.requires_grad]
    module.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in learned:
            parameter.requires_grad_(True)


def sum_gradients(model: nn.Module, processes: Processes) -> None:
    """Over the processes, those that no process has left out."""
    if processes.size == 1:
        return
    parameters = list(model.parameters())
    there = torch.tensor([float(p.grad is not None) for p in parameters]).to(parameters[0])
    flat = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
    summed = processes.sum(torch.cat([there, *(gradient.flatten() for gradient in flat)]))
    anywhere, *parts = summed.split([len(parameters), *(p.numel() for p in parameters)])
    for parameter, present, part in zip(parameters, anywhere.tolist(), parts, strict=True):
        parameter.grad = part.view_as(parameter) if present else None
