"""Image data sets as tensors in [0, 1]: the bundled digits, MNIST, binarised MNIST and Omniglot."""

from hmcvi.data.download import RemoteFile, fetch
from hmcvi.data.files import DataError
from hmcvi.data.images import Images, binarize, check_pixels, deform, threshold
from hmcvi.data.registry import load_images

__all__ = [
    "DataError",
    "Images",
    "RemoteFile",
    "binarize",
    "check_pixels",
    "deform",
    "fetch",
    "load_images",
    "threshold",
]
