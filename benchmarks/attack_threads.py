"""Many threads at once: the results of one, and nothing that they share is changed."""

from __future__ import annotations

import random
import threading
import warnings
from pathlib import Path
from typing import Any

from benchmarks.attack_parts import Clock, Count


def attack(rng: random.Random, folder: Path, clock: Clock) -> Count:
    """Sampling of a density that validates, and evidence, in three threads that start together."""
    import torch
    from torch.distributions import Distribution, Independent, Normal

    import hmcvi
    from hmcvi.kernels import HMC

    def falling(z: Any) -> Any:
        return Normal(0.0, z[..., 0].exp(), validate_args=True).log_prob(z[..., 1]) - z[..., 0].square()

    def sampled(seed: int) -> bytes:
        kernel = HMC(hmcvi.Density(falling), 0.5, 3)
        draws = hmcvi.sample(kernel, torch.ones(4, 2), 20, 10, seed=seed, progress=False, check=False)
        return draws.position.numpy().tobytes()

    def estimated(seed: int) -> bytes:
        base = Independent(Normal(torch.zeros(2), 2.0), 1)
        return (
            hmcvi.evidence.ais(base, hmcvi.Density(_normal), 10, 8, seed=seed, progress=False)
            .log_z.numpy()
            .tobytes()
        )

    works, count = (sampled, estimated), Count()
    validates = Distribution._validate_args
    Distribution.set_default_validate_args(True)
    try:
        while clock():
            jobs = [(rng.choice(works), rng.randrange(2**64)) for _ in range(3)]
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                expected = [work(seed) for work, seed in jobs]
                before = torch.get_rng_state()
                found = _together(jobs)
            failure = None
            if found != expected:
                failure = f"other results in threads: {[work.__name__ for work, _ in jobs]}"
            elif not Distribution._validate_args or not torch.equal(before, torch.get_rng_state()):
                failure = "threads have changed what all share"
            count.add("three threads", failure)
    finally:
        Distribution.set_default_validate_args(validates)
    return count


def _together(jobs: list[tuple[Any, int]]) -> list[object]:
    found: list[object] = [None] * len(jobs)
    gate = threading.Barrier(len(jobs))

    def run(place: int) -> None:
        work, seed = jobs[place]
        gate.wait()
        try:
            found[place] = work(seed)
        except BaseException as error:
            found[place] = error

    threads = [threading.Thread(target=run, args=(place,)) for place in range(len(jobs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def _normal(z: Any) -> Any:
    return -0.5 * z.square().sum(-1)
