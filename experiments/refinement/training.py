"""Training for a given time of the processor, or number of steps, so that methods of unequal cost can be
compared."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from hmcvi.data import binarize
from hmcvi.models import VAE
from hmcvi.objectives import Bound
from hmcvi.training.averaging import WeightAverage
from hmcvi.training.optimizers import build_optimizers, learning_rate

PARTS = 1000  # of the time, for the schedule
WARMUP = 30  # of these, in which the learning rate rises
CLIP_NORM = 10.0
AVERAGE = 0.98
WATCHED = (
    0.01,
    0.02,
    0.05,
    0.1,
    0.2,
    0.3,
    0.5,
    0.7,
    1.0,
)  # parts of the time after which a model is looked at


class Recipe(NamedTuple):
    """How a model is trained."""

    seconds: float  # of the processor, not counting what compilation takes
    lr: float
    optimizer: str = "adam"
    batch_size: int = 250
    num_samples: int = 1  # K
    alpha: float = 1.0  # Rényi order: 1 is the ELBO, 0 the IWAE bound
    steps: int | None = None  # in place of the seconds

    def done(self, steps: int, spent: float) -> float:
        """The part of the training that is done after so many steps and seconds."""
        return spent / self.seconds if self.steps is None else steps / self.steps


class Spent(NamedTuple):
    """What a training took."""

    steps: int
    cpu_seconds: float
    skipped: int  # steps whose gradient was not finite


class Curve:
    """What `measure` says of a model on the way; neither its time nor its random numbers are of training."""

    def __init__(self, measure: Callable[[], dict[str, Any]]) -> None:
        self.measure, self.points = measure, list[dict[str, Any]]()

    def look(self, spent: float, part: float, average: WeightAverage) -> float:
        """Measure the averaged weights if it is time to; the seconds that took."""
        if len(self.points) == len(WATCHED) or part < WATCHED[len(self.points)]:
            return 0.0
        began = time.process_time()
        with average.in_place():
            self.points.append({"cpu_seconds": spent, **self.measure()})
        return time.process_time() - began


def train_for(model: VAE, images: Tensor, recipe: Recipe, curve: Curve | None = None) -> Spent:
    """Climb the bound on binarised images [N, D] with the parameters that require gradients.

    The learning rate falls by half a cosine over the time, and the averaged weights are kept.
    """
    trained = nn.ParameterList(p for p in model.parameters() if p.requires_grad)
    optimizers = build_optimizers(trained, recipe.optimizer, recipe.lr)
    average, objective = WeightAverage(trained, AVERAGE), Bound(recipe.alpha)
    steps = skipped = 0
    model.train()
    _gradient_norm(model, trained, objective, images, recipe)  # compiles
    began = time.process_time()
    while (part := recipe.done(steps, spent := time.process_time() - began)) < 1:
        finite = math.isfinite(_gradient_norm(model, trained, objective, images, recipe))
        rate = learning_rate(recipe.lr, "cosine", int(PARTS * part), PARTS, WARMUP)
        for optimizer in optimizers if finite else []:
            for group in optimizer.param_groups:
                group["lr"] = rate
            optimizer.step()
        average.update()
        steps, skipped = steps + 1, skipped + (not finite)
        if curve is not None:
            spent = time.process_time() - began
            began += curve.look(spent, recipe.done(steps, spent), average)
    average.load()
    model.eval()
    return Spent(steps, spent, skipped)


def _gradient_norm(
    model: VAE, trained: nn.ParameterList, objective: Bound, images: Tensor, recipe: Recipe
) -> float:
    """Put the clipped gradient of minus the bound of a random batch into the parameters; its norm."""
    x = binarize(images[torch.randint(len(images), (recipe.batch_size,))])
    trained.zero_grad(set_to_none=True)
    bound = objective(model.weights(x, recipe.num_samples))
    finite = bound.isfinite()
    if not finite.any():
        return math.nan
    (-bound[finite].mean()).backward()
    return nn.utils.clip_grad_norm_(trained.parameters(), CLIP_NORM).item()
