"""Latents whose log p is masked out, as by obs_mask: standard normal in log p and in log q alike."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from pyro.distributions import MaskedDistribution
from pyro.distributions.util import sum_rightmost
from torch import Tensor
from torch.distributions import Independent


def entries_kept(site: Mapping[str, Any]) -> Tensor | None:
    """Which entries of a latent site count in log p, by poutine.mask and fn.mask.  [*batch_shape]

    None if the site has no mask, or one of entries of an event.
    """
    fn, keeps = site["fn"], []
    if site["mask"] is not None:
        keeps.append(site["mask"])
    while isinstance(fn, MaskedDistribution | Independent):
        if isinstance(fn, MaskedDistribution):
            keeps.append(fn._mask)
        fn = fn.base_dist
    if not keeps:
        return None
    batch = site["fn"].batch_shape
    kept = torch.ones(batch, dtype=torch.bool, device=site["value"].device)
    for keep in keeps:
        keep = torch.as_tensor(keep, device=kept.device)
        if keep.numel() > 1 and len(keep.shape) > len(batch):
            return None
        kept = kept & keep
    return kept if kept.shape == batch else None


def standard_log_prob_where(z: Tensor, masked: Tensor, event_dim: int) -> Tensor:
    """Σ log N(z; 0, 1) over the coordinates of an event that are masked.  [..., *event] -> [...]"""
    price = (-0.5 * (z.square() + math.log(2 * math.pi))).where(masked, 0.0)
    return sum_rightmost(price, event_dim)
