"""Targets whose evidence, draws and marginals are known."""

from __future__ import annotations

import math

import torch
from pyro.distributions.transforms import ConditionalPlanar, Planar
from torch import Tensor, nn
from torch.distributions import MultivariateNormal, Normal

from hmcvi import Density, Step
from hmcvi.density import NormalDensity
from hmcvi.flows import Bijection
from hmcvi.kernels import FlowMomentum, MixtureMomentum, ReverseAcceptance, ReverseMomentum
from hmcvi.models import VAE

F64 = torch.float64


class LinearGaussian:
    """z ~ N(0, I), x = W z + b + σ n: everything is Gaussian and known."""

    def __init__(self, latent_dim: int = 2, data_dim: int = 4, noise: float = 0.7, seed: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.latent_dim, self.data_dim, self.noise = latent_dim, data_dim, noise
        self.weight = 0.7 * torch.randn(data_dim, latent_dim, generator=generator, dtype=F64)
        self.bias = torch.randn(data_dim, generator=generator, dtype=F64)
        precision = torch.eye(latent_dim, dtype=F64) + self.weight.T @ self.weight / noise**2
        self.covariance = precision.inverse()
        self.gain = self.covariance @ self.weight.T / noise**2
        self.marginal = MultivariateNormal(
            self.bias, self.weight @ self.weight.T + noise**2 * torch.eye(data_dim, dtype=F64)
        )

    def data(self, *shape: int, seed: int = 1) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        z = torch.randn(*shape, self.latent_dim, generator=generator, dtype=F64)
        n = torch.randn(*shape, self.data_dim, generator=generator, dtype=F64)
        return z @ self.weight.T + self.bias + self.noise * n

    def log_evidence(self, x: Tensor) -> Tensor:
        return self.marginal.log_prob(x)

    def vae(self, chain: Step | None = None, width: float = 2.0) -> VAE:
        """The model as a VAE whose encoder has the right mean and `width` times the right scales."""
        return VAE(
            self.data_dim,
            self.latent_dim,
            chain,
            "gaussian",
            encoder=AffineEncoder(self, width),
            decoder=AffineDecoder(self),
        ).double()


class AffineEncoder(nn.Module):
    def __init__(self, model: LinearGaussian, width: float) -> None:
        super().__init__()
        self.gain = nn.Parameter(model.gain.clone())
        self.bias = nn.Parameter(model.bias.clone())
        self.log_scale = nn.Parameter(0.5 * model.covariance.diagonal().log() + math.log(width))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        loc = (x - self.bias) @ self.gain.T
        return loc, self.log_scale.exp().expand(loc.shape)


class AffineDecoder(nn.Module):
    def __init__(self, model: LinearGaussian) -> None:
        super().__init__()
        self.weight = nn.Parameter(model.weight.clone())
        self.bias = nn.Parameter(model.bias.clone())
        self.log_noise = nn.Parameter(torch.tensor(math.log(model.noise), dtype=F64))

    def forward(self, z: Tensor) -> tuple[Tensor, Tensor]:
        loc = z @ self.weight.T + self.bias
        return loc, self.log_noise.exp().expand(loc.shape)


class Mixture:
    """γ = Z · (0.7 N(μ₁, Σ₁) + 0.3 N(μ₂, Σ₂)) on R²: two unlike modes, no symmetry, known Z.

    Its base q0 = N(0, 2² I) is wider than either mode in every direction.
    """

    dim = 2
    log_evidence = 0.8
    base_scale = 2.0

    def __init__(self) -> None:
        self.shares = torch.tensor([0.7, 0.3], dtype=F64)
        self.loc = torch.tensor([[-0.8, 0.3], [1.2, -0.4]], dtype=F64)
        self.root = torch.tensor([[[0.9, 0.0], [0.4, 0.7]], [[0.5, 0.0], [-0.3, 0.8]]], dtype=F64)
        self.base = NormalDensity(0.0, self.base_scale)
        self.density = Density(self.log_prob, base=self.base)

    def log_prob(self, z: Tensor) -> Tensor:
        modes = MultivariateNormal(self.loc.to(z), scale_tril=self.root.to(z), validate_args=False)
        return (modes.log_prob(z[..., None, :]) + self.shares.to(z).log()).logsumexp(-1) + self.log_evidence

    def log_base(self, z: Tensor) -> Tensor:
        return self.base.log_prob(z)

    def draw(self, count: int) -> Tensor:
        mode = torch.multinomial(self.shares, count, replacement=True)
        noise = torch.randn(count, self.dim, dtype=F64)
        return self.loc[mode] + (self.root[mode] @ noise[..., None])[..., 0]

    def draw_base(self, *shape: int) -> Tensor:
        return self.base_scale * torch.randn(*shape, self.dim, dtype=F64)

    def projected_cdf(self, z: Tensor, direction: Tensor) -> Tensor:
        """P(aᵀz' ≤ aᵀz) for z' ~ γ/Z.  [..., 2] -> [...]"""
        scale = (self.root.mT @ direction).norm(dim=-1)
        return (Normal(self.loc @ direction, scale).cdf((z @ direction)[..., None]) * self.shares).sum(-1)


def perturb(module: nn.Module, scale: float = 0.05, seed: int = 0) -> nn.Module:
    """Move every parameter off its initial value, keeping the weights of chains of finite variance.

    Learned reverse models end narrower than the momenta they explain, the reverse acceptance model leaves
    little mass on rejections, whose forward probability has no lower bound, and flows stay near the
    identity, so that they carry the wide base to a wide distribution.
    """
    generator = torch.Generator().manual_seed(seed)
    module = module.double()
    with torch.no_grad():
        for part in module.modules():
            if isinstance(part, nn.Linear):
                noise = torch.randn(part.weight.shape, generator=generator, dtype=F64)
                part.weight.copy_(0.5 * noise / part.in_features**0.5)
        for part in module.modules():
            if isinstance(part, Bijection):
                _bring_near_identity(part)
        for parameter in module.parameters():
            parameter += scale * torch.randn(parameter.shape, generator=generator, dtype=F64)
        for part in module.modules():
            if isinstance(part, ReverseMomentum):
                part.net.output.weight *= 0.3
                loc_bias, log_scale_bias = _biases(part)
                loc_bias += 0.1
                # the widest component of a mixture has its tails
                log_scale_bias -= 0.5 if isinstance(part.law, MixtureMomentum) else 0.3
            if isinstance(part, ReverseAcceptance):
                part.net.body[-1].bias += 0.3
    return module


def _biases(reverse: ReverseMomentum) -> tuple[Tensor, Tensor]:
    """Of loc and log scale, for every component of a mixture.  [..., d], [..., d]"""
    bias, model = reverse.net.output.bias, reverse.law
    if isinstance(model, MixtureMomentum):
        bias = bias.unflatten(0, (model.num_components, -1))[:, :-1]
    elif isinstance(model, FlowMomentum):
        bias = bias[: 2 * model.sizes[0]]
    return bias.chunk(2, -1)


def _bring_near_identity(flow: Bijection) -> None:
    """Shrink the parameters; a planar flow moves by û tanh(wᵀz + b), û = u + m(wᵀu) w/|w|²: keep û small."""
    for parameter in flow.parameters():
        parameter *= 0.3
    for part in flow.modules():
        if isinstance(part, Planar):
            part.w.copy_(_unit(len(part.w)))
            part.u.copy_(0.4 * part.w)
        if isinstance(part, ConditionalPlanar):
            output = part.nn.layers[-1]
            direction = _unit((len(output.bias) - 1) // 2)
            output.bias.copy_(torch.cat([torch.zeros(1, dtype=F64), 0.4 * direction, direction]))


def _unit(dim: int) -> Tensor:
    direction = torch.linspace(1.0, -0.5, dim, dtype=F64)
    return direction / direction.norm()
