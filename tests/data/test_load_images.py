import pytest

from hmcvi.data import DataError, load_images
from hmcvi.data.files import open_store


@pytest.mark.parametrize(
    ("name", "nearest"), [("mnits", "mnist"), ("Digits", "digits"), ("omniglott", "omniglot")]
)
def test_unknown_name_gets_the_nearest_and_all(name, nearest):
    with pytest.raises(ValueError, match=f"{name}.*'{nearest}'.*digits, mnist, mnist_binarized, omniglot"):
        load_images(name)


@pytest.mark.parametrize("name", ["mnist", "mnist_binarized", "omniglot"])
def test_missing_files_without_download(name, tmp_path):
    with pytest.raises(DataError, match=r"not found in .*download=True.*http"):
        load_images(name, root=tmp_path, download=False)


def test_default_folder_is_the_environment_then_the_home(monkeypatch, tmp_path):
    monkeypatch.setenv("HMCVI_DATA", str(tmp_path))
    store = open_store("mnist", ("mnist", "MNIST/raw"), None, True)
    assert store.folders == (tmp_path, tmp_path / "mnist", tmp_path / "MNIST" / "raw")
    assert store.cache == tmp_path / "mnist"
    monkeypatch.delenv("HMCVI_DATA")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert open_store("mnist", (), None, True).cache == tmp_path / ".cache" / "hmcvi" / "mnist"
    assert open_store("mnist", (), "~/here", True).cache == tmp_path / "here"
    assert open_store("mnist", (), tmp_path, False).cache is None
