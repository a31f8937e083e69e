"""Images of one's own: arrays, folders of pictures, functions; and what is said to bad ones."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from hmcvi.data import DataError, load_images
from hmcvi.data.own import as_pixels, flat_shape, split_own

GREY = np.random.RandomState(0).rand(50, 6, 4).astype(np.float32)
BYTES = (GREY * 255).astype(np.uint8)


def rows(*parts: torch.Tensor) -> list[tuple[float, ...]]:
    return sorted(tuple(row.tolist()) for part in parts for row in part)


def test_named_splits_with_labels(tmp_path: Path) -> None:
    labels = np.arange(50)
    np.savez(tmp_path / "a.npz", train=GREY, test=BYTES[:7], train_labels=labels, test_labels=labels[:7])
    images = load_images(f"npz:{tmp_path}/a.npz")
    assert images.shape == (6, 4) and all(split.dtype == torch.float32 for split in images[:3])
    assert [len(split) for split in images[:3]] == [45, 5, 7]
    torch.testing.assert_close(images.test, torch.from_numpy(BYTES[:7] / 255).float().flatten(1))
    assert images.labels is not None
    for name in ("train", "validation"):
        expected = torch.from_numpy(GREY).flatten(1)[images.labels[name]]
        assert torch.equal(getattr(images, name), expected)
    assert images.labels["validation"].tolist() != [45, 46, 47, 48, 49]


def test_one_array_is_split_at_random_once_and_for_all(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "a.npz", anything=GREY)
    np.save(tmp_path / "b.npy", GREY)
    first, second = load_images("npz:a.npz", tmp_path), load_images("npz:b.npy", tmp_path)
    assert [len(split) for split in first[:3]] == [36, 4, 10]
    assert rows(*first[:3]) == rows(torch.from_numpy(GREY).flatten(1))
    assert all(torch.equal(a, b) for a, b in zip(first[:3], second[:3], strict=True))
    assert not torch.equal(first.test, torch.from_numpy(GREY[40:]).flatten(1))
    assert np.array_equal(np.load(tmp_path / "b.npy"), GREY)  # the file is not written to


def test_own_validation_images(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", train=GREY[:30], test=GREY[30:40], validation=GREY[40:])
    images = load_images("npz:a.npz", tmp_path)
    assert torch.equal(images.train, torch.from_numpy(GREY[:30]).flatten(1))
    assert torch.equal(images.validation, torch.from_numpy(GREY[40:]).flatten(1))
    with pytest.raises(DataError, match="validation images of its own, got validation=3"):
        load_images("npz:a.npz", tmp_path, validation=3)


def test_mapped_files_are_not_copied(tmp_path: Path) -> None:
    """Splits of float32 files are views of the mapped file; training and validation share it."""
    np.save(tmp_path / "train.npy", GREY)
    np.save(tmp_path / "test.npy", GREY[:9])
    images = load_images(f"npz:{tmp_path}")
    maps = Path("/proc/self/maps")
    pointer = images.train.data_ptr()
    assert images.train.untyped_storage().data_ptr() == images.validation.untyped_storage().data_ptr()
    if maps.exists():
        spans = [line.split() for line in maps.read_text().splitlines() if line.endswith("train.npy")]
        ranges = [[int(end, 16) for end in span[0].split("-")] for span in spans]
        assert any(low <= pointer < high for low, high in ranges)


def test_arrays_in_memory_are_shared_or_copied_once() -> None:
    pixels = as_pixels(GREY, "here")
    assert np.shares_memory(pixels.rows.numpy(), GREY) and not pixels.owned
    before = GREY.copy()
    split_own("here", pixels)
    assert np.array_equal(GREY, before)
    converted = as_pixels(BYTES, "here")
    assert converted.owned
    images = split_own("here", converted)
    assert images.test.untyped_storage().data_ptr() == converted.rows.untyped_storage().data_ptr()


@pytest.mark.parametrize(("dim", "shape"), [(64, (8, 8)), (1, (1, 1)), (10, (1, 10)), (784, (28, 28))])
def test_rows_are_square_or_a_line(dim: int, shape: tuple[int, int]) -> None:
    assert flat_shape(dim) == shape
    assert as_pixels(np.zeros((3, dim)), "here").shape == shape


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"train": GREY * 255}, r"a.npz \(train\): pixels must .* rescale"),
        ({"train": GREY * np.nan}, "not finite"),
        ({"train": GREY[None, :, :, :, None]}, r"\[N, D\] or grey \[N, height, width\], got float32 \[1, 50"),
        ({"train": np.zeros((5, 3, 8, 8))}, r"got float64 \[5, 3, 8, 8\]"),
        ({"train": np.array(["a", "b"])}, "got <U1"),
        ({"train": np.zeros((0, 4))}, r"\[0, 4\]"),
        ({"train": GREY, "test": GREY[:, :3]}, "6×4, others 3×4"),
        ({"test": GREY}, "`train` or `images`, got test"),
        ({}, "got nothing"),
        ({"images": GREY[:1]}, "add more"),
        ({"train": GREY, "train_labels": np.zeros(3, int)}, r"labels must be whole numbers \[50\]"),
        ({"train": np.array([{}, {}], dtype=object)}, "plain arrays"),
    ],
)
def test_bad_arrays(tmp_path: Path, arrays: dict[str, np.ndarray], message: str) -> None:
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(DataError, match=message) as error:
        load_images("npz:a.npz", tmp_path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 and no more", b"\x93NUMPY\x01\x00", b"text"])
def test_files_that_are_no_arrays(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.npz").write_bytes(content)
    with pytest.raises(DataError, match=r"a\.npz is no npz or npy file"):
        load_images("npz:a.npz", tmp_path)
    with pytest.raises(DataError, match=r"there is no file .*b\.npz"):
        load_images("npz:b.npz", tmp_path)


def test_limit_draws_training_images_alone(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", train=GREY, train_labels=np.arange(50), test=GREY, test_labels=np.arange(50))
    whole, part = (load_images("npz:a.npz", tmp_path, limit=limit) for limit in (None, 12))
    assert len(part.train) == 12 and torch.equal(part.validation, whole.validation)
    assert part.labels is not None
    assert torch.equal(part.train, torch.from_numpy(GREY).flatten(1)[part.labels["train"]])
    assert len(load_images("npz:a.npz", tmp_path, limit=1000).train) == 45
    assert len(load_images("digits", limit=100).train) == 100
    with pytest.raises(ValueError, match="at least 1 training image, got 0"):
        load_images("digits", limit=0)


def picture(path: Path, values: np.ndarray) -> None:
    from PIL import Image

    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(values).save(path)


def test_a_folder_of_pictures(tmp_path: Path) -> None:
    for place, image in enumerate(BYTES):
        picture(tmp_path / f"class{place % 3}" / f"{place}.png", image)
    (tmp_path / "._0.png").write_bytes(b"no picture")
    images = load_images("images:" + str(tmp_path))
    assert images.shape == (6, 4)
    everything = torch.from_numpy(BYTES / 255).float().flatten(1)
    assert rows(*images[:3]) == rows(everything)
    assert 0 < len(images.test) < 25
    picture(tmp_path / "one more.png", BYTES[0])
    assert set(rows(images.test)) <= set(rows(load_images(f"images:{tmp_path}").test, everything[:1]))


def test_folders_train_and_test_are_the_splits(tmp_path: Path) -> None:
    for place, image in enumerate(BYTES):
        picture(tmp_path / ("train" if place < 40 else "test") / f"{place}.PNG", image)
    images = load_images(f"images:{tmp_path}", validation=5)
    assert [len(split) for split in images[:3]] == [35, 5, 10]
    assert rows(images.test) == rows(torch.from_numpy(BYTES[40:] / 255).float().flatten(1))


def test_colours_depths_and_sizes(tmp_path: Path) -> None:
    picture(tmp_path / "colour.jpg", np.full((20, 10, 3), 200, np.uint8))
    picture(tmp_path / "deep.png", np.full((9, 9), 200 * 257, np.uint16))
    picture(tmp_path / "grey.png", np.full((5, 7), 200, np.uint8))
    with pytest.raises(DataError, match=r"different sizes: .* is .*×.* is .*; resize them with data\.size"):
        load_images(f"images:{tmp_path}")
    for size, shape in ((8, (8, 8)), ([6, 3], (6, 3))):
        images = load_images(f"images:{tmp_path}", size=size)
        assert images.shape == shape
        torch.testing.assert_close(torch.cat(images[:3]), torch.full((3, shape[0] * shape[1]), 200 / 255))
    with pytest.raises(ValueError, match=r"\[height, width\], got \[1, 2, 3\]"):
        load_images(f"images:{tmp_path}", size=[1, 2, 3])
    with pytest.raises(ValueError, match="size=8 is for images:FOLDER"):
        load_images("digits", size=8)


def test_bad_folders(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="there is no folder"):
        load_images("images:nowhere", tmp_path)
    with pytest.raises(DataError, match="holds no images; put files"):
        load_images(f"images:{tmp_path}")
    picture(tmp_path / "0.png", BYTES[0])
    with pytest.raises(DataError, match="one image"):
        load_images(f"images:{tmp_path}")
    (tmp_path / "1.png").write_bytes((tmp_path / "0.png").read_bytes()[:40])
    with pytest.raises(DataError, match=r"1\.png is no readable PNG or JPEG image"):
        load_images(f"images:{tmp_path}")


FUNCTIONS = """
import numpy as np, torch
from torch.utils.data import Dataset, IterableDataset, TensorDataset
from hmcvi.data import Images
GREY = torch.linspace(0, 1, 40 * 12).view(40, 3, 4)

