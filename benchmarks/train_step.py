"""Milliseconds per training step against matrix products on this machine, and against pythae.

Batch 500, 784 pixels, 20 latents, networks of 200–200: a plain VAE, IWAE with five samples, a Hamiltonian VAE
of twelve leapfrogs, and three HMC transitions of four leapfrogs with a learned reverse model, by full and by
cheap forces, all differentiated through.  The limit counts matrix products only, those of full forces, at the
speed of a square one measured between the steps of the same run; a differentiated force has six products per
layer.  pythae's Hamiltonian VAE computes two forces per leapfrog and treats them as constants;
`hvae_12_differentiated` is the same with its forces kept in the graph.  Each library has a process of its
own, and their steps take turns.  Processors that only emulate bfloat16 leave its step out.  One record:
milliseconds, the limit, and ratios.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from itertools import pairwise

from benchmarks.measuring import Record, quickly, ratios, repeatable, spread, take_turns
from benchmarks.train_step_engines import (
    CHEAP_FORCES,
    HIDDEN,
    LATENT,
    NUM_HMC,
    NUM_LEAPFROG,
    PIXELS,
    SAMPLES,
    STEPS,
)
from benchmarks.workers import add_peer_python, idle_cores, worker

CHEAP = tuple(f"hmcvi_3x4_{force}_compiled" for force in CHEAP_FORCES)
# (ours, what it is divided by): the most it should be
AIMS = {
    ("hmcvi_3x4_compiled", "hmcvi_vae"): 11.0,
    ("hmcvi_3x4_compiled", "pythae_hvae_12"): 1.0,
    ("hmcvi_3x4_compiled", "pythae_hvae_12_differentiated"): 0.45,
    **{(cheap, "pythae_hvae_12"): 0.7 for cheap in CHEAP},
}
LIMIT_AIMS = {"hmcvi_3x4_compiled": 1.15, **dict.fromkeys(CHEAP, 1.0)}
COMPARED = {
    "hmcvi_vae": ("pythae_vae",),
    "hmcvi_iwae_5": ("pythae_iwae_5",),
    "hmcvi_hvae_12": ("pythae_hvae_12", "pythae_hvae_12_differentiated"),
    **dict.fromkeys(
        ("hmcvi_3x4", "hmcvi_3x4_compiled", *CHEAP),
        ("hmcvi_vae", "pythae_vae", "pythae_hvae_12", "pythae_hvae_12_differentiated"),
    ),
}


def products(*dims: int) -> int:
    """Multiply-adds of one pass of one image through dense layers dims[0] – dims[1] – …"""
    return sum(a * b for a, b in pairwise(dims))


def multiply_adds(num_forces: int = 0, num_reverse: int = 0, num_samples: int = 1) -> int:
    """Per image of one step: forward, backward into weights, backward into inputs that need it."""
    encoder = 3 * products(PIXELS, HIDDEN, HIDDEN, 2 * LATENT) - products(PIXELS, HIDDEN)  # not into images
    decoder = (6 * num_forces or 3 * num_samples) * products(LATENT, HIDDEN, HIDDEN, PIXELS)
    # the first layer of the reverse model splits: its image part is computed once and serves all transitions
    image_part = 2 * products(PIXELS, HIDDEN) if num_reverse else 0
    reverse = 3 * num_reverse * products(LATENT + 1, HIDDEN, HIDDEN, 2 * LATENT)
    return encoder + decoder + image_part + reverse


CHAIN = multiply_adds(NUM_HMC * NUM_LEAPFROG + 1, NUM_HMC)
WORK = {
    "hmcvi_vae": multiply_adds(),
    "hmcvi_iwae_5": multiply_adds(num_samples=SAMPLES),
    "hmcvi_hvae_12": multiply_adds(NUM_HMC * NUM_LEAPFROG + 1),
    "hmcvi_3x4": CHAIN,
    "hmcvi_3x4_compiled": CHAIN,
    **dict.fromkeys(CHEAP, CHAIN),  # the products of full forces, at the speed of single precision
}


def configure(parser: argparse.ArgumentParser) -> None:
    repeatable(parser, 9)
    parser.add_argument("--no-compile", action="store_true")
    add_peer_python(parser)
    quickly(parser)


def run(args: argparse.Namespace) -> Iterator[Record]:
    from hmcvi.dynamics.forces import has_bfloat16

    batch, run_seconds = (10, 0.01) if args.quick else (500, 0.5)
    cores = idle_cores(args.threads)
    pythons = {"hmcvi": sys.executable, "pythae": args.peer_python}
    first: dict[str, float] = {}
    versions: dict[str, str] = {}
    works = {}
    with ExitStack() as stack:
        for library in (name for name, python in pythons.items() if python is not None):
            names = [name for name in STEPS[library] if not (args.no_compile and name.endswith("compiled"))]
            if not has_bfloat16():
                names = [name for name in names if "bf16" not in name]
            settings = (library, batch, run_seconds, *names)
            engine = stack.enter_context(
                worker("train_step_engines", *settings, cores=cores, python=pythons[library])
            )
            versions |= engine.start["versions"]
            for name in names:
                works[f"{library}_{name}"] = partial(engine.ask, name)
                first[f"{library}_{name}"] = engine.start["first_step_s"][name]
        runs = take_turns(works, args.repeats)
    sizes = {"threads": args.threads, "batch": batch, "repeats": args.repeats}
    yield {**sizes, **record(runs, batch), "first_step_s": first, "versions": versions}


def record(runs: dict[str, list[Record]], batch: int) -> Record:
    times = {name: [run["seconds"] for run in own] for name, own in runs.items()}
    limits = {
        name: [batch * WORK[name] * run["multiply_add_seconds"] for run in runs[name]]
        for name in WORK
        if name in runs
    }
    speeds = [2e-9 / run["multiply_add_seconds"] for own in runs.values() for run in own]
    return {
        "matmul_gflops": spread(speeds, 1),
        "ms": {name: spread(1e3 * t for t in own) for name, own in times.items()},
        "limit_ms": {name: spread(1e3 * t for t in own) for name, own in limits.items()},
        "over_limit": {
            name: spread(ratios(times[name], own), at_most=LIMIT_AIMS.get(name))
            for name, own in limits.items()
        },
        "ratios": {
            f"{ours}/{other}": spread(ratios(times[ours], times[other]), at_most=AIMS.get((ours, other)))
            for ours, others in COMPARED.items()
            for other in others
            if ours in times and other in times
        },
        "others": round(max(run["others"] for own in runs.values() for run in own), 2),
    }
