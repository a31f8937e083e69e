"""Variational autoencoders whose posterior a chain refines."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.distributions import Distribution, Independent, Normal

from hmcvi.chain import Chain, Context, Phase, Step, Transition, Weights, weigh
from hmcvi.density import Density, NormalDensity, normal_log_prob, standard_log_prob
from hmcvi.internal.checks import at_least, one_of
from hmcvi.internal.context import Randomness
from hmcvi.models.likelihood import LIKELIHOODS
from hmcvi.models.posterior import DecoderPosterior
from hmcvi.networks import GaussianDecoder, GaussianEncoder, mlp
from hmcvi.objectives import elbo, iwae

Objective = Callable[[Weights], Tensor]


class ImportanceEstimate(NamedTuple):
    """−log p(x) by importance sampling, per datum [...]."""

    nll: Tensor
    std_error: Tensor  # of nll, by the delta method
    ess: Tensor  # effective number of the num_samples samples


class Refinement(NamedTuple):
    """One pass of the encoder and the chain: all that bounds and reports need."""

    weights: Weights
    transition: Transition
    log_base: Tensor  # log q0(z0|x)  [K, ...]
    start: Phase  # z0


class VAE(nn.Module):
    """A variational autoencoder p(x, z) = N(z; 0, I) p(x|z), with z0 ~ q0(z|x) refined to z_T by a chain.

    encoder(x) -> (loc, scale), each [..., latent_dim]; decoder(z) -> logits (bernoulli) or (loc, scale)
    (gaussian), each [..., data_dim].  Without a chain it is the plain VAE.  K samples of a batch are the
    first dimension: z is [K, ..., latent_dim].
    """

    def __init__(
        self,
        data_dim: int,
        latent_dim: int,
        chain: Step | None = None,
        likelihood: str = "bernoulli",
        hidden: Sequence[int] = (200, 200),
        encoder: nn.Module | None = None,
        decoder: nn.Module | None = None,
    ) -> None:
        super().__init__()
        if data_dim < 1 or latent_dim < 1:
            raise ValueError(f"data_dim and latent_dim must be at least 1, got {data_dim} and {latent_dim}")
        one_of("likelihood", likelihood, LIKELIHOODS)
        self.data_dim, self.latent_dim, self.likelihood = data_dim, latent_dim, likelihood
        self.encoder = encoder or GaussianEncoder(data_dim, latent_dim, hidden)
        self.decoder = decoder or _default_decoder(likelihood, latent_dim, data_dim, hidden)
        self.chain = chain or Chain()

    def log_joint(self, z: Tensor, x: Tensor) -> Tensor:
        """log p(x, z) = log p(x|z) + log N(z; 0, I).  z: [..., latent_dim], x: [..., data_dim] -> [...]"""
        return LIKELIHOODS[self.likelihood](self.decoder(z), x) + standard_log_prob(z)

    @torch.no_grad()
    def encode(self, x: Tensor) -> Distribution:
        """q0(z|x), a distribution over z for each x; the base from which `hmcvi.evidence` anneals."""
        loc, scale = self.encoder(x)
        return Independent(Normal(loc, scale, validate_args=False), 1, validate_args=False)

    def posterior(self, x: Tensor) -> Density:
        """γ(z) = p(x, z), one density for each x; its base is q0(z|x)."""
        loc, scale = self.encoder(x)
        return self._posterior(x, loc, scale)

    def _posterior(self, x: Tensor, loc: Tensor, scale: Tensor) -> Density:
        base = NormalDensity(loc, scale)
        return DecoderPosterior(self.log_joint, x, base, self.decoder, LIKELIHOODS[self.likelihood])

    def run(self, x: Tensor, num_samples: int = 1, randomness: Randomness | None = None) -> Refinement:
        """Draw z0 ~ q0(z|x) and refine it, num_samples times.  x: [..., data_dim]

        A datum that is not finite gets weight −inf and no gradient.
        """
        x, valid = self._checked(x, num_samples)
        loc, scale = self.encoder(x)
        encoded = (loc + scale.log()).isfinite().all(-1)
        if not encoded.all():
            x, valid = x.where(encoded[..., None], 0.0), valid & encoded
            loc, scale = self.encoder(x)
        target = self._posterior(x, loc, scale)
        context = Context(x, randomness)
        noise = context.randomness.normal(loc.expand(num_samples, *loc.shape))
        start = Phase(loc + scale * noise)
        base_noise = 0.5 * (noise.square().sum(-1) - self.latent_dim)
        constant = 0.5 * self.latent_dim * math.log(2 * math.pi)
        log_base = -(0.5 * noise.square() + scale.log()).sum(-1) - constant
        weights = weigh(self.chain, start, log_base, target, context, base_noise)
        if not valid.all():
            weights = weights._replace(log_weight=weights.log_weight.where(valid, -torch.inf))
        assert weights.transition is not None
        return Refinement(weights, weights.transition, log_base, start)

    def weights(self, x: Tensor, num_samples: int = 1) -> Weights:
        """The chains' weights, with what objectives need for their gradients."""
        return self.run(x, num_samples).weights

    def log_weights(self, x: Tensor, num_samples: int = 1) -> Tensor:
        """log w with E[w] = p(x).  [num_samples, ...]"""
        return self.weights(x, num_samples).log_weight

    def bound(self, x: Tensor, num_samples: int = 1, objective: Objective | None = None) -> Tensor:
        """A lower bound on log p(x): the auxiliary ELBO, or IWAE over K = num_samples chains.  [...]

        Its gradient is unbiased, through acceptance steps too.  A sample gives −inf and no gradient if
        log γ or its force is not finite at z0.
        """
        return (objective or (elbo if num_samples == 1 else iwae))(self.weights(x, num_samples))

    def refine(self, x: Tensor, num_samples: int = 1) -> Tensor:
        """Samples of the refined posterior.  [num_samples, ..., latent_dim]"""
        return self.run(x, num_samples).transition.state.position

    def decode(self, z: Tensor) -> Tensor:
        """E[x|z]: pixel probabilities or means.  [..., data_dim]"""
        output = self.decoder(z)
        return output.sigmoid() if self.likelihood == "bernoulli" else output[0]

    @torch.no_grad()
    def reconstruct(self, x: Tensor) -> Tensor:
        """E[x'|z] with z from the refined posterior of x.  [..., data_dim]"""
        return self.decode(self.refine(x)[0])

    @torch.no_grad()
    def generate(self, num_samples: int, generator: torch.Generator | None = None) -> Tensor:
        """E[x|z] with z from the prior.  [num_samples, data_dim]"""
        like = next(self.decoder.parameters())
        z = torch.randn(
            num_samples, self.latent_dim, generator=generator, dtype=like.dtype, device=like.device
        )
        return self.decode(z)

    @torch.no_grad()
    def importance_nll(
        self, x: Tensor, num_samples: int = 5000, num_centre: int = 5, chunk: int = 25
    ) -> ImportanceEstimate:
        """−log p(x) from num_samples draws of N(mean of five refined samples, scale of the encoder).

        The estimate of −log p(x) is biased upwards, less with more samples.  [Wolf et al. 2016, appendix B]
        """
        x, valid = self._checked(x, num_samples)
        _, scale = self.encoder(x)
        loc = self.refine(x, num_centre).mean(0)
        log_weights = []
        for size in _chunks(num_samples, chunk):
            z = loc + scale * torch.randn(size, *loc.shape, dtype=loc.dtype, device=loc.device)
            log_weights.append(self.log_joint(z, x) - normal_log_prob(z, loc, scale))
        log_weight = torch.cat(log_weights)
        share = log_weight.softmax(0)
        ess = 1 / share.square().sum(0)
        nll = math.log(num_samples) - log_weight.logsumexp(0)
        std_error = (1 / ess - 1 / num_samples).clamp(min=0).sqrt()
        return ImportanceEstimate(*(part.where(valid, torch.nan) for part in (nll, std_error, ess)))

    def _checked(self, x: Tensor, num_samples: int) -> tuple[Tensor, Tensor]:
        """x with invalid data replaced by zeros, and which data are valid [...]."""
        at_least(1, num_samples=num_samples)
        if x.shape[-1] != self.data_dim:
            raise ValueError(f"x must be [..., {self.data_dim}], got {list(x.shape)}")
        if 0 in x.shape:
            raise ValueError(f"x holds no data: its shape is {list(x.shape)}")
        valid = x.isfinite().all(-1)
        x = x if valid.all() else x.where(valid[..., None], 0.0)
        if self.likelihood == "bernoulli" and ((x < 0) | (x > 1)).any():
            raise ValueError(
                f"a bernoulli likelihood needs pixels in [0, 1], got [{x.min():g}, {x.max():g}]; "
                "rescale them, or use likelihood='gaussian'"
            )
        return x, valid


def _default_decoder(likelihood: str, latent_dim: int, data_dim: int, hidden: Sequence[int]) -> nn.Module:
    if likelihood == "bernoulli":
        return mlp(latent_dim, hidden, data_dim, nn.Softplus)
    return GaussianDecoder(latent_dim, data_dim, hidden)


def _chunks(total: int, size: int) -> list[int]:
    return [min(size, total - start) for start in range(0, total, size)]
