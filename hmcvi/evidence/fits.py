"""Normal distributions fitted to a density: bases that come with a guess ζ of Z."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributions import MultivariateNormal

from hmcvi.adaptation.pathfinder import climb
from hmcvi.density import Density
from hmcvi.evidence.result import Evidence, effective_samples
from hmcvi.internal.checks import whole
from hmcvi.internal.newton import expansion, maximise
from hmcvi.internal.random import standard_normal
from hmcvi.internal.seeds import generator as seeded

BOUND_SAMPLES = 1000
# narrow at first: far from where they are fitted, gradients of densities of log scales explode
FIRST_SCALE = 0.1


@dataclass(frozen=True, eq=False)
class Fit:
    """N(mean, L Lᵀ) of batch shape [...], and log ζ ≈ log Z [...].  A batch is also a list of fits."""

    mean: Tensor  # [..., d]
    root: Tensor  # L, lower triangular  [..., d, d]
    log_zeta: Tensor

    @property
    def distribution(self) -> MultivariateNormal:
        return MultivariateNormal(self.mean, scale_tril=self.root, validate_args=False)

    law = distribution  # its name in the first release

    @property
    def batch_shape(self) -> torch.Size:
        return self.mean.shape[:-1]

    @property
    def event_shape(self) -> torch.Size:
        return self.mean.shape[-1:]

    @property
    def covariance(self) -> Tensor:
        return self.root @ self.root.mT

    @property
    def stddev(self) -> Tensor:
        return self.root.norm(dim=-1)

    def log_prob(self, value: Tensor) -> Tensor:
        return self.distribution.log_prob(value)

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        return self.distribution.sample(torch.Size(sample_shape))

    def __len__(self) -> int:
        return len(self.mean)

    def __getitem__(self, index: int) -> Fit:
        return Fit(self.mean[index], self.root[index], self.log_zeta[index])

    def __iter__(self) -> Iterator[Fit]:
        return (self[index] for index in range(len(self)))


@torch.no_grad()
def fit_advi(
    density: Density,
    init: Tensor | None = None,
    full_rank: bool = False,
    num_steps: int = 2000,
    num_samples: int = 8,
    learning_rate: float = 0.05,
    seed: int = 0,
) -> Fit:
    """The normal distribution of largest ELBO = E_q[log γ − log q], by stochastic gradients; log ζ = ELBO.

    init: initial means [..., d], several or one for each data item, fitted at once; zeros if None, for
        densities that know their dimension.
    With z = μ + L n, the gradients with respect to μ and L are E[f] and E[f nᵀ], f = ∇log γ(z) − ∇log q(z):
    they have no variance where q is exact.  [Kucukelbir et al. 2017; Roeder, Wu & Duvenaud 2017]
    """
    mean = _initial_positions(density, init)
    whole("num_steps", num_steps, 1), whole("num_samples", num_samples, 1)
    dim, generator = mean.shape[-1], seeded(seed, device=mean.device)
    log_diagonal, below = torch.full_like(mean, math.log(FIRST_SCALE)), mean.new_zeros(*mean.shape, dim)
    parameters = [mean.clone(), log_diagonal, below] if full_rank else [mean.clone(), log_diagonal]
    adam = torch.optim.Adam(parameters, lr=learning_rate)
    decay = torch.optim.lr_scheduler.CosineAnnealingLR(adam, num_steps)
    for _ in range(num_steps):
        root = _root(*parameters[1:])
        noise = standard_normal(mean.expand(num_samples, *mean.shape), generator)
        z = parameters[0] + (root @ noise[..., None])[..., 0]
        _, force = density.finite_value_and_grad(z)
        score = -torch.linalg.solve_triangular(root.mT, noise[..., None], upper=True)[..., 0]
        path = force - score
        by_root = (path[..., None] * noise[..., None, :]).mean(0)
        # L = D (I + B): steps of B are relative to the scale D of each coordinate
        scale = root.diagonal(dim1=-2, dim2=-1)
        ascent = path.mean(0), (by_root * root).sum(-1), (scale[..., None] * by_root).tril(-1)
        for parameter, gradient in zip(parameters, ascent, strict=False):
            parameter.grad = -gradient
        adam.step()
        decay.step()
    fit = Fit(parameters[0], _root(*parameters[1:]), mean.new_zeros(mean.shape[:-1]))
    noise = standard_normal(mean.expand(BOUND_SAMPLES, *mean.shape), generator)
    z = fit.mean + (fit.root @ noise[..., None])[..., 0]
    return Fit(fit.mean, fit.root, (density.finite_log_prob(z) - fit.log_prob(z)).mean(0))


@torch.no_grad()
def laplace(density: Density, init: Tensor | None = None, max_steps: int = 100) -> Fit:
    """N(mode, H⁻¹), H = −∇∇ᵀ log γ at the mode; log ζ = log γ(mode) + ½ d log 2π − ½ log |H|.

    init: initial positions [..., d] as for `fit_advi`; the mode uphill of each.  [MacKay 2003, ch. 27]
    """
    initial = _initial_positions(density, init)
    expand = functools.partial(expansion, density.value_and_grad)
    z = maximise(expand, initial, whole("max_steps", max_steps, 1))
    value, _, hessian = expand(z)
    if not value.isfinite().all():
        raise ValueError(
            "no maximum with positive curvature was found: start nearer to a mode (init=...), or use fit_advi"
        )
    precision_root = torch.linalg.cholesky(-hessian)
    covariance = torch.cholesky_inverse(precision_root)
    log_det = precision_root.diagonal(dim1=-2, dim2=-1).log().sum(-1)
    log_zeta = value + 0.5 * z.shape[-1] * math.log(2 * math.pi) - log_det
    return Fit(z, torch.linalg.cholesky(covariance), log_zeta)


@torch.no_grad()
def pathfinder(density: Density, init: Tensor | None = None, max_steps: int = 500, seed: int = 0) -> Fit:
    """The normal distribution of largest ELBO along a quasi-Newton climb; log ζ = ELBO.

    init: initial positions [..., d] as for `fit_advi`, where log γ is finite; one fit for each.  Some tens of
    gradients, and no derivative of them: cheaper than the other fits, and rougher.
    [Zhang, Carpenter, Gelman & Vehtari 2022]
    """
    generator = seeded(seed)
    initial = _initial_positions(density, init)
    paths = climb(density, initial, generator, whole("max_steps", max_steps, 1))
    if not (paths.elbo > -torch.inf).all():
        raise ValueError(
            "no normal distribution with a finite ELBO was found on the way: start where log_prob and its "
            "gradient are finite (init=...), or use fit_normal"
        )
    noise = standard_normal(initial.expand(BOUND_SAMPLES, *initial.shape), generator)
    elbo = (density.finite_log_prob(paths.best.at(noise)) - paths.best.log_prob_at(noise)).mean(0)
    factor = paths.best.factor()
    return Fit(paths.best.mean, torch.linalg.cholesky(factor @ factor.mT), elbo)


def moment_matched_mixture(fits: Fit | Sequence[Fit], tolerance: float = 0.1) -> Fit:
    """The normal distribution with mean and covariance of Σ_i ζ_i q_i / ζ, ζ = Σ_i ζ_i.

    fits: of single modes, from several initial positions.  Those whose means are within `tolerance` standard
    deviations of an earlier fit are the same mode and left out.  [Graham 2018, (5.50)]
    """
    kept: list[Fit] = []
    for fit in fits:
        if not fit.log_zeta.isfinite().all():
            continue
        if not any(((fit.mean - other.mean) / other.stddev).norm() < tolerance for other in kept):
            kept.append(fit)
    if not kept:
        raise ValueError("give at least one fit with a finite log_zeta")
    log_zeta, means = torch.stack([fit.log_zeta for fit in kept]), torch.stack([fit.mean for fit in kept])
    share = log_zeta.softmax(0)
    mean = share @ means
    spread = means - mean
    within = torch.einsum("i,ijk->jk", share, torch.stack([fit.covariance for fit in kept]))
    covariance = within + torch.einsum("i,ij,ik->jk", share, spread, spread)
    return Fit(mean, torch.linalg.cholesky(covariance), log_zeta.logsumexp(0))


def refit(evidence: Evidence) -> Fit:
    """The normal distribution with mean and covariance of the weighted draws, log ζ = log Z of each item.

    A base for another run of `gibbs_tempering` or its like, nearer to the target than that of the first.
    [Graham 2018, §5.5]
    """
    mean = evidence.expectation(lambda z: z)
    second = evidence.expectation(lambda z: (z - mean)[..., :, None] * (z - mean)[..., None, :])
    root, failed = torch.linalg.cholesky_ex(second)
    assert evidence.log_weight is not None
    effective, dim = effective_samples(evidence.log_weight).min(), mean.shape[-1]
    if failed.any() or not effective > dim:
        raise ValueError(
            f"{effective:.3g} effective draws give no covariance in {dim} dimensions: take more draws, or "
            "another base"
        )
    return Fit(mean, root, evidence.per_item.log_z.to(mean))


def _initial_positions(density: Density, init: Tensor | None) -> Tensor:
    if init is None:
        if density.dim is None:
            raise ValueError(
                "give the initial position as init [..., d], or the dimension as Density(log_prob, dim=d)"
            )
        init = torch.zeros(density.dim)
    density.check(init)
    return init.detach().clone()


def _root(log_diagonal: Tensor, below: Tensor | None = None) -> Tensor:
    """L = D (I + B), D = diag(exp(s)).  [..., d], [..., d, d] -> [..., d, d]"""
    diagonal = torch.diag_embed(log_diagonal.exp())
    return diagonal if below is None else diagonal + log_diagonal.exp()[..., None] * below.tril(-1)
