"""Milliseconds per training step against the time its matrix products take on this machine.

    python benchmarks/train_step.py [--no-compile] [--threads N] [--repeats R]

Batch 500, 784 pixels, 20 latents, networks of 200–200: a plain VAE, and three HMC transitions of four
leapfrogs with a learned reverse model, differentiated through. The limit counts matrix products only, at the
speed of a square matrix product measured between the steps of the same run; a differentiated force has six
products per layer. Prints one JSON line: medians in milliseconds, the limit, their ratio, and its spread.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from itertools import pairwise

BATCH, PIXELS, LATENT, HIDDEN, NUM_HMC, NUM_LEAPFROG = 500, 784, 20, 200, 3, 4
SQUARE = 1024


def products(*dims: int) -> int:
    """Multiply-adds of one pass through dense layers dims[0] – dims[1] – …, for the batch."""
    return BATCH * sum(a * b for a, b in pairwise(dims))


def multiply_adds(num_forces: int, num_reverse: int) -> int:
    """Of one training step: forward, backward into weights, backward into inputs that need it."""
    encoder = products(PIXELS, HIDDEN, HIDDEN, 2 * LATENT)
    encoder_step = 3 * encoder - products(PIXELS, HIDDEN)  # images need no gradient
    decoder = products(LATENT, HIDDEN, HIDDEN, PIXELS)
    decoder_step = 6 * num_forces * decoder if num_forces else 3 * decoder
    # the first layer of the reverse model splits: its image part is computed once and serves all transitions
    image_part = 2 * products(PIXELS, HIDDEN) if num_reverse else 0
    reverse = 3 * num_reverse * products(LATENT + 1, HIDDEN, HIDDEN, 2 * LATENT)
    return encoder_step + decoder_step + image_part + reverse


def seconds(work: Callable[[], object], number: int) -> float:
    began = time.perf_counter()
    for _ in range(number):
        work()
    return (time.perf_counter() - began) / number


def measure(compiled: bool, repeats: int) -> dict[str, object]:
    import torch

    from hmcvi.flows import compile_trajectories
    from hmcvi.kernels import hamiltonian_chain
    from hmcvi.models import VAE

    torch.manual_seed(0)
    x = torch.bernoulli(0.3 * torch.rand(BATCH, PIXELS))
    a, b = torch.randn(2, SQUARE, SQUARE)

    def training_step(model: VAE) -> Callable[[], None]:
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)

        def step() -> None:
            optimizer.zero_grad(set_to_none=True)
            (-model.bound(x).mean()).backward()
            optimizer.step()

        return step

    def refined() -> VAE:
        return VAE(PIXELS, LATENT, hamiltonian_chain(LATENT, PIXELS, NUM_HMC, NUM_LEAPFROG))

    chain_work = multiply_adds(NUM_HMC * NUM_LEAPFROG + 1, NUM_HMC)
    rows = {
        "vae": (training_step(VAE(PIXELS, LATENT)), multiply_adds(0, 0), 20),
        "hmcvi_3x4": (training_step(refined()), chain_work, 3),
    }
    if compiled:
        model = refined()
        compile_trajectories(model.chain)
        rows["hmcvi_3x4_compiled"] = (training_step(model), chain_work, 3)
    first = {name: seconds(step, 1) for name, (step, _, _) in rows.items()}
    times: dict[str, list[float]] = {name: [] for name in rows}
    ratios: dict[str, list[float]] = {name: [] for name in rows}
    speeds = []
    for _ in range(repeats):
        for name, (step, work, number) in rows.items():
            step()
            before = seconds(lambda: a @ b, 20)
            took = seconds(step, number)
            product = 0.5 * (before + seconds(lambda: a @ b, 20))
            speeds.append(2 * SQUARE**3 / product / 1e9)
            times[name].append(1e3 * took)
            ratios[name].append(took / (work / SQUARE**3 * product))
    return {
        "benchmark": "train_step",
        "threads": torch.get_num_threads(),
        "matmul_gflops": round(statistics.median(speeds), 1),
        **{
            name: {
                "ms": round(statistics.median(times[name]), 1),
                "ms_spread": [round(min(times[name]), 1), round(max(times[name]), 1)],
                "limit_ms": round(
                    statistics.median(t / r for t, r in zip(times[name], ratios[name], strict=True)), 1
                ),
                "ratio_to_limit": round(statistics.median(ratios[name]), 2),
                "ratio_spread": [round(min(ratios[name]), 2), round(max(ratios[name]), 2)],
                "gflop": round(2 * work / 1e9, 2),
                "first_step_s": round(first[name], 1),
            }
            for name, (_, work, _) in rows.items()
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--no-compile", action="store_true")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--repeats", type=int, default=7)
    args = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = str(args.threads)
    print(json.dumps(measure(not args.no_compile, args.repeats)))


if __name__ == "__main__":
    main()
