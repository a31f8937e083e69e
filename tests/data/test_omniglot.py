import hashlib
import io

import numpy as np
import pytest
import torch
from scipy.io import savemat

from hmcvi.data import DataError, load_images
from hmcvi.data import omniglot as module
from hmcvi.data.omniglot import area_average


def native(num_characters: int, seed: int) -> np.ndarray:
    """Paper = True, [C, 3 drawers, 105, 105]; more ink in the upper rows."""
    uniform = np.random.default_rng(seed).random((num_characters, 3, 105, 105))
    return uniform > np.linspace(0.4, 0.0, 105)[:, None]


def write_native(folder, background, evaluation, suffix=""):
    for kind, images in (("background", background), ("evaluation", evaluation)):
        np.savez_compressed(folder / f"images_{kind}{suffix}.npz", images=images, labels=np.zeros(1))


@pytest.mark.parametrize(("side", "size"), [(105, 28), (7, 3), (8, 4), (5, 5), (3, 7)])
def test_area_average_is_the_mean_over_each_cell(side, size):
    images = np.random.default_rng(0).random((2, side, side)) < 0.3
    # the common refinement: each pixel as size×size equal parts, each cell as side×side of them
    fine = images.repeat(size, axis=1).repeat(size, axis=2).astype(np.float64)
    expected = fine.reshape(2, size, side, size, side).mean(axis=(2, 4))
    averaged = area_average(images, size)
    assert averaged.dtype == np.float32
    assert np.array_equal(averaged, expected.astype(np.float32))


def test_area_average_keeps_the_mean_and_the_place():
    image = np.zeros((1, 105, 105), bool)
    image[0, 3, 100] = True
    averaged = area_average(image)[0]
    assert averaged.sum() * 105**2 / 28**2 == pytest.approx(1, rel=1e-6)
    assert np.unravel_index(averaged.argmax(), averaged.shape) == (0, 26)


