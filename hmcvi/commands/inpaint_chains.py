"""In-paint by one method: draws of latents and pixels, what they are worth and what they cost."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hmcvi.internal.seeds import generator as seeded
from hmcvi.kernels import HMC, ConstrainedHMC, Kernel
from hmcvi.models.inpainting import Inpainting
from hmcvi.sampling import Draws, sample
from hmcvi.sampling.diagnostics import arviz
from hmcvi.training import ConfigError

METHODS = {"constrained": "constrained HMC", "hmc": "HMC"}

# of the authors' program (https://git.io/dgm); warm-up starts from their step sizes.  It finds larger ones
# for constrained HMC, of which half as many as their 4 to 6 make trajectories of their length
SETTINGS: dict[str, dict[str, Any]] = {
    "constrained": {"step_size": 0.25, "num_steps": (2, 3), "num_geodesic": 3},
    "hmc": {"step_size": 0.015, "num_steps": 40, "jitter": 0.25},
}
CHUNK = 20  # draws decoded at a time


@dataclass(frozen=True)
class Problem:
    """Images [N, D] with missing pixels, in-painted by `num_chains` chains each."""

    inpainting: Inpainting
    images: Tensor
    num_chains: int

    @property
    def per_chain(self) -> Tensor:
        """The image of each chain  [N · chains, D]"""
        return self.images.repeat_interleave(self.num_chains, 0)

    def initial(self, seed: int) -> Tensor:
        """Draw z ~ N(0, I)  [N · chains, d]"""
        size = len(self.images) * self.num_chains, self.inpainting.latent_dim
        return torch.randn(size, dtype=torch.float64, generator=seeded(seed))

    def check(self, method: str) -> None:
        """Refuse a method that the likelihood does not allow."""
        if method == "constrained":
            try:
                self.inpainting.generator()
            except ValueError as error:
                raise ConfigError(str(error)) from None

    def kernel(self, method: str) -> Kernel:
        x = self.per_chain
        if method == "hmc":
            return HMC(self.inpainting.posterior(x), **SETTINGS[method])
        return ConstrainedHMC(self.inpainting.generator(), self.inpainting.observed(x), **SETTINGS[method])


@dataclass(frozen=True)
class Length:
    """Transitions that tune and are thrown away, then draws, one after every `thin` transitions."""

    num_warmup: int
    num_samples: int
    thin: int = 1


@dataclass(frozen=True)
class Outcome:
    """Draws of one method.

    latents: [N, chains, draws, d].  made: the observed pixels that the inputs of the draws give, [N, chains,
    draws, number of them]; None for HMC, which moves the latents alone.  seconds: of the processor.
    """

    problem: Problem
    latents: Tensor
    made: Tensor | None
    warmup_seconds: float
    seconds: float
    acceptance: float
    step_size: float

    def spread(self, number: int) -> Tensor:
        """Indices of so many draws, evenly spaced; of all, if there are fewer."""
        total = self.latents.shape[2]
        return torch.linspace(0, total - 1, min(number, total)).round().long()

    def drawn(self, draws: Tensor, seed: int) -> Tensor:
        """Whole images of some of the draws, missing pixels drawn too.  [k] -> [N, chains, k, D]"""
        return self.problem.inpainting.complete(self.latents[:, :, draws], self._pixels(draws), seeded(seed))

    def means(self, draws: Tensor) -> Tensor:
        """The same images with E[x_m | z] for the missing pixels, without their noise."""
        return self.problem.inpainting.mean(self.latents[:, :, draws], self._pixels(draws))

    def _pixels(self, draws: Tensor) -> Tensor:
        """Images with the observed pixels of some of the draws  [N, chains, k, D]"""
        images = self.problem.images[:, None, None].double()
        images = images.expand(*self.latents.shape[:2], len(draws), -1)
        if self.made is None:
            return images
        images = images.clone()
        images[..., ~self.problem.inpainting.missing] = self.made[:, :, draws]
        return images

    def distance(self) -> float | None:
        """The largest |g(u) − y| of all draws."""
        if self.made is None:
            return None
        observed = self.problem.inpainting.observed(self.problem.images)
        return float((self.made - observed[:, None, None]).abs().max())

    def rmse(self) -> Tensor:
        """Root mean square error of the mean of the missing pixels, for each image  [N]"""
        num_draws, missing = self.latents.shape[2], self.problem.inpainting.missing
        total = sum(self.means(part).sum((1, 2)) for part in torch.arange(num_draws).split(CHUNK))
        error = total / (self.problem.num_chains * num_draws) - self.problem.images
        return error[:, missing].square().mean(-1).sqrt()

    def report(self) -> dict[str, Any]:
        """Diagnostics of the latents of each image, the worst of them, and costs."""
        ess, r_hat = (
            torch.tensor([[float(measure(z.numpy())) for z in image.unbind(-1)] for image in self.latents])
            for measure in (arviz().ess, arviz().rhat)
        )
        least, r_hat = ess.amin(-1), r_hat.nan_to_num(torch.inf)  # nan: never moved
        return {
            "largest_distance": self.distance(),
            "acceptance_rate": self.acceptance,
            "step_size": self.step_size,
            "num_draws": self.latents.shape[2],
            "warmup_cpu_seconds": self.warmup_seconds,
            "cpu_seconds": self.seconds,
            "least_ess": least.tolist(),
            "median_ess": ess.median(-1).values.tolist(),
            "ess_per_cpu_second": float(least.sum()) / self.seconds,
            "worst_r_hat": r_hat.amax(-1).tolist(),
            "rmse_of_missing_pixels": self.rmse().tolist(),
        }


def inpaint(problem: Problem, method: str, length: Length, seed: int, progress: bool = True) -> Outcome:
    """Sample from where warm-up has brought latents of the prior."""
    kernel, initial = beginning(problem, method, seed)
    begin = time.process_time()
    # without a check, because the report has R-hat of every image
    first = sample(kernel, initial, 1, length.num_warmup, length.thin, seed, progress, check=False)
    middle = time.process_time()
    draws = first.resume(length.num_samples - 1, progress)
    return outcome_of(problem, draws, middle - begin, time.process_time() - middle)


def beginning(problem: Problem, method: str, seed: int) -> tuple[Kernel, Tensor]:
    """A kernel, and where its chains start: at latents of the prior."""
    kernel, initial = problem.kernel(method), problem.initial(seed)
    if isinstance(kernel, ConstrainedHMC):
        initial = problem.inpainting.inputs(initial, problem.per_chain)
    return kernel, initial


def outcome_of(problem: Problem, draws: Draws, warmup_seconds: float, seconds: float) -> Outcome:
    inpainting = problem.inpainting
    by_image = draws.position.unflatten(0, (-1, problem.num_chains))
    made = None
    if isinstance(draws.kernel, ConstrainedHMC):
        parts = by_image.split(CHUNK, 2)
        made = torch.cat([inpainting.generator().observed(part) for part in parts], 2)
    assert isinstance(draws.kernel, HMC | ConstrainedHMC)
    return Outcome(
        problem,
        by_image[..., : inpainting.latent_dim].clone(),
        made,
        warmup_seconds,
        seconds,
        float(draws.stats["acceptance_rate"].mean()),
        float(torch.as_tensor(draws.kernel.step_size).mean()),
    )
