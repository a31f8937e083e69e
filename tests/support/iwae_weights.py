"""Files of small networks in the layout of the published importance weighted autoencoders."""

from __future__ import annotations

from pathlib import Path

import numpy as np


def write_weights(folder: Path, latent: int = 3, hidden: int = 5, data: int = 8) -> dict[str, dict]:
    """Small networks in the layout of the published files."""
    random = np.random.default_rng(0)

    def network(*layers: str | tuple[int, int]) -> dict[str, np.ndarray]:
        arrays = {
            "layers": np.array(
                [b"nnet." + (b"Linear" if isinstance(n, tuple) else n.encode()) for n in layers]
            )
        }
        for index, shape in enumerate(layers):
            if isinstance(shape, tuple):
                arrays[f"W{index}"] = random.normal(size=shape).astype(np.float32)
                arrays[f"b{index}"] = random.normal(size=(1, shape[1])).astype(np.float32)
        return arrays

    networks = {
        "decoder": network((latent, hidden), "Tanh", (hidden, data), "Sigmoid"),
        "encoder_h": network((data, hidden), "Tanh"),
        "encoder_mean": network((hidden, latent)),
        "encoder_std": network((hidden, latent), "Exponential"),
    }
    for name, arrays in networks.items():
        np.savez(folder / f"{name}_params.npz", **arrays)
    return networks
