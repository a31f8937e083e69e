"""`python train.py data.name=…` with images of one's own."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from hmcvi.training import Run, pictures
from tests.training.conftest import train

GREY = np.random.RandomState(0).rand(60, 5, 7).astype(np.float32)


def trained(tmp_path: Path, small: list[str], *settings: str) -> Run:
    code, _, err = train(*small, "chain.kind=hmc", "train.batch_size=20", *settings)
    assert code == 0, err
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["stages"]
    return Run.open(tmp_path / "run")


@pytest.mark.parametrize(
    ("images", "shape"), [(GREY, (5, 7)), (GREY[:, :2, :5].reshape(60, 10), (1, 10))], ids=["wide", "line"]
)
def test_arrays(tmp_path: Path, small: list[str], images: np.ndarray, shape: tuple[int, int]) -> None:
    np.savez(tmp_path / "a.npz", train=images, test=images[:10])
    run = trained(tmp_path, small, f"data.name=npz:{tmp_path}/a.npz", "data.limit=40", "data.validation=9")
    model, found = run.trained()
    assert found.shape == shape and model.data_dim == images[0].size
    assert [len(split) for split in found[:3]] == [40, 9, 10]


def test_pictures_in_a_folder(tmp_path: Path, small: list[str]) -> None:
    from PIL import Image

    for place, image in enumerate((GREY * 255).astype(np.uint8)):
        Image.fromarray(image[: 4 + place % 2]).save(tmp_path / f"{place}.png")
    name = f"data.name=images:{tmp_path}"
    code, _, err = train(*small, name)
    assert code == 2 and "data.size" in err and len(err.splitlines()) == 1
    run = trained(tmp_path, small, name, "data.size=[6,3]", "model.network=conv")
    assert run.trained()[1].shape == (6, 3)


def test_a_function(tmp_path: Path, small: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "hmcvi_test_images.py").write_text("import torch\ndef load(): return torch.ones(40, 9) / 2\n")
    monkeypatch.chdir(tmp_path)
    run = trained(tmp_path, small, "data.name=hmcvi_test_images:load", "data.binarize=none")
    assert run.trained()[1].shape == (3, 3)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("npz:nowhere.npz", "there is no file nowhere.npz"),
        ("images:nowhere", "there is no folder nowhere"),
        ("nowhere:load", "cannot import 'nowhere'"),
        ("npz", "your own: npz:FILE, images:FOLDER, package.module:function"),
    ],
)
def test_what_is_not_there_exits_with_2_and_one_line(small: list[str], name: str, message: str) -> None:
    code, out, err = train(*small, f"data.name={name}")
    assert (
        code == 2 and not out and err.startswith("error: ") and message in err and len(err.splitlines()) == 1
    )


@pytest.mark.parametrize(
    ("shape", "tile"), [((8, 8), (56, 56)), ((28, 28), (56, 56)), ((1, 100), (56, 200)), ((7, 40), (35, 200))]
)
def test_tiles_can_be_seen_and_are_not_huge(shape: tuple[int, int], tile: tuple[int, int]) -> None:
    grid = pictures.grid(torch.rand(6, shape[0] * shape[1]), shape, 3)
    assert grid.shape == (1, 2 * (tile[0] + 1), 3 * (tile[1] + 1))
