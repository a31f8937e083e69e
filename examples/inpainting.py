"""The missing half of an image, under a decoder that has been trained on whole ones.

    python examples/inpainting.py [PICTURE.png]

A Pyro model of the pixels that are seen, its latents sampled by many chains of HMC at once.
"""

from __future__ import annotations

import sys

import pyro
import torch
from pyro import distributions as dist
from torch import Tensor, nn
from vae import LATENT, VAE, train

from hmcvi.data import load_images
from hmcvi.kernels import HMC
from hmcvi.pyro import vectorized_mcmc

SEEN = torch.arange(64) < 32  # the upper half


def model(decoder: nn.Module, pixels: Tensor) -> None:
    """pixels: those seen, of each image  [images, 32]"""
    with pyro.plate("images", len(pixels)):
        z = pyro.sample("z", dist.Normal(torch.zeros(LATENT), 1.0).to_event(1))
        likelihood = dist.Bernoulli(logits=decoder(z)[..., SEEN], validate_args=False)
        pyro.sample("pixels", likelihood.to_event(1), obs=pixels)


def main(num_epochs: int = 200, num_draws: int = 300) -> None:
    pyro.set_rng_seed(0)
    digits = load_images("digits")
    vae = VAE()
    train(vae, vae.guide, digits.train, num_epochs, 2e-3)
    vae.requires_grad_(False)
    images = digits.test[:6].round()
    samples = vectorized_mcmc(
        model,
        HMC,
        vae.decoder,
        images[:, SEEN],
        num_samples=num_draws,
        warmup_steps=num_draws,
        settings={"num_steps": 8},
    )
    guesses = vae.decoder(samples["z"]).sigmoid()  # [draws, images, 64]
    means = guesses.mean(0)
    blank = torch.full_like(images, images[:, ~SEEN].mean())
    for name, guess in (("posterior", means), ("grey", blank)):
        log_prob = dist.Bernoulli(guess).log_prob(images)[:, ~SEEN].sum(-1).mean()
        print(f"log-probability of the missing half by {name:<10}{float(log_prob):7.2f}")
    if len(sys.argv) > 1:
        chosen = guesses[torch.randperm(len(guesses))[:3]]
        draw([torch.where(SEEN, images, rest) for rest in (torch.tensor(0.5), *chosen, images)], sys.argv[1])


def draw(rows: list[Tensor], path: str) -> None:
    """What is seen, three draws of the posterior, and the images themselves, below each other."""
    from matplotlib.image import imsave

    strips = [torch.cat(list(row.reshape(-1, 8, 8)), 1) for row in rows]
    imsave(path, torch.cat(strips).numpy(), cmap="gray_r", vmin=0, vmax=1)


if __name__ == "__main__":
    main()
