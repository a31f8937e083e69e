"""Bases that begin with a fit of the posterior and are trained in its units."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from pyro import distributions as dist
from pyro import poutine
from pyro.distributions.transforms import (
    AffineAutoregressive,
    LowerCholeskyAffine,
    Permute,
    affine_autoregressive,
)
from pyro.infer.autoguide import AutoContinuous, AutoGuide
from pyro.infer.autoguide.initialization import init_to_median
from torch import Tensor, nn
from torch.distributions import AffineTransform, ComposeTransform, Transform, constraints

from hmcvi.density import Density
from hmcvi.internal.checks import choose, positive
from hmcvi.pyro.fit import fit_posterior
from hmcvi.pyro.latents import Model, is_summed_out

INIT_SCALE = 0.1
FULL_RANK_LIMIT = 300  # dimensions up to which `auto` has a full covariance
RANK = 10


class LowRankAffine(Transform):
    """x = loc + D (I + V Vᵀ) e,  D = diag(scale), V: [d, r];  log|det| = Σ log D + log|I + VᵀV|."""

    domain = constraints.real_vector
    codomain = constraints.real_vector
    bijective = True

    def __init__(self, loc: Tensor, scale: Tensor, factor: Tensor) -> None:
        super().__init__()
        self.loc, self.scale, self.factor = loc, scale, factor

    def _call(self, x: Tensor) -> Tensor:
        return self.loc + self.scale * (x + (x @ self.factor) @ self.factor.mT)

    def _inverse(self, y: Tensor) -> Tensor:
        white = (y - self.loc) / self.scale
        inner = torch.cholesky_solve((white @ self.factor).mT, torch.linalg.cholesky(self._gram())).mT
        return white - inner @ self.factor.mT

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        log_det = self.scale.log().sum() + torch.logdet(self._gram())
        return log_det.expand(x.shape[:-1])

    def _gram(self) -> Tensor:
        return self.factor.mT @ self.factor + torch.eye(self.factor.shape[-1]).to(self.factor)


class FittedBase(AutoContinuous):
    """z = μ + L f(e), with N(μ, L Lᵀ) fitted to the posterior and f trained from the identity.

    An optimizer's step then has the units of the posterior, whatever those of the model are.  Parameters of f
    are scaled by d^{−½}, and by 1/d for each of d² entries, so that a step changes the distribution by about
    as much in many dimensions as in few.
    """

    full_rank: ClassVar[bool] = True

    def __init__(
        self, model: Model, init_loc_fn: Callable[..., Any] | None = None, init_scale: float = INIT_SCALE
    ) -> None:
        positive(init_scale, "init_scale")
        super().__init__(model, init_loc_fn=init_to_median if init_loc_fn is None else init_loc_fn)
        self._init_loc_fn, self._init_scale = init_loc_fn, init_scale

    def as_kind(self, kind: type[FittedBase], model: Model) -> FittedBase:
        """Another kind of base with the same start."""
        return kind(model, self._init_loc_fn, self._init_scale)

    def _setup_prototype(self, *args: Any, **kwargs: Any) -> None:
        super()._setup_prototype(*args, **kwargs)
        loc = self._init_loc()
        scale = torch.full_like(loc, self._init_scale)
        self.centre = nn.Parameter(loc)
        self.root = nn.Parameter(torch.diag_embed(scale) if self.full_rank else scale)
        self._add_parameters(torch.zeros_like(loc))

    def _add_parameters(self, zeros: Tensor) -> None:
        """The parameters of f, at which it is the identity."""
        raise NotImplementedError

    @torch.no_grad()
    def fit(self, density: Density, num_evaluations: int) -> None:
        """Fit μ and L to a density by natural gradients.

        num_evaluations: how many the density may be asked for at once.
        """
        first, given = self.centre.detach(), self._init_loc_fn is not None
        found = fit_posterior(density, first, self._init_scale, self.full_rank, num_evaluations, given)
        if found is not None:  # or else the start is as good as anything
            self.begin(*found)

    @torch.no_grad()
    def begin(self, mean: Tensor, root: Tensor, share: float = 1.0) -> None:
        """Begin with N(mean, share² root rootᵀ), in units of root, triangular [d, d] or diagonal [d]."""
        if root.ndim == 1 and self.full_rank:
            root = torch.diag_embed(root)
        elif root.ndim == 2 and not self.full_rank:
            root = root.norm(dim=-1)
        self.centre.copy_(mean)
        self.root.copy_(root)
        self._shrink(share)

    def _shrink(self, share: float) -> None:
        """f(e) = share · e"""
        self.log_scale.fill_(math.log(share) * self.latent_dim**0.5)

    def get_base_dist(self) -> Any:
        zeros = torch.zeros_like(self.centre)
        return dist.Normal(zeros, torch.ones_like(zeros)).to_event(1)

    def _affine(self, loc: Tensor, scale: Tensor) -> Any:
        """x ↦ μ + L (loc + scale x)  scale: a vector, or for full_rank a lower triangular matrix."""
        centre, root = self.centre.detach(), self.root.detach()
        if not self.full_rank:
            return AffineTransform(centre + root * loc, root * scale, event_dim=1)
        return LowerCholeskyAffine(centre + root @ loc, root @ scale)


class AutoFittedNormal(FittedBase):
    """f(e) = m + S e, S lower triangular: any normal distribution."""

    def _add_parameters(self, zeros: Tensor) -> None:
        self.loc, self.log_scale = nn.Parameter(zeros.clone()), nn.Parameter(zeros.clone())
        self.below = nn.Parameter(torch.diag_embed(zeros))

    def get_transform(self, *args: Any, **kwargs: Any) -> Any:
        dim = self.latent_dim
        scale = torch.diag_embed((dim**-0.5 * self.log_scale).exp()) + self.below.tril(-1) / dim
        return self._affine(dim**-0.5 * self.loc, scale)

    def _loc_scale(self, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        transform = self.get_transform()
        return transform.loc, transform.scale_tril.norm(dim=-1)


class AutoFittedDiagonalNormal(FittedBase):
    """f(e) = m + s e: independent normal distributions."""

    full_rank = False

    def _add_parameters(self, zeros: Tensor) -> None:
        self.loc, self.log_scale = nn.Parameter(zeros.clone()), nn.Parameter(zeros.clone())

    def get_transform(self, *args: Any, **kwargs: Any) -> Any:
        unit = self.latent_dim**-0.5
        return self._affine(unit * self.loc, (unit * self.log_scale).exp())

    def _loc_scale(self, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        transform = self.get_transform()
        return transform.loc, transform.scale


class AutoFittedLowRankNormal(FittedBase):
    """f(e) = m + s (I + V Vᵀ) e, for many dimensions."""

    full_rank = False

    def _add_parameters(self, zeros: Tensor) -> None:
        self.loc, self.log_scale = nn.Parameter(zeros.clone()), nn.Parameter(zeros.clone())
        # V = 0 is a saddle point of V Vᵀ: training begins near it
        self.factor = nn.Parameter(0.1 * torch.randn(len(zeros), min(RANK, len(zeros))).to(zeros))

    def get_transform(self, *args: Any, **kwargs: Any) -> Any:
        unit, root = self.latent_dim**-0.5, self.root.detach()
        loc = self.centre.detach() + root * (unit * self.loc)
        return LowRankAffine(loc, root * (unit * self.log_scale).exp(), unit * self.factor)

    def _loc_scale(self, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        transform = self.get_transform()
        whole = torch.eye(self.latent_dim).to(transform.loc) + transform.factor @ transform.factor.mT
        return transform.loc, transform.scale * whole.norm(dim=-1)


class AutoFittedIAFNormal(FittedBase):
    """f: two inverse autoregressive flows, the order of the variables reversed between them."""

    num_flows: ClassVar[int] = 2

    def _add_parameters(self, zeros: Tensor) -> None:
        dim = len(zeros)
        if dim < 2:
            raise ValueError("base='iaf' conditions latents on each other: it needs two or more; use 'mvn'")
        flows = [affine_autoregressive(dim, [2 * dim, 2 * dim]) for _ in range(self.num_flows)]
        for flow in flows:
            assert isinstance(flow, AffineAutoregressive)
            output = flow.arn.layers[-1]
            nn.init.normal_(output.weight, std=1e-3 / math.sqrt(dim))
            nn.init.zeros_(output.bias)
        self.flows = nn.ModuleList(flows).to(zeros)

    def _shrink(self, share: float) -> None:
        self.root.mul_(share)

    def get_transform(self, *args: Any, **kwargs: Any) -> Any:
        backwards = torch.arange(self.latent_dim - 1, -1, -1, device=self.centre.device)
        parts: list[Any] = []
        for flow in self.flows:
            parts += [flow, Permute(backwards)]
        zeros = torch.zeros_like(self.centre)
        return ComposeTransform([*parts, self._affine(zeros, torch.diag_embed(torch.ones_like(zeros)))])


BASES: dict[str, type[FittedBase]] = {
    "mvn": AutoFittedNormal,
    "diagonal": AutoFittedDiagonalNormal,
    "lowrank": AutoFittedLowRankNormal,
    "iaf": AutoFittedIAFNormal,
}


def make_base(
    model: Model, base: Any, init_loc_fn: Callable[..., Any] | None, init_scale: float
) -> AutoContinuous:
    """The base by its name, by a function of the model, or as it is given."""
    visible = poutine.block(model, hide_fn=is_summed_out)
    if isinstance(base, str):
        kinds: dict[str, type[FittedBase]] = {"auto": AutoFittedNormal, **BASES}
        kind = choose("base", base, kinds)
        return kind(visible, init_loc_fn, init_scale)
    if init_loc_fn is not None or init_scale != INIT_SCALE:
        raise ValueError(
            "init_loc_fn and init_scale are for bases given by name: give them to the base itself, as in "
            "base=lambda model: AutoMultivariateNormal(model, init_scale=0.5)"
        )
    guide = base if isinstance(base, AutoGuide) else base(visible)
    if not isinstance(guide, AutoContinuous):
        raise ValueError(
            "base must be an autoguide over all latents such as AutoDiagonalNormal or "
            f"AutoMultivariateNormal, got {type(guide).__name__}"
        )
    return guide
