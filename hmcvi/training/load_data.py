"""The images of a configuration."""

from __future__ import annotations

from hmcvi.data import DataError, Images, load_images
from hmcvi.training.config import ConfigError, DataConfig


def images_of(data: DataConfig) -> Images:
    """Training, validation and test images; what is missing is downloaded, if that is allowed."""
    try:
        return load_images(data.name, data.root, data.validation, data.download, data.size, data.limit)
    except DataError:
        raise
    except ValueError as error:
        raise ConfigError(str(error)) from None
