"""The variational autoencoder of Pyro's tutorial, its posterior refined by HMC.

    python examples/vae.py

Images are the 8×8 digits that come with the package.  The encoder's distribution is refined by a chain for
each image; encoder, decoder and chain are trained on together, for as many epochs as the same model without a
chain.
"""

from __future__ import annotations

import copy
from typing import Any

import pyro
import torch
from pyro import distributions as dist
from pyro.infer import SVI, Trace_ELBO
from torch import Tensor, nn

from hmcvi.data import load_images
from hmcvi.kernels import annealed_chain
from hmcvi.pyro import AmortizedHMC

PIXELS, LATENT, HIDDEN = 64, 8, 100


class VAE(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(PIXELS, HIDDEN), nn.Softplus(), nn.Linear(HIDDEN, 2 * LATENT))
        self.decoder = nn.Sequential(nn.Linear(LATENT, HIDDEN), nn.Softplus(), nn.Linear(HIDDEN, PIXELS))

    def model(self, x: Tensor) -> None:
        pyro.module("decoder", self.decoder)
        with pyro.plate("data", len(x)):
            z = pyro.sample("latent", dist.Normal(torch.zeros(LATENT), 1.0).to_event(1))
            pyro.sample("obs", dist.Bernoulli(logits=self.decoder(z)).to_event(1), obs=x)

    def encode(self, x: Tensor) -> dist.Distribution:
        pyro.module("encoder", self.encoder)
        loc, log_scale = self.encoder(x).chunk(2, -1)
        return dist.Normal(loc, log_scale.exp()).to_event(1)

    def guide(self, x: Tensor) -> None:
        with pyro.plate("data", len(x)):
            pyro.sample("latent", self.encode(x))


def train(vae: VAE, guide: Any, images: Tensor, num_epochs: int, rate: float) -> None:
    svi = SVI(vae.model, guide, pyro.optim.ClippedAdam({"lr": rate}), Trace_ELBO())
    for _ in range(num_epochs):
        for batch in images[torch.randperm(len(images))].split(100):
            svi.step(batch.bernoulli())  # binarised anew every time


@torch.no_grad()
def bound(vae: VAE, guide: Any, images: Tensor) -> float:
    """Nats per image."""
    losses = [Trace_ELBO().loss(vae.model, guide, images) for _ in range(20)]
    return -sum(losses) / len(losses) / len(images)


def main(num_epochs: int = 200) -> None:
    pyro.set_rng_seed(0)
    digits = load_images("digits")
    test = digits.test.bernoulli()
    vae = VAE()
    train(vae, vae.guide, digits.train, num_epochs, 2e-3)
    print(f"bound with the encoder alone    {bound(vae, vae.guide, test):.2f}")
    refined = copy.deepcopy(vae)
    train(vae, vae.guide, digits.train, num_epochs // 5, 1e-3)
    print(f"trained on as it is             {bound(vae, vae.guide, test):.2f}")
    pyro.clear_param_store()  # in which Pyro keeps the other one by name
    chain = annealed_chain(LATENT, 0, num_steps=10, initial_step_size=0.3)
    guide = AmortizedHMC(refined.model, refined.encode, chain=chain)
    train(refined, guide, digits.train, num_epochs // 5, 1e-3)
    print(f"trained on with HMC             {bound(refined, guide, test):.2f}")


if __name__ == "__main__":
    main()
