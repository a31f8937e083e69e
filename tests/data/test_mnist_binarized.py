import gzip
import hashlib

import numpy as np
import pytest

from hmcvi.data import DataError, load_images
from hmcvi.data import mnist_binarized as module
from hmcvi.data.mnist_binarized import read_amat

SIZES = {"train": 6, "valid": 3, "test": 2}


@pytest.fixture
def splits() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {split: rng.integers(0, 2, (n, 784), dtype=np.uint8) for split, n in SIZES.items()}


def amat_bytes(images: np.ndarray) -> bytes:
    return "".join(" ".join(map(str, row)) + "\n" for row in images.tolist()).encode()


def write_amat(folder, splits, packed):
    folder.mkdir(exist_ok=True)
    for split, images in splits.items():
        name, content = f"binarized_mnist_{split}.amat", amat_bytes(images)
        (folder / (f"{name}.gz" if packed else name)).write_bytes(
            gzip.compress(content) if packed else content
        )


@pytest.mark.parametrize("kind", ["amat", "amat.gz", "npz"])
@pytest.mark.parametrize("subfolder", [".", "mnist_binarized"])
def test_kinds_agree_with_the_source(tmp_path, splits, kind, subfolder):
    folder = tmp_path / subfolder
    folder.mkdir(exist_ok=True)
    if kind == "npz":
        np.savez_compressed(folder / "binarized_mnist.npz", **splits)
    else:
        write_amat(folder, splits, packed=kind == "amat.gz")
    images = load_images("mnist_binarized", root=tmp_path, download=False)
    for read, split in zip(images[:3], splits.values(), strict=True):
        assert np.array_equal(read.numpy(), split)
    assert images.labels is None
    assert images.shape == (28, 28)


def test_other_validation_comes_from_train_and_validation_together(tmp_path, splits):
    write_amat(tmp_path, splits, packed=False)
    images = load_images("mnist_binarized", root=tmp_path, validation=4, download=False)
    assert np.array_equal(images.validation.numpy(), np.concatenate([splits["train"][5:], splits["valid"]]))
    assert len(load_images("mnist_binarized", root=tmp_path, validation=0, download=False).train) == 9
    with pytest.raises(ValueError, match="9 training images"):
        load_images("mnist_binarized", root=tmp_path, validation=9, download=False)


def test_amat_accepts_other_line_ends(tmp_path, splits):
    content = amat_bytes(splits["train"])
    path = tmp_path / "some.amat"
    for variant in (content.replace(b"\n", b"\r\n"), content.rstrip(b"\n"), content + b"\n"):
        path.write_bytes(variant)
        assert np.array_equal(read_amat(path), splits["train"])


def test_amat_damaged(tmp_path, splits):
    content = amat_bytes(splits["train"])
    path = tmp_path / "some.amat"
    path.write_bytes(content[:5000])
    with pytest.raises(DataError, match=r"some.amat: expected rows of 1568 bytes.*delete"):
        read_amat(path)
    path.write_bytes(b"")
    with pytest.raises(DataError, match="expected rows"):
        read_amat(path)
    for position, byte in ((10, b"7"), (11, b"1"), (1567, b" ")):
        path.write_bytes(content[:position] + byte + content[position + 1 :])
        with pytest.raises(DataError, match="only the digits 0 and 1"):
            read_amat(path)
    packed = tmp_path / "some.amat.gz"
    packed.write_bytes(gzip.compress(content)[:-9])
    with pytest.raises(DataError, match="cut off"):
        read_amat(packed)


def test_npz_damaged(tmp_path, splits):
    path = tmp_path / "binarized_mnist.npz"
    for content in ({"train": splits["train"]}, {**splits, "valid": splits["valid"][:, :700]}):
        np.savez(path, **content)
        with pytest.raises(DataError, match=r"binarized_mnist.npz.*(valid|700).*delete"):
            load_images("mnist_binarized", root=tmp_path, download=False)
    path.write_bytes(path.read_bytes()[:300])
    with pytest.raises(DataError, match=r"\(300 bytes\) is no npz file"):
        load_images("mnist_binarized", root=tmp_path, download=False)
    np.savez(path, **{**splits, "test": splits["test"] * 255})
    with pytest.raises(ValueError, match=r"mnist_binarized \(test images\).*\[0, 255\]"):
        load_images("mnist_binarized", root=tmp_path, download=False)


def test_npz_is_never_unpickled(tmp_path, splits):
    np.savez(tmp_path / "binarized_mnist.npz", **{**splits, "test": np.array([{}], dtype=object)})
    with pytest.raises(DataError, match="no npz file"):
        load_images("mnist_binarized", root=tmp_path, download=False)


def test_downloads_into_a_folder_of_its_name(tmp_path, splits, server, monkeypatch):
    monkeypatch.setattr(module, "BASE_URL", server.url(""))
    for split, images in splits.items():
        content = amat_bytes(images)
        server.files[f"binarized_mnist_{split}.amat"] = content
        monkeypatch.setitem(module.SHA256, split, hashlib.sha256(content).hexdigest())
    monkeypatch.setenv("HMCVI_DATA", str(tmp_path))
    images = load_images("mnist_binarized")
    assert np.array_equal(images.test.numpy(), splits["test"])
    assert len(list((tmp_path / "mnist_binarized").iterdir())) == 3
