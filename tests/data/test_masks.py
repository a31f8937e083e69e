"""Masks: which pixels are missing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.image import imsave

from hmcvi.data.masks import MaskError, missing_pixels

SHAPE = (4, 6)


def picture(path: Path, values: np.ndarray) -> str:
    imsave(path, values, cmap="gray", vmin=0, vmax=1)
    return str(path)


@pytest.mark.parametrize(
    ("mask", "rows", "columns"),
    [
        ("top", slice(0, 2), slice(None)),
        ("bottom", slice(2, 4), slice(None)),
        ("left", slice(None), slice(0, 3)),
        ("right", slice(None), slice(3, 6)),
        ("bottom:0.75", slice(1, 4), slice(None)),
        ("left:0.34", slice(None), slice(0, 2)),
        ("right:0.34", slice(None), slice(4, 6)),
    ],
)
def test_sides_are_missing(mask: str, rows: slice, columns: slice) -> None:
    expected = torch.zeros(SHAPE, dtype=torch.bool)
    expected[rows, columns] = True
    assert torch.equal(missing_pixels(mask, SHAPE), expected.flatten())


def test_random_pixels() -> None:
    masks = [missing_pixels("random:0.25", SHAPE, seed) for seed in (0, 0, 1)]
    assert all(int(mask.sum()) == 6 for mask in masks)
    assert torch.equal(masks[0], masks[1]) and not torch.equal(masks[0], masks[2])
    often = torch.stack([missing_pixels("random:0.25", SHAPE, seed) for seed in range(500)]).double().mean(0)
    assert ((often - 0.25).abs() < 5 * (0.25 * 0.75 / 500) ** 0.5).all()


def test_white_pixels_of_a_picture_are_missing(tmp_path: Path) -> None:
    """Of a grey, a coloured and a transparent one."""
    white = np.zeros(SHAPE)
    white[1, 2] = white[3, 0] = 1.0
    for channels in (white, np.repeat(white[..., None], 3, -1), np.dstack([white] * 3 + [np.ones(SHAPE)])):
        missing = missing_pixels(picture(tmp_path / "mask.png", channels), SHAPE)
        assert missing.nonzero()[:, 0].tolist() == [8, 18]


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        ("botom", "did you mean bottom"),
        ("hole.png", "there is no mask 'hole.png'"),
        ("random:1.5", "between 0 and 1"),
        ("random:half", "between 0 and 1"),
        ("top:0", "between 0 and 1"),
        ("top:nan", "between 0 and 1"),
        ("bottom:0.1", "none of the 4×6"),
        ("right:0.95", "all of the 4×6"),
    ],
)
def test_bad_names(mask: str, message: str) -> None:
    with pytest.raises(MaskError, match=message):
        missing_pixels(mask, SHAPE)


def test_bad_pictures(tmp_path: Path) -> None:
    for name, values, message in (
        ("small.png", np.eye(3), "3×3 pixels, the images 4×6"),
        ("black.png", np.zeros(SHAPE), "none of the 4×6"),
        ("white.png", np.ones(SHAPE), "all of the 4×6"),
    ):
        with pytest.raises(MaskError, match=message):
            missing_pixels(picture(tmp_path / name, values), SHAPE)
    (tmp_path / "text.png").write_text("no picture")
    (tmp_path / "cut.png").write_bytes((tmp_path / "white.png").read_bytes()[:60])
    for name in ("text.png", "cut.png", "."):
        with pytest.raises(MaskError, match="no readable PNG"):
            missing_pixels(str(tmp_path / name), SHAPE)
