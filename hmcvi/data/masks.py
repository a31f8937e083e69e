"""Which pixels of an image are missing: halves, fractions, random ones, or those a picture shows."""

from __future__ import annotations

import difflib
from pathlib import Path

import torch
from torch import Tensor

from hmcvi.internal.seeds import generator as seeded

SIDES = ("top", "bottom", "left", "right")
KNOWN = (
    "top, bottom, left, right and random, each with the missing fraction if it is not a half (bottom:0.75), "
    "or a PNG file in which missing pixels are white"
)


class MaskError(ValueError):
    """A mask is unknown, of another size than the images, or leaves no pixel missing or none observed."""


def missing_pixels(mask: str, shape: tuple[int, int], seed: int = 0) -> Tensor:
    """True where pixels are missing.  bool [height · width]

    mask: "top", "bottom", "left", "right": that half of the image is missing; "random": half of the pixels,
        drawn with `seed`.  "bottom:0.75" and so on: that fraction of the rows, columns or pixels, rounded.
        Anything else is a PNG file of the size of the images; its white pixels are missing.

    >>> missing_pixels("bottom", (2, 3)).tolist()
    [False, False, False, True, True, True]
    """
    name, _, fraction = mask.partition(":")
    if name in (*SIDES, "random"):
        missing = _named(name, _fraction(mask, fraction or "0.5"), shape, seed)
    else:
        missing = _read(Path(mask), shape)
    if (count := int(missing.sum())) in (0, len(missing)):
        which = "all" if count else "none"
        raise MaskError(
            f"the mask {mask!r} makes {which} of the {shape[0]}×{shape[1]} pixels missing: "
            "some must be missing, and some observed"
        )
    return missing


def _fraction(mask: str, text: str) -> float:
    try:
        fraction = float(text)
    except ValueError:
        fraction = float("nan")
    if not 0 < fraction < 1:
        raise MaskError(f"the missing fraction lies between 0 and 1, as in bottom:0.75; got {mask!r}")
    return fraction


def _named(name: str, fraction: float, shape: tuple[int, int], seed: int) -> Tensor:
    missing = torch.zeros(shape, dtype=torch.bool)
    height, width = (round(fraction * size) for size in shape)
    match name:
        case "top":
            missing[:height] = True
        case "bottom":
            missing[shape[0] - height :] = True
        case "left":
            missing[:, :width] = True
        case "right":
            missing[:, shape[1] - width :] = True
        case "random":
            order = torch.randperm(missing.numel(), generator=seeded(seed))
            missing.view(-1)[order[: round(fraction * len(order))]] = True
    return missing.flatten()


def _read(path: Path, shape: tuple[int, int]) -> Tensor:
    # imported here because it takes long
    from matplotlib.image import imread

    try:
        with path.expanduser().open("rb") as file:
            picture = torch.tensor(imread(file, format="png"))
    except FileNotFoundError:
        near = difflib.get_close_matches(str(path), (*SIDES, "random"), 1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise MaskError(f"there is no mask {str(path)!r}: {hint}Masks are {KNOWN}") from None
    except (OSError, SyntaxError, ValueError) as error:
        raise MaskError(f"{path} is no readable PNG picture ({error})") from None
    if picture.shape[:2] != shape:
        size = "×".join(map(str, picture.shape[:2]))
        raise MaskError(f"the mask {path} has {size} pixels, the images {shape[0]}×{shape[1]}")
    grey = picture if picture.ndim == 2 else picture[..., :3].mean(-1)
    return (grey >= 0.5).flatten()
