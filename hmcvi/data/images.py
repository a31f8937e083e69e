"""Images as rows of pixels in [0, 1], and their binarisation."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from hmcvi.data.files import DataError


class Images(NamedTuple):
    """Three splits of one data set.

    train, validation, test: float32 [N, D] in [0, 1], each row an upright image in row-major order.
    labels: int64 [N] under the keys "train", "validation" and "test", or None where the source has none.
    shape: (height, width) with height · width = D.
    """

    train: Tensor
    validation: Tensor
    test: Tensor
    labels: dict[str, Tensor] | None
    shape: tuple[int, int]


def binarize(x: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """b ~ Bernoulli(x), drawn as 1[u < x] with u ~ U[0, 1).  x, b: [...], same dtype.

    The dynamic binarisation of Salakhutdinov & Murray (2008): drawn again whenever an image is used.
    """
    # uniform numbers of half precision are too coarse for the probabilities
    dtype = torch.promote_types(x.dtype, torch.float32)
    uniform = torch.rand(x.shape, generator=generator, dtype=dtype, device=x.device)
    # in place: 3 to 4 times as fast as torch.bernoulli on a CPU
    return uniform.lt_(x).to(x.dtype)


def deform(x: Tensor, shape: tuple[int, int], strength: float = 1.0) -> Tensor:
    """Images turned, stretched, sheared and shifted at random, each by its own affine map.  x: [N, D]

    At strength 1 the angle has a standard deviation of 5°, both stretches of 5 %, the shear of 8 % and the
    shifts of 2.5 % of the image.
    """
    angle, across, down, shear = (
        strength
        * torch.randn(4, len(x)).to(x)
        * torch.tensor([[math.radians(5)], [0.05], [0.05], [0.08]]).to(x)
    )
    shift = 0.05 * strength * torch.randn(len(x), 2, 1).to(x)  # the image is two units wide
    rows = [(1 + across) * angle.cos(), shear - angle.sin(), angle.sin(), (1 + down) * angle.cos()]
    maps = torch.cat([torch.stack(rows, -1).view(-1, 2, 2), shift], -1)
    where = nn.functional.affine_grid(maps, [len(x), 1, *shape], align_corners=False)
    deformed = nn.functional.grid_sample(x.view(len(x), 1, *shape), where, align_corners=False)
    return deformed.view_as(x).clamp(0, 1)


def threshold(x: Tensor) -> Tensor:
    """1[x ≥ 1/2] in the dtype of x.  x: [...].  [Wolf et al. 2016, §5.2]"""
    return (x >= 0.5).to(x.dtype)


def check_pixels(x: Tensor, source: str) -> None:
    """Refuse images that are not finite or leave [0, 1].  x: [...]; source: named in the error."""
    if x.numel() == 0:
        return
    low, high = (bound.item() for bound in x.aminmax())
    if low >= 0 and high <= 1:
        return
    num_bad = int((~torch.isfinite(x)).sum())
    found = f"{num_bad} values that are not finite" if num_bad else f"the range [{low:g}, {high:g}]"
    raise DataError(
        f"{source}: pixels must be finite and lie in [0, 1], got {found}; rescale them (bytes by 1/255)"
    )


def split_images(
    source: str,
    pool: Tensor,
    test: Tensor,
    shape: tuple[int, int],
    validation: int,
    labels: tuple[Tensor, Tensor] | None = None,
) -> Images:
    """Hold out the last `validation` images of the pool.

    pool: [N, D]; test: [M, D]; labels: those of pool and test, [N] and [M].
    """
    num_pool = len(pool)
    if not isinstance(validation, int) or not 0 <= validation < num_pool:
        raise ValueError(
            f"validation must be a whole number of the {num_pool} training images of {source}, "
            f"at least 0 and below {num_pool}, got {validation}"
        )
    check_pixels(pool, f"{source} (training images)")
    check_pixels(test, f"{source} (test images)")
    cut = num_pool - validation
    named = None
    if labels is not None:
        named = {"train": labels[0][:cut], "validation": labels[0][cut:], "test": labels[1]}
    return Images(pool[:cut], pool[cut:], test, named, shape)
