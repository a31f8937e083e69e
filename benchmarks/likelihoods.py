"""Likelihoods of images by annealed importance sampling, and how long ten thousand of them would take.

A decoder 20–200–200–784 with random weights, binary images at random, 16 chains an image: what `hmcvi
evidence` does by default, pilot runs included, in batches, by one process with one thread on each core.  The
limit is the time of the products that all forces need, one forward and one backward for each layer, at the
speed of a square matrix product measured between the runs.  One record: seconds of the clock and of the
processors, minutes that 10,000 images would take with these processes, and the share of matmul speed.
"""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import ExitStack

from benchmarks.annealing import FORCE
from benchmarks.kernel_targets import LATENT, PIXELS
from benchmarks.measuring import Record, matmul_clock, quickly, spread, timed
from benchmarks.workers import serve, worker

CHAINS, ALL_IMAGES, AIM = 16, 10_000, 8.0  # minutes


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--images", type=int, default=500, metavar="N")
    parser.add_argument("--temperatures", type=int, default=500, metavar="K")
    parser.add_argument("--batch", type=int, default=100, metavar="B", help="images at once")
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--repeats", type=int, default=3)
    quickly(parser)


def run(args: argparse.Namespace) -> Iterator[Record]:
    images, temperatures, batch = (4, 5, 2) if args.quick else (args.images, args.temperatures, args.batch)
    cores = sorted(os.sched_getaffinity(0))
    share = -(-images // args.processes)
    with ExitStack() as stack:
        workers = [
            stack.enter_context(
                worker("likelihoods", share, temperatures, batch, cores=[cores[i % len(cores)]])
            )
            for i in range(args.processes)
        ]
        rounds = []
        for seed in range(args.repeats):
            for one in workers:
                one.begin(seed)
            rounds.append([one.end() for one in workers])
    done = share * args.processes
    seconds = [max(answer["seconds"] for answer in answers) for answers in rounds]
    used = [sum(answer["cpu_seconds"] for answer in answers) for answers in rounds]
    limits = [done * CHAINS * temperatures * FORCE * answers[0]["multiply_add_seconds"] for answers in rounds]
    yield {
        "images": done,
        "chains": CHAINS,
        "temperatures": temperatures,
        "batch": batch,
        "processes": args.processes,
        "repeats": args.repeats,
        "seconds": spread(seconds),
        "cpu_seconds": spread(used),
        "minutes_of_10,000_images": spread([s * ALL_IMAGES / done / 60 for s in seconds], at_most=AIM),
        "cpu_minutes_of_10,000_images": spread([s * ALL_IMAGES / done / 60 for s in used]),
        "share_of_matmul_speed": spread([limit / s for limit, s in zip(limits, used, strict=True)]),
        "median_ess": spread([answer["ess"] for answers in rounds for answer in answers], 1),
        "others": round(max(answer["others"] for answers in rounds for answer in answers), 2),
    }


def main(images: int, temperatures: int, batch: int) -> None:
    import torch

    from hmcvi.evidence import EvidenceWarning, ais
    from hmcvi.models import VAE

    warnings.simplefilter("ignore", EvidenceWarning)
    torch.manual_seed(0)
    model = VAE(PIXELS, LATENT).requires_grad_(False)
    x = torch.rand(images, PIXELS).bernoulli()
    clock = matmul_clock(0.3)

    def annealed(x: torch.Tensor, temperatures: int, seed: int) -> list[float]:
        found: list[float] = []
        for part in x.split(batch):
            base, target = model.encode(part), model.posterior(part)
            evidence = ais(base, target, temperatures, CHAINS, schedule="adaptive", seed=seed, progress=False)
            found += evidence.per_item.ess.tolist()
        return found

    def answer(line: str) -> Record:
        before = clock()
        ess, times = timed(lambda: annealed(x, temperatures, int(line)))
        return {
            **times,
            "ess": sorted(ess)[len(ess) // 2],
            "multiply_add_seconds": (before + clock()) / 2,
        }

    annealed(x[:batch], 5, 0)
    serve({}, answer)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:4]))
