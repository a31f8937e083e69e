"""Chains that look for poses: the time they take, and how far their mean is from the truth."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from experiments.generators.runs import Outcome
from experiments.models.pose import PosePrior, human_pose
from experiments.resumable import Clocked
from hmcvi.kernels import HMC, ConstrainedHMC
from hmcvi.models import Generator, abc_density
from hmcvi.models.generator import Variables

EPSILON = 0.01  # standard deviation of the noise of the images
NUM_SCENES, SCENES_SEED = 20, 1234


@dataclass(frozen=True)
class Settings:
    """Those of the thesis."""

    num_scenes: int = 3  # with two cameras, those of the authors' notebook; there are 20
    num_chains: int = 5  # for each of the scenes
    num_constrained: int = 200
    num_hmc: int = 1200
    num_monocular_chains: int = 5
    num_monocular: int = 200
    step_size: float = 0.05  # of constrained HMC
    num_steps: tuple[int, int] = (10, 20)
    num_geodesic: int = 8
    hmc_step_size: float = 2e-4
    num_leapfrogs: int = 150
    jitter: float = 0.334  # from 2/3 to 4/3 of the leapfrogs


QUICK = Settings(
    num_chains=2,
    num_constrained=8,
    num_hmc=8,
    num_monocular_chains=2,
    num_monocular=8,
    num_steps=(1, 2),
    num_leapfrogs=6,
)


@dataclass(frozen=True)
class Scenes:
    """generator: of images without noise; inputs: u and the noise [scenes, M + N], observed: [scenes, N]."""

    generator: Generator
    inputs: Tensor
    observed: Tensor

    @property
    def latent(self) -> Variables:
        """The truth, by name  [scenes, ...]"""
        return self.generator.latent(self.inputs[:, : self.generator.dim])


def scenes(prior: PosePrior, num_cameras: int, kept: slice = slice(None)) -> Scenes:
    """As those of the notebook, whose inputs have our order; for one camera with the first of their noise."""
    generator, size = human_pose(prior, num_cameras), human_pose(prior).noisy(EPSILON).dim
    inputs = torch.from_numpy(np.random.RandomState(SCENES_SEED).normal(size=(NUM_SCENES, size)))
    noisy = generator.noisy(EPSILON)
    inputs = inputs[kept, : noisy.dim]
    return Scenes(generator, inputs, noisy.observed(inputs))


def constrained(generator: Generator, observed: Tensor, settings: Settings) -> ConstrainedHMC:
    """The kernel on the inputs and the noise."""
    return ConstrainedHMC(
        generator.noisy(EPSILON),
        observed,
        settings.step_size,
        settings.num_steps,
        settings.num_geodesic,
    )


def unconstrained(generator: Generator, observed: Tensor, settings: Settings) -> HMC:
    """The kernel on the inputs, the noise making a density of them."""
    density = abc_density(generator, observed, EPSILON)
    return HMC(density, settings.hmc_step_size, settings.num_leapfrogs, jitter=settings.jitter)


def with_noise(generator: Generator, inputs: Tensor, observed: Tensor) -> Tensor:
    """(u, n) that give exactly what was observed: n = (y − g(u))/ε.  [..., M], [..., N] -> [..., M + N]"""
    return torch.cat([inputs, (observed - generator.observed(inputs)) / EPSILON], -1)


@dataclass(frozen=True)
class Run:
    """position: [chains, draws, d]; seconds: of the processor, for one chain, until each draw [draws]."""

    position: Tensor
    seconds: Tensor
    acceptance: Tensor  # [chains, draws]

    @classmethod
    def of(cls, clocked: Clocked) -> Run:
        draws, seconds = clocked
        return cls(draws.position, seconds, draws.stats["acceptance_rate"])

    def errors(self, generator: Generator, truth: Tensor) -> Tensor:
        """Root mean square, over coordinates, of the mean of all draws so far less the truth [19, 3].

        -> [chains, draws]
        """
        joints = generator.latent(self.position[..., : generator.dim])["joints"]
        count = torch.arange(1, joints.shape[1] + 1).view(-1, 1, 1)
        return (joints.cumsum(1) / count - truth).square().mean((-1, -2)).sqrt()

    def report(self, generator: Generator, observed: Tensor) -> dict[str, Any]:
        """Describe the second half of the draws; images have the noise that was drawn, where it was."""
        half = len(self.seconds) // 2
        position, dim = self.position[:, half:], generator.dim
        images = generator.observed(position[..., :dim])
        if position.shape[-1] > dim:
            images = images + EPSILON * position[..., dim:]
        latent = generator.latent(position[..., :dim])
        quantities = {f"camera {axis}": latent["camera"][..., index] for index, axis in enumerate("xyz")}
        quantities["mean depth of joints"] = latent["joints"][..., 2].mean(-1)
        return Outcome(
            quantities,
            float(self.seconds[-1] - self.seconds[half - 1]) * len(position),
            float(self.acceptance.mean()),
            float((images - observed).abs().max()),
            position,
        ).report()

    def of_chains(self, chains: slice) -> Run:
        """Some of the chains."""
        return Run(self.position[chains], self.seconds, self.acceptance[chains])
