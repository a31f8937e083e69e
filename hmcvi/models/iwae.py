"""Published importance weighted autoencoders."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from hmcvi.models.vae import VAE


class Exp(nn.Module):
    """x ↦ eˣ."""

    def forward(self, x: Tensor) -> Tensor:
        return x.exp()


FILES = ("decoder", "encoder_h", "encoder_mean", "encoder_std")
LAYERS: dict[str, Callable[[], nn.Module]] = {"Tanh": nn.Tanh, "Sigmoid": nn.Sigmoid, "Exponential": Exp}


class SharedEncoder(nn.Module):
    """An encoder x ↦ (loc(h), scale(h)) whose outputs share the layers h = hidden(x)."""

    def __init__(self, hidden: nn.Module, loc: nn.Module, scale: nn.Module) -> None:
        super().__init__()
        self.hidden, self.loc, self.scale = hidden, loc, scale

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.hidden(x)
        return self.loc(hidden), self.scale(hidden)


def load_iwae_npz(folder: str | Path) -> VAE:
    """The VAE whose weights are in folder/{decoder, encoder_h, encoder_mean, encoder_std}_params.npz.

    Each file names its `layers` in order; layer i, if linear, is x·W{i} + b{i}.  The decoder's last sigmoid
    is left out: this VAE's decoder gives logits.  Nothing in the files is executed.
    [Burda et al. 2016; the weights of Graham & Storkey 2017]
    """
    folder = Path(folder).expanduser()
    networks = {name: _network(folder / f"{name}_params.npz") for name in FILES}
    layers = list(networks["decoder"].children())
    if isinstance(layers[-1], nn.Sigmoid):
        layers.pop()
    first, last = layers[0], layers[-1]
    if not (isinstance(first, nn.Linear) and isinstance(last, nn.Linear)):
        raise ValueError(f"the decoder in {folder} must begin and end with a linear layer")
    encoder = SharedEncoder(*(networks[name] for name in FILES[1:]))
    decoder = nn.Sequential(*layers)
    return VAE(last.out_features, first.in_features, encoder=encoder, decoder=decoder).requires_grad_(False)


def is_iwae_folder(folder: str | Path) -> bool:
    """Whether `load_iwae_npz` finds its files there."""
    return all((Path(folder).expanduser() / f"{name}_params.npz").is_file() for name in FILES)


def _network(path: Path) -> nn.Sequential:
    try:
        with open(path, "rb") as file:
            arrays = dict(np.load(file, allow_pickle=False))
        names = [name.decode().removeprefix("nnet.") for name in arrays["layers"].tolist()]
        return nn.Sequential(*(_layer(name, index, arrays) for index, name in enumerate(names)))
    except FileNotFoundError:
        raise ValueError(f"there are no IWAE weights in {path.parent}: {path.name} is missing") from None
    except (KeyError, ValueError, OSError, zipfile.BadZipFile, AttributeError) as error:
        raise ValueError(f"{path} is damaged or no file of IWAE weights ({error})") from None


def _layer(name: str, index: int, arrays: dict[str, np.ndarray]) -> nn.Module:
    if name != "Linear":
        return LAYERS[name]()
    weight, bias = (torch.from_numpy(arrays[f"{letter}{index}"]) for letter in "Wb")
    linear = nn.Linear(*weight.shape)
    with torch.no_grad():
        linear.weight.copy_(weight.T)
        linear.bias.copy_(bias.reshape(-1))
    return linear
