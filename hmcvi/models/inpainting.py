"""In-painting: the missing pixels of an image given the observed ones, under a variational autoencoder.

    p(x_m, z | x_o) ∝ N(z; 0, I) p(x_o|z) p(x_m|z)

Given z the pixels are independent, so it suffices to sample z given x_o and then to draw x_m.
[Graham & Storkey 2017, §7.3]
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from hmcvi.density import Density
from hmcvi.models.generator import Generator
from hmcvi.models.vae import VAE
from hmcvi.networks import decoder_of


class Inpainting:
    """Posterior of the pixels `missing` [D] of images [..., D], given the others.

    Everything is in float64, with a copy of the decoder as it is now.  Missing pixels of the images that are
    passed are never read.
    """

    def __init__(self, vae: VAE, missing: Tensor) -> None:
        if missing.dtype != torch.bool or missing.shape != (vae.data_dim,):
            raise ValueError(
                f"missing must be a bool mask [{vae.data_dim}], got {missing.dtype} {list(missing.shape)}"
            )
        if missing.all() or not missing.any():
            raise ValueError("some pixels must be missing, and some observed")
        self.likelihood, self.latent_dim = vae.likelihood, vae.latent_dim
        self.missing, self._kept = missing, (~missing).nonzero()[:, 0]
        self._whole = copy.deepcopy(vae).cpu().double().requires_grad_(False)
        # the model of the observed pixels alone
        self._part = VAE(
            len(self._kept),
            vae.latent_dim,
            likelihood=vae.likelihood,
            encoder=nn.Identity(),
            decoder=decoder_of(self._whole.decoder, self._kept),
        ).requires_grad_(False)

    def observed(self, x: Tensor) -> Tensor:
        """x_o  [..., D] -> [..., N]"""
        return x[..., self._kept].double()

    def posterior(self, x: Tensor) -> Density:
        """γ(z) = p(x_o, z), for each image its own.  x: [..., D]"""
        return Density(self._part.log_joint, self.observed(x))

    def generator(self) -> Generator:
        """x_o = μ(z) + σ(z) n, of inputs z and n ~ N(0, I), for constrained HMC."""
        self._check_continuous()
        return Generator.from_vae(self._part)

    def inputs(self, z: Tensor, x: Tensor) -> Tensor:
        """The inputs u = (z, (x_o − μ(z))/σ(z)) with which z gives the observed pixels.  [..., M]"""
        self._check_continuous()
        loc, scale = self._part.decoder(z)
        return torch.cat([z, (self.observed(x) - loc) / scale], -1)

    def _check_continuous(self) -> None:
        if self.likelihood != "gaussian":
            raise ValueError(
                f"the pixels of a {self.likelihood} decoder are binary: the inputs that give them fill a "
                "region, not a surface that constrained HMC could follow. Use HMC on the posterior of z "
                "(hmcvi inpaint --method hmc), which is just as exact, or train with "
                "model.likelihood=gaussian data.binarize=none"
            )

    @torch.no_grad()
    def mean(self, z: Tensor, x: Tensor) -> Tensor:
        """x with its missing pixels replaced by E[x_m|z].  [..., d], [..., D] -> [..., D]"""
        return self._whole.decode(z).where(self.missing, x.double())

    @torch.no_grad()
    def complete(self, z: Tensor, x: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """x with its missing pixels drawn from p(x_m|z).  [..., d], [..., D] -> [..., D]"""
        output = self._whole.decoder(z)
        if self.likelihood == "gaussian":
            loc, scale = output
            drawn = loc + scale * torch.randn(loc.shape, dtype=loc.dtype, generator=generator)
        else:
            uniform = torch.rand(output.shape, dtype=output.dtype, generator=generator)
            drawn = (uniform < output.sigmoid()).to(output.dtype)
        return drawn.where(self.missing, x.double())
