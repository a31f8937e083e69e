"""pythae's side of the training step: the same networks, and a Hamiltonian VAE with differentiated forces."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from pythae.models import HVAE
from pythae.models.base.base_utils import ModelOutput
from pythae.models.nn import BaseDecoder, BaseEncoder
from torch import Tensor, nn

from benchmarks.train_step_engines import HIDDEN, LATENT, PIXELS


def network(inputs: int, outputs: int, activation: Callable[[], nn.Module]) -> nn.Sequential:
    layers = nn.Linear(inputs, HIDDEN), activation(), nn.Linear(HIDDEN, HIDDEN), activation()
    return nn.Sequential(*layers, nn.Linear(HIDDEN, outputs))


class Encoder(BaseEncoder):
    def __init__(self) -> None:
        super().__init__()
        self.net = network(PIXELS, 2 * LATENT, nn.ReLU)

    def forward(self, x: Tensor) -> Any:
        loc, log_variance = self.net(x).chunk(2, -1)
        return ModelOutput(embedding=loc, log_covariance=log_variance)


class Decoder(BaseDecoder):
    def __init__(self, logits: bool = False) -> None:
        super().__init__()
        self.net, self.logits = network(LATENT, PIXELS, nn.Softplus), logits

    def forward(self, z: Tensor) -> Any:
        output = self.net(z)
        return ModelOutput(reconstruction=output if self.logits else output.sigmoid())


class DifferentiatedHVAE(HVAE):
    """Forces stay in the graph; as it comes, they are constants."""

    def _dU_dz(self, z: Tensor, x: Tensor) -> Tensor:
        output = self.decoder(z)["reconstruction"].reshape(x.shape[0], -1)
        energy = -self._log_p_x_given_z(output, x).sum()
        return torch.autograd.grad(energy, z, create_graph=True)[0] + z