@pytest.mark.parametrize("suffix", ["", "_105x105"])
@pytest.mark.parametrize("subfolder", [".", "omniglot"])
def test_native_files(tmp_path, suffix, subfolder):
    (tmp_path / subfolder).mkdir(exist_ok=True)
    background, evaluation = native(4, 0), native(2, 1)
    write_native(tmp_path / subfolder, background, evaluation, suffix)
    images = load_images("omniglot", root=tmp_path, validation=5, download=False)
    assert images.shape == (28, 28)
    assert [tuple(x.shape) for x in images[:3]] == [(7, 784), (5, 784), (6, 784)]
    assert images.labels is not None
    assert images.labels["test"].tolist() == [4, 4, 4, 5, 5, 5]
    ink = area_average(~evaluation.reshape(-1, 105, 105))
    assert np.array_equal(images.test.numpy(), ink.reshape(-1, 784))
    upright = images.test.reshape(-1, 28, 28)
    assert upright[:, :14].mean() > 2 * upright[:, 14:].mean()
    # each pool image once, with the label of its character
    pool = torch.from_numpy(area_average(~background.reshape(-1, 105, 105)).reshape(-1, 784))
    distance = torch.cdist(torch.cat(images[:2]).double(), pool.double())
    source = distance.argmin(1)
    assert sorted(source.tolist()) == list(range(12))
    labels = torch.cat([images.labels["train"], images.labels["validation"]])
    assert torch.equal(labels, source // 3)


def test_split_never_changes(tmp_path):
    write_native(tmp_path, native(8, 0), native(2, 1))
    first = load_images("omniglot", root=tmp_path, validation=5, download=False)
    again = load_images("omniglot", root=tmp_path, validation=10, download=False)
    assert torch.equal(again.validation[5:], first.validation)
    assert first.labels is not None
    assert first.labels["validation"].tolist() == [1, 0, 7, 5, 4]


def test_area_file_agrees_with_the_native_files(tmp_path):
    background, evaluation = native(5, 0), native(3, 1)
    write_native(tmp_path, background, evaluation)
    exact = load_images("omniglot", root=tmp_path, validation=4, download=False)
    grey = area_average(~np.concatenate([background, evaluation]))
    np.savez(
        tmp_path / "omniglot_28x28_area.npz",
        images=(255 * grey).round().astype(np.uint8),
        background=np.arange(8) < 5,
    )
    rounded = load_images("omniglot", root=tmp_path, validation=4, download=False)
    for one, other in zip(exact[:3], rounded[:3], strict=True):
        assert 0 < (one - other).abs().max() <= 0.5 / 255 + 1e-6
    assert exact.labels is not None
    assert rounded.labels is not None
    assert all(torch.equal(exact.labels[k], rounded.labels[k]) for k in exact.labels)


def test_chardata_columns_become_upright_rows(tmp_path):
    rng = np.random.default_rng(0)
    pool, test = rng.random((9, 28, 28)), rng.random((4, 28, 28))
    # MATLAB stores an image column by column
    columns = [np.stack([image.ravel(order="F") for image in images], axis=1) for images in (pool, test)]
    savemat(
        tmp_path / "chardata.mat", {"data": columns[0], "testdata": columns[1], "target": np.zeros((50, 9))}
    )
    images = load_images("omniglot", root=tmp_path, validation=2, download=False)
    assert np.array_equal(images.test.numpy(), test.reshape(4, 784).astype(np.float32))
    together = torch.cat(images[:2]).numpy()
    expected = pool.reshape(9, 784).astype(np.float32)
    assert np.array_equal(together[together[:, 0].argsort()], expected[expected[:, 0].argsort()])
    assert (len(images.train), images.labels) == (7, None)


def test_chardata_is_preferred(tmp_path):
    write_native(tmp_path, native(2, 0), native(2, 1))
    savemat(tmp_path / "chardata.mat", {"data": np.zeros((784, 3)), "testdata": np.zeros((784, 2))})
    assert len(load_images("omniglot", root=tmp_path, validation=0, download=False).train) == 3


def test_damaged_files(tmp_path):
    np.savez(tmp_path / "omniglot_28x28_area.npz", images=np.zeros((3, 2, 28, 28)), background=np.ones(3))
    with pytest.raises(DataError, match=r"omniglot_28x28_area.npz: expected uint8 .*got float64"):
        load_images("omniglot", root=tmp_path, download=False)
    savemat(tmp_path / "chardata.mat", {"data": np.zeros((5, 784)), "testdata": np.zeros((784, 5))})
    with pytest.raises(DataError, match=r"chardata.mat: data and testdata should be \[784, N\].*\(5, 784\)"):
        load_images("omniglot", root=tmp_path, download=False)
    savemat(tmp_path / "chardata.mat", {"data": np.zeros((784, 5))})
    with pytest.raises(DataError, match=r"chardata.mat: no readable .*testdata"):
        load_images("omniglot", root=tmp_path, download=False)
    (tmp_path / "chardata.mat").write_bytes(b"version https://git-lfs.github.com/spec/v1\n" * 5)
    with pytest.raises(DataError, match=r"chardata.mat: no readable .*delete"):
        load_images("omniglot", root=tmp_path, download=False)


def test_damaged_native_file(tmp_path):
    write_native(tmp_path, native(2, 0), native(2, 1).astype(np.uint8))
    with pytest.raises(DataError, match=r"images_evaluation.npz: expected bool images .*got uint8"):
        load_images("omniglot", root=tmp_path, download=False)


def test_downloads_the_native_files(tmp_path, server, monkeypatch):
    monkeypatch.setattr(module, "BASE_URL", server.url(""))
    for kind in ("background", "evaluation"):
        buffer = io.BytesIO()
        np.savez(buffer, images=native(2, 0))
        server.files[f"images_{kind}.npz"] = buffer.getvalue()
        monkeypatch.setitem(module.SHA256, kind, hashlib.sha256(buffer.getvalue()).hexdigest())
    images = load_images("omniglot", root=tmp_path / "new", validation=0)
    assert len(images.train) == len(images.test) == 6
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == sorted(server.files)
