import gzip
import hashlib
import struct

import numpy as np
import pytest
import torch

from hmcvi.data import DataError, load_images
from hmcvi.data import mnist as mnist_module
from hmcvi.data.mnist import read_idx

SPLITS = {"train": 12, "t10k": 5}


def idx_bytes(values: np.ndarray) -> bytes:
    return struct.pack(f">4B{values.ndim}I", 0, 0, 8, values.ndim, *values.shape) + values.tobytes()


def some_mnist() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    arrays = {}
    for split, n in SPLITS.items():
        arrays[f"{split}-images-idx3-ubyte"] = rng.integers(0, 256, (n, 4, 3), dtype=np.uint8)
        arrays[f"{split}-labels-idx1-ubyte"] = rng.integers(0, 10, n, dtype=np.uint8)
    return arrays


def write(folder, arrays, packed):
    folder.mkdir(parents=True, exist_ok=True)
    for name, values in arrays.items():
        content = idx_bytes(values)
        if packed:
            (folder / f"{name}.gz").write_bytes(gzip.compress(content))
        else:
            (folder / name).write_bytes(content)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("subfolder", [".", "mnist", "MNIST/raw"])
def test_mnist_layouts(tmp_path, packed, subfolder):
    arrays = some_mnist()
    write(tmp_path / subfolder, arrays, packed)
    images = load_images("mnist", root=tmp_path, validation=4, download=False)
    assert images.shape == (4, 3)
    assert [tuple(x.shape) for x in images[:3]] == [(8, 12), (4, 12), (5, 12)]
    pool = arrays["train-images-idx3-ubyte"].reshape(12, 12)
    assert np.array_equal((torch.cat(images[:2]) * 255).round().numpy(), pool)
    assert images.train.dtype == torch.float32
    assert images.labels is not None
    assert images.labels["validation"].tolist() == arrays["train-labels-idx1-ubyte"][8:].tolist()
    assert images.labels["test"].tolist() == arrays["t10k-labels-idx1-ubyte"].tolist()


def test_mnist_holds_out_ten_thousand_by_default(tmp_path):
    arrays = some_mnist()
    write(tmp_path, arrays, packed=False)
    with pytest.raises(ValueError, match=r"12 training images of mnist.*got 10000"):
        load_images("mnist", root=tmp_path, download=False)
    arrays["train-images-idx3-ubyte"] = (
        np.arange(10_003, dtype=np.uint16).astype(np.uint8)[:, None, None].repeat(4, 1).repeat(3, 2)
    )
    arrays["train-labels-idx1-ubyte"] = np.zeros(10_003, np.uint8)
    write(tmp_path, arrays, packed=False)
    images = load_images("mnist", root=tmp_path, download=False)
    assert (len(images.train), len(images.validation)) == (3, 10_000)
    assert (images.validation[0] * 255).round().unique().item() == 3


def test_mnist_downloads_only_what_is_missing(tmp_path, server, monkeypatch):
    arrays = some_mnist()
    write(tmp_path, arrays, packed=False)
    missing = "t10k-labels-idx1-ubyte"
    (tmp_path / missing).unlink()
    content = gzip.compress(idx_bytes(arrays[missing]))
    server.files[f"{missing}.gz"] = content
    monkeypatch.setattr(mnist_module, "MIRRORS", (server.url(""),))
    monkeypatch.setitem(mnist_module.SHA256, missing, hashlib.sha256(content).hexdigest())
    images = load_images("mnist", root=tmp_path, validation=0)
    assert len(images.test) == 5
    assert (tmp_path / f"{missing}.gz").read_bytes() == content
    load_images("mnist", root=tmp_path, validation=0)
    assert len(server.ranges) == 1


def test_mnist_refuses_files_that_do_not_match(tmp_path):
    arrays = some_mnist()
    arrays["train-labels-idx1-ubyte"] = arrays["train-labels-idx1-ubyte"][:-1]
    write(tmp_path, arrays, packed=True)
    with pytest.raises(DataError, match=r"12 images but .* 11 labels"):
        load_images("mnist", root=tmp_path, validation=1, download=False)
    arrays = some_mnist()
    arrays["t10k-images-idx3-ubyte"] = arrays["t10k-images-idx3-ubyte"][:, :, :2]
    write(tmp_path, arrays, packed=True)
    with pytest.raises(DataError, match=r"\(4, 3\) but test images \(4, 2\)"):
        load_images("mnist", root=tmp_path, validation=1, download=False)


@pytest.mark.parametrize("shape", [(7,), (2, 3, 5), (0,)])
def test_idx_round_trip(tmp_path, shape):
    values = np.random.default_rng(1).integers(0, 256, shape, dtype=np.uint8)
    (tmp_path / "raw").write_bytes(idx_bytes(values))
    (tmp_path / "packed.gz").write_bytes(gzip.compress(idx_bytes(values)))
    assert np.array_equal(read_idx(tmp_path / "raw", len(shape)), values)
    assert np.array_equal(read_idx(tmp_path / "packed.gz", len(shape)), values)


@pytest.mark.parametrize("kept", [0, 3, 10, 45, -1])
def test_idx_truncated(tmp_path, kept):
    content = idx_bytes(np.ones((2, 3, 5), np.uint8))
    path = tmp_path / "images"
    path.write_bytes(content[:kept])
    actual = len(content[:kept])
    expected = 46 if actual >= 16 else 16
    with pytest.raises(DataError, match=rf"images: expected {expected} bytes.*got {actual}.*delete"):
        read_idx(path, 3)


def test_idx_with_surplus_bytes(tmp_path):
    path = tmp_path / "images"
    path.write_bytes(idx_bytes(np.ones((2, 3, 5), np.uint8)) + b"!")
    with pytest.raises(DataError, match=r"expected 46 bytes.*got 47"):
        read_idx(path, 3)


def test_idx_wrong_magic(tmp_path):
    path = tmp_path / "labels"
    path.write_bytes(idx_bytes(np.ones(4, np.uint8)))
    with pytest.raises(DataError, match=r"labels: .*0x00000803 .*got 0x00000801.*delete"):
        read_idx(path, 3)


def test_idx_gzip_cut_or_corrupt(tmp_path):
    values = np.random.default_rng(2).integers(0, 256, (100, 30, 30), dtype=np.uint8)
    packed = gzip.compress(idx_bytes(values))
    path = tmp_path / "images.gz"
    path.write_bytes(packed[: len(packed) // 2])
    with pytest.raises(DataError, match=r"images.gz: expected 90016 bytes.*got \d+, .*cut off.*delete"):
        read_idx(path, 3)
    path.write_bytes(packed[:-4])
    with pytest.raises(DataError, match=r"expected 90016 bytes.*got 90016, .*cut off"):
        read_idx(path, 3)
    path.write_bytes(packed[:-8] + bytes(4) + packed[-4:])
    with pytest.raises(DataError, match=rf"images.gz \({len(packed)} bytes\) is no valid gzip.*CRC.*delete"):
        read_idx(path, 3)
    path.write_bytes(b"<html>not found</html>")
    with pytest.raises(DataError, match="no valid gzip"):
        read_idx(path, 3)
