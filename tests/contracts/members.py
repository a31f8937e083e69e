"""The registry of steps, masses and metrics: one line per public class and mode, and every law runs over it.

The kernels are in `tests/contracts/kernels.py`.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from pyro.distributions import transforms as pyro_transforms
from torch import Tensor
from torch.distributions import transforms as torch_transforms

from hmcvi import Chain, Density, Step
from hmcvi.flows import ApproximateForce, BaseCoordinates, Bijection, Cool, Leapfrog
from hmcvi.kernels import (
    HMC,
    Anneal,
    CholeskyMass,
    CholeskyMetric,
    Control,
    DiagonalMetric,
    DrawMomentum,
    DropMomentum,
    FlowMomentum,
    GaussianMomentum,
    GlobalMass,
    IdentityMass,
    IdentityMetric,
    Langevin,
    LowRankMass,
    LowRankMetric,
    Mass,
    Metric,
    Metropolis,
    MixtureMomentum,
    MomentumModel,
    NetworkMass,
    NetworkStepSize,
    Persistence,
    RefreshMomentum,
    Resample,
    ReverseAcceptance,
    ReverseMomentum,
    SpectralMetric,
    StepSize,
)
from hmcvi.kernels.variational.reverse import FEATURES
from tests.support.problems import F64, perturb

DIM = 2
CONTEXT_DIM = 3
SMALL = (8,)


class StepExample(NamedTuple):
    name: str
    make_step: Callable[[], Step]
    needs_momentum: bool = False
    bijective: bool = False
    anneals: bool = False  # prices are in double precision, reports are one number for all chains

    def make(self) -> Step:
        torch.manual_seed(0)
        return perturb(self.make_step())

    def __str__(self) -> str:
        return self.name


MASSES: dict[str, Callable[[], Mass]] = {
    "identity": IdentityMass,
    "global": lambda: GlobalMass(DIM),
    "nn": lambda: NetworkMass(DIM, CONTEXT_DIM, SMALL),
    "low-rank": lambda: LowRankMass(DIM, 1),
    "full": lambda: CholeskyMass(DIM),
}


def trajectory(
    mass: Callable[[], Mass] = IdentityMass,
    step_size: Callable[[], torch.nn.Module] = lambda: StepSize(0.4),
    beta: float | None = None,
    **options: float,
) -> Leapfrog:
    temperature = None if beta is None else (lambda context: torch.tensor(beta))
    return Leapfrog(mass(), step_size(), 2, temperature, **options)


def wrong(target: Density) -> Density:
    """Another density than the target, from the same base."""
    return Density(lambda z: target._log_prob(0.7 * z + 0.2) + z.sin().sum(-1), base=target.base)


MOMENTUM_MODELS: dict[str, Callable[[], MomentumModel]] = {
    "gaussian": lambda: GaussianMomentum(DIM),
    "mixture": lambda: MixtureMomentum(DIM, 3),
    "flow": lambda: FlowMomentum(DIM, 4),
}


def reverse(
    sees_refreshed: bool = False, model: str = "gaussian", sees: Sequence[str] = ("position",)
) -> ReverseMomentum:
    return ReverseMomentum(DIM, CONTEXT_DIM, SMALL, sees_refreshed, MOMENTUM_MODELS[model](), sees)


def langevin(
    control: str | None = None,
    mass: Callable[[], Mass] = IdentityMass,
    step_size: Callable[[], torch.nn.Module] = lambda: StepSize(0.2),
    beta: float | None = None,
) -> Langevin:
    learned = None if control is None else Control(DIM, CONTEXT_DIM, SMALL, ("position", "force"))
    temperature = None if beta is None else (lambda context: torch.tensor(beta))
    return Langevin(mass(), step_size(), temperature, learned if control == "both" else None, learned)


def rough_hmc(density: Density) -> HMC:
    """Steps so long that about a fifth of the proposals are rejected."""
    return HMC(density, step_size=0.8, num_steps=3)


def affine() -> torch_transforms.Transform:
    return torch_transforms.AffineTransform(0.3, -1.2)


TRANSFORMS: dict[str, Callable[[], object]] = {
    "torch affine": affine,
    "torch affine on vectors": lambda: torch_transforms.IndependentTransform(affine(), 1),
    "torch composition with a learned part": lambda: torch_transforms.ComposeTransform(
        [torch_transforms.IndependentTransform(affine(), 1), pyro_transforms.planar(DIM)]
    ),
    "permutation": lambda: pyro_transforms.Permute(torch.tensor([1, 0])),
    "householder": lambda: pyro_transforms.householder(DIM, 2),
    "planar": lambda: pyro_transforms.planar(DIM),
    "radial": lambda: pyro_transforms.radial(DIM),
    "iaf": lambda: pyro_transforms.affine_autoregressive(DIM, [8]),
    "coupling": lambda: pyro_transforms.affine_coupling(DIM, hidden_dims=[8]),
    "spline": lambda: pyro_transforms.spline(DIM),
    "conditional planar": lambda: pyro_transforms.conditional_planar(DIM, CONTEXT_DIM, [8]),
    "conditional iaf": lambda: pyro_transforms.conditional_affine_autoregressive(DIM, CONTEXT_DIM, [8]),
    "conditional coupling": lambda: pyro_transforms.conditional_affine_coupling(
        DIM, CONTEXT_DIM, hidden_dims=[8]
    ),
}

if importlib.util.find_spec("zuko") is not None:  # optional
    import zuko

    TRANSFORMS |= {
        "zuko permutation": lambda: zuko.transforms.PermutationTransform(torch.tensor([1, 0])),
        "zuko rotation": lambda: zuko.lazy.UnconditionalTransform(
            zuko.transforms.RotationTransform, torch.tensor([[0.3, 1.0], [-0.2, 0.5]])
        ),
        "zuko maf": lambda: zuko.flows.MAF(DIM, CONTEXT_DIM, transforms=2, hidden_features=SMALL),
        "zuko maf, fast": lambda: (
            zuko.flows.MAF(DIM, CONTEXT_DIM, transforms=2, hidden_features=SMALL).transform
        ),
        "zuko spline coupling": lambda: zuko.flows.NSF(
            DIM, CONTEXT_DIM, transforms=2, passes=2, hidden_features=SMALL
        ),
    }

STEPS: list[StepExample] = [
    *(StepExample(f"DrawMomentum {m}", lambda m=m: DrawMomentum(MASSES[m]())) for m in MASSES),
    *(
        StepExample(f"DropMomentum {m}", lambda m=m: DropMomentum(MASSES[m](), reverse()), True)
        for m in MASSES
    ),
    *(
        StepExample(
            f"DropMomentum by a {model}",
            lambda model=model: DropMomentum(CholeskyMass(DIM), reverse(model=model)),
            True,
        )
        for model in MOMENTUM_MODELS
    ),
    StepExample("DropMomentum exact", lambda: DropMomentum(CholeskyMass(DIM)), True),
    *(
        StepExample(
            f"RefreshMomentum {m}",
            lambda m=m: RefreshMomentum(MASSES[m](), Persistence(0.4), reverse(sees_refreshed=True)),
            True,
        )
        for m in MASSES
    ),
    *(
        StepExample(
            f"RefreshMomentum by a {model}",
            lambda model=model: RefreshMomentum(
                CholeskyMass(DIM), Persistence(0.4), reverse(sees_refreshed=True, model=model)
            ),
            True,
        )
        for model in MOMENTUM_MODELS
    ),
    *(
        StepExample(
            f"DropMomentum, {feature} seen",
            lambda f=feature: DropMomentum(IdentityMass(), reverse(sees=[f])),
            True,
        )
        for feature in FEATURES
    ),
    StepExample(
        "RefreshMomentum, everything seen",
        lambda: RefreshMomentum(GlobalMass(DIM), Persistence(0.4), reverse(True, sees=list(FEATURES))),
        True,
    ),
    StepExample(
        "RefreshMomentum by the residual",
        lambda: RefreshMomentum(
            CholeskyMass(DIM), Persistence(0.4), reverse(sees_refreshed=True), residual=True
        ),
        True,
    ),
    StepExample("RefreshMomentum exact", lambda: RefreshMomentum(CholeskyMass(DIM), Persistence(0.6)), True),
    StepExample(
        "RefreshMomentum turning back",
        lambda: RefreshMomentum(GlobalMass(DIM), Persistence(-0.6, learned=False)),
        True,
    ),
    *(StepExample(f"Leapfrog {m}", lambda m=m: trajectory(MASSES[m]), True, True) for m in MASSES),
    StepExample(
        "Leapfrog, a step per dimension",
        lambda: trajectory(step_size=lambda: StepSize(0.4, DIM)),
        True,
        True,
    ),
    StepExample(
        "Leapfrog, a step per datum",
        lambda: trajectory(step_size=lambda: NetworkStepSize(0.4, CONTEXT_DIM, SMALL)),
        True,
        True,
    ),
    StepExample("Leapfrog at β = 0.3", lambda: trajectory(beta=0.3), True, True),
    StepExample(
        "Leapfrog, many of which turn back",
        lambda: trajectory(step_size=lambda: StepSize(0.8), max_energy_error=0.6),
        True,
    ),
    StepExample("Metropolis simple", lambda: Metropolis(trajectory(MASSES["full"])), True),
    StepExample("Metropolis at β = 0.3", lambda: Metropolis(trajectory(beta=0.3)), True),
    *(
        StepExample(
            f"Metropolis {m}",
            lambda m=m: Metropolis(trajectory(MASSES[m]), ReverseAcceptance(DIM, CONTEXT_DIM, SMALL)),
            True,
        )
        for m in MASSES
    ),
    StepExample("Cool", lambda: Cool(lambda: torch.tensor(0.8)), True, True),
    *(
        StepExample(f"Bijection {t}", lambda t=t: Bijection(TRANSFORMS[t]()), bijective=True)
        for t in TRANSFORMS
    ),
    *(StepExample(f"Langevin {m}", lambda m=m: langevin(mass=MASSES[m])) for m in MASSES),
    StepExample("Langevin at β = 0.3", lambda: langevin(beta=0.3)),
    StepExample("Langevin, reverse drift learned", lambda: langevin("reverse", beta=0.3)),
    StepExample("Langevin, both drifts learned", lambda: langevin("both", MASSES["full"], beta=0.6)),
    StepExample(
        "Langevin, a step per dimension",
        lambda: langevin("both", MASSES["full"], lambda: StepSize(0.2, DIM)),
    ),
    StepExample(
        "Langevin, a step per datum",
        lambda: langevin("reverse", step_size=lambda: NetworkStepSize(0.2, CONTEXT_DIM, SMALL)),
    ),
    StepExample("Resample at β = 0.6", lambda: Resample(4, lambda context: torch.tensor(0.6))),
    StepExample(
        "Resample in the coordinates of the base",
        lambda: BaseCoordinates([Resample(2, lambda context: torch.tensor(1.0))]),
    ),
    StepExample("Anneal at β = 0.4", lambda: Anneal(rough_hmc, beta=0.4), anneals=True),
    StepExample("Anneal at β = 1", lambda: Anneal(rough_hmc, beta=1.0), anneals=True),
    StepExample("Chain of nothing", Chain, bijective=True),
    StepExample("BaseCoordinates", lambda: BaseCoordinates([trajectory()]), True, True),
    StepExample(
        "BaseCoordinates of a chain that draws",
        lambda: BaseCoordinates(
            [
                DrawMomentum(MASSES["nn"]()),
                trajectory(MASSES["nn"], beta=0.5),
                DropMomentum(IdentityMass(), reverse(sees=["position", "force"])),
            ]
        ),
    ),
    StepExample("ApproximateForce", lambda: ApproximateForce([trajectory()], wrong), True, True),
    StepExample(
        "ApproximateForce of a chain that draws, in the coordinates of the base",
        lambda: ApproximateForce(
            [
                BaseCoordinates(
                    [
                        DrawMomentum(MASSES["nn"]()),
                        trajectory(MASSES["nn"], beta=0.5),
                        DropMomentum(IdentityMass(), reverse(sees=["position", "force"])),
                    ]
                )
            ],
            wrong,
        ),
    ),
    StepExample(
        "Chain of chains",
        lambda: Chain(
            [
                Bijection(TRANSFORMS["conditional iaf"]()),
                Chain([DrawMomentum(IdentityMass()), trajectory(), DropMomentum(IdentityMass(), reverse())]),
                Anneal(rough_hmc, beta=0.5),
            ]
        ),
        anneals=True,
    ),
]


class MetricExample(NamedTuple):
    """A metric and the dense matrix it stands for."""

    metric: Metric
    matrix: Tensor


def metrics(*batch: int, dim: int = 3) -> list[MetricExample]:
    """One example per class, its tensors with the leading dimensions `batch`."""
    generator = torch.Generator().manual_seed(0)
    log_scale = 0.4 * torch.randn(*batch, dim, generator=generator, dtype=F64)
    factor = torch.randn(*batch, dim, 2, generator=generator, dtype=F64)
    root = torch.randn(*batch, dim, dim, generator=generator, dtype=F64).tril(-1) + torch.diag_embed(
        log_scale.exp()
    )
    identity = torch.eye(dim, dtype=F64)
    bump = identity + factor @ factor.mT
    scale = torch.diag_embed(log_scale.exp())
    vectors, log_values = torch.linalg.qr(factor).Q, torch.tensor([0.7, -0.4], dtype=F64).expand(*batch, 2)
    spread = identity + vectors @ torch.diag_embed(log_values.expm1()) @ vectors.mT
    return [
        MetricExample(IdentityMetric(), identity.expand(*batch, dim, dim)),
        MetricExample(DiagonalMetric(log_scale), scale @ scale),
        MetricExample(LowRankMetric(log_scale, factor), scale @ bump @ bump @ scale),
        MetricExample(SpectralMetric(log_scale, vectors, log_values), scale @ spread @ spread @ scale),
        MetricExample(CholeskyMetric(root), root @ root.mT),
    ]