class Labelled(Dataset):
    def __len__(self): return 20
    def __getitem__(self, i): return GREY[i][None], i

class Stream(IterableDataset):
    def __iter__(self): return iter(GREY.numpy())

def array(): return GREY.numpy()
def pair(): return GREY[:30], GREY[30:]
def dataset(): return Labelled()
def datasets(): return Labelled(), Labelled()
def stream(): return Stream()
def tensors(): return TensorDataset(GREY)
def images(): return Images(GREY[:20].flatten(1), GREY[20:30].flatten(1), GREY[30:].flatten(1), None, (3, 4))
def later():
    import hmcvi_test_sibling
    return GREY
def nothing(): return None
def three(): return GREY, GREY, GREY
def uneven(): return [GREY[0], GREY[1]], [GREY[0], GREY[0, :2]]
def fails():
    raise RuntimeError("of its own")
number = 3
"""


@pytest.fixture
def functions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module in the current folder."""
    (tmp_path / "hmcvi_test_functions.py").write_text(FUNCTIONS)
    (tmp_path / "hmcvi_test_sibling.py").write_text("")
    (tmp_path / "hmcvi_test_broken.py").write_text("import nothing_of_this_name\n")
    monkeypatch.chdir(tmp_path)
    return "hmcvi_test_functions"


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("array", (29, 3, 8)),
        ("later", (29, 3, 8)),
        ("pair", (27, 3, 10)),
        ("dataset", (15, 1, 4)),
        ("datasets", (18, 2, 20)),
        ("stream", (29, 3, 8)),
        ("tensors", (29, 3, 8)),
        ("images", (20, 10, 10)),
    ],
)
def test_what_a_function_returns(functions: str, name: str, sizes: tuple[int, ...]) -> None:
    images = load_images(f"{functions}:{name}")
    assert images.shape == (3, 4)
    assert tuple(len(split) for split in images[:3]) == sizes
    again = load_images(f"{functions}:{name}")  # what the function keeps has not been changed
    assert all(torch.equal(a, b) for a, b in zip(images[:3], again[:3], strict=True))
    if name.startswith("dataset"):
        assert images.labels is not None
        torch.testing.assert_close(images.train[:, 0] * 479, images.labels["train"] * 12.0)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("{}:arry", "has no 'arry'; did you mean 'array'"),
        ("{}:number", "must be a function that returns images, got int"),
        ("{}:nothing", "a tensor or a torch Dataset of images, got NoneType"),
        ("{}:three", r"a pair \(train, test\), got 3 parts"),
        ("{}:uneven", r"image 0 has shape \[3, 4\], image 1 \[2, 4\]"),
        ("{}:fails", r"failed \(RuntimeError: of its own, hmcvi_test_functions.py line \d+\)"),
        ("hmcvi_test_broken:array", "No module named 'nothing_of_this_name', hmcvi_test_broken.py line 1"),
        ("nowhere.at_all:array", "cannot import 'nowhere.at_all'"),
        (":array", "cannot import ''"),
        ("{}:", "has no ''"),
    ],
)
def test_bad_functions(functions: str, path: str, message: str) -> None:
    with pytest.raises(DataError, match=message) as error:
        load_images(path.format(functions))
    assert "\n" not in str(error.value)
