"""Constrained HMC against HMC, in-painting images of which the top quarter is observed.

--run is a trained Gaussian VAE; docs/inpainting.md has the command for the authors' 50 latents on MNIST.
Without it one of eight latents is trained on the bundled digits first, in about a minute.  Both methods start
from the same latents of the prior and have the authors' settings, but for step sizes, which warm-up tunes to
the model.  Written are result.json (R-hat, effective draws per second of the processor, the largest distance
of observed pixels) and figure.png: consecutive draws of constrained HMC, every 40th of HMC.  Draws are kept
in files as they come: where the run is stopped it goes on when started again.
[Graham & Storkey 2017, §7.3, figure 4]
"""

from __future__ import annotations

import argparse
from pathlib import Path

from experiments.digits import trained_on_digits
from experiments.inpainting.figure import draw
from experiments.report import configure_with_run, write
from experiments.resumable import configure_parts, load_clocked, sample_clocked
from hmcvi.commands.inpaint import open_problem
from hmcvi.commands.inpaint_chains import METHODS, SETTINGS, Length, Outcome, Problem, beginning, outcome_of

MASK = "bottom:0.75"
NUM_IMAGES, NUM_CHAINS = 6, 4
LENGTHS = {"constrained": Length(20, 600), "hmc": Length(200, 8000)}
SHOWN_EVERY = {"constrained": 1, "hmc": 40}  # transitions, as the authors do
QUICK_LENGTHS = {"constrained": Length(3, 20), "hmc": Length(20, 20)}


def configure(parser: argparse.ArgumentParser) -> None:
    configure_with_run(parser, "Gaussian")
    configure_parts(parser, tuple(METHODS))


def run(args: argparse.Namespace) -> int:
    folder = args.run or trained_on_digits("gaussian-vae.yaml", args.out, args.seed, args.quick)
    problem, shape = open_problem(folder, args.data, MASK, NUM_IMAGES, NUM_CHAINS, args.seed)
    problem.check("constrained")
    lengths = QUICK_LENGTHS if args.quick else LENGTHS
    outcomes = {}
    for method in METHODS if args.only is None else (args.only,):
        length = None if args.report else lengths[method]
        outcomes[method] = run_of(problem, method, length, args.seed, args.out / f"{method}.pt")
    if args.only is not None:
        return 0
    reports = {
        method: {
            **outcome.report(),
            "settings": SETTINGS[method],
            "num_warmup": lengths[method].num_warmup,
            "shown_every": 1 if args.quick else SHOWN_EVERY[method],
        }
        for method, outcome in outcomes.items()
    }
    settings = {
        "seed": args.seed,
        "mask": MASK,
        "num_images": NUM_IMAGES,
        "num_chains": NUM_CHAINS,
        "latent_dim": problem.inpainting.latent_dim,
    }
    figure = write(args.out, {"settings": settings, "shape": shape, "methods": reports})
    draw(problem, outcomes, reports, shape, figure)
    return 0


def run_of(problem: Problem, method: str, length: Length | None, seed: int, file: Path) -> Outcome:
    """Sample, or go on from the draws in `file`; read them if no length is given.

    The first draw belongs to warm-up.
    """
    kernel, initial = beginning(problem, method, seed)
    if length is None:
        draws, seconds = load_clocked(file, kernel)
    else:
        sizes = length.num_samples, seed, file, length.num_warmup
        draws, seconds = sample_clocked(kernel, initial, *sizes)
    warmup, total = (float(seconds[index]) * len(initial) for index in (0, -1))
    return outcome_of(problem, draws, warmup, total - warmup)
