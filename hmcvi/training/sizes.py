"""Sizes beyond the memory of the machine, refused before anything of them is made."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Iterator
from typing import NamedTuple

from hmcvi.training.config import GIVEN, Config, ConfigError

BYTES = 4  # of a number in single precision
COPIES = 4  # of a weight in training: itself, its gradient, two moments
TEST_BATCH = 100  # images evaluated at once
WITHOUT_NETWORKS = ("none", "hvae", GIVEN)


class Need(NamedTuple):
    """At least so many bytes, as the product of numbers that the user can change."""

    factors: dict[str, int]
    then: str  # what to do about it

    @property
    def bytes(self) -> int:
        return math.prod(self.factors.values())

    def __str__(self) -> str:
        return " × ".join(f"{number:,} {name}" for name, number in self.factors.items())


def refuse_beyond_memory(config: Config, num_images: int, data_dim: int, memory: int | None = None) -> None:
    """Refuse settings that need more memory than there is.  memory: in bytes; None: of this machine"""
    total = _memory() if memory is None else memory
    for need in _needs(config, num_images, data_dim):
        if need.bytes > total:
            raise ConfigError(
                f"{need} = {need.bytes / 1e9:,.1f} GB, more than the {total / 1e9:,.1f} GB of this machine: "
                f"{need.then}"
            )


def _needs(config: Config, num_images: int, data_dim: int) -> Iterator[Need]:
    """Lower bounds on what a run must hold at once, each of them alone."""
    model, train, evaluation = config.model, config.train, config.evaluate
    numbers = {"bytes each": BYTES}
    if model.encoder is None and model.decoder is None:
        layers = [data_dim, *model.hidden, model.latent_dim]
        weights = 2 * sum(a * b for a, b in itertools.pairwise(layers))
        yield Need(
            {"weights of encoder and decoder": weights, "copies": COPIES, **numbers}, "lower model.hidden"
        )
    if config.chain.kind not in WITHOUT_NETWORKS:
        weights = sum(a * b for a, b in itertools.pairwise(config.chain.hidden))
        yield Need({"weights of the chain": weights, "copies": COPIES, **numbers}, "lower chain.hidden")
    batch = max(1, min(train.batch_size, num_images) // train.accumulate)
    yield Need(
        {
            "images of a batch": batch,
            "samples (objective.num_samples)": config.objective.num_samples,
            "numbers of the widest layer": max(data_dim, model.latent_dim, *model.hidden),
            **numbers,
        },
        "lower train.batch_size or objective.num_samples, or raise train.accumulate",
    )
    images = {"test images at once": min(TEST_BATCH, evaluation.max_images or TEST_BATCH)}
    draws = {"draws (evaluate.num_draws)": evaluation.num_draws, "pixels": data_dim, **numbers}
    samples = {"samples (evaluate.bound_samples)": evaluation.bound_samples}
    yield Need({**images, **samples, **draws}, "lower evaluate.num_draws or evaluate.bound_samples")
    if evaluation.nll == "is":
        yield Need(
            {**images, "samples (evaluate.nll_samples)": evaluation.nll_samples, **numbers},
            "lower evaluate.nll_samples",
        )
    elif evaluation.nll_samples:
        chains = {"chains (evaluate.ais_chains)": evaluation.ais_chains, "pixels": data_dim}
        yield Need({**images, **chains, **numbers}, "lower evaluate.ais_chains")


def _memory() -> int:
    """Of the machine, in bytes; more than any has where it is not known."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return 2**62
