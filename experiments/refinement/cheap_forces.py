"""What do cheap forces buy?  The same annealed chain with forces in single precision and in bfloat16.

python -m experiments cheap-forces --data ROOT        both, from the same VAE of MNIST, for the same CPU time
python -m experiments cheap-forces bf16 --data ROOT   one
python -m experiments cheap-forces --report           the comparison

Encoder, decoder and chain are trained together.  Every kind of force is a point, results/cheap-forces/NAME
.json, with its bound of each test image beside it; differences are paired image by image.
"""

from __future__ import annotations

import argparse
import dataclasses

import torch

from experiments.refinement import points, scores
from experiments.refinement.chains import ABLATION, chain_config
from experiments.refinement.points import Point, make_points, read_points
from experiments.refinement.training import Recipe, train_for
from experiments.table1.rows import RESULTS, ROOT
from experiments.table1.weights import load_row
from hmcvi.commands.endings import exit_code
from hmcvi.data import load_images
from hmcvi.flows.force import FORCES
from hmcvi.internal.storage import load, save
from hmcvi.training import InterruptGuard
from hmcvi.training.build import build_chain

ROW, CHAIN, NUM_DRAWS = "basic-vi-20d", "annealed-mass", 5


def configure(parser: argparse.ArgumentParser) -> None:
    points.configure(parser, FORCES, ROOT / "results" / "cheap-forces", seconds=200.0, images=2000, lr=3e-3)


def run(args: argparse.Namespace) -> int:
    return exit_code(lambda: _run(args))


def _run(args: argparse.Namespace) -> int:
    names = points.checked(args.names, FORCES)
    if not args.report:
        torch.set_num_threads(1)
        with InterruptGuard() as guard:
            make_points(names, args.out, lambda force: _point(force, args), guard)
    return report(args)


def _point(force: str, args: argparse.Namespace) -> Point:
    torch.manual_seed(args.seed)
    images = load_images("mnist", args.data)
    model = load_row(ROW, RESULTS)
    config = dataclasses.replace(chain_config(ABLATION[CHAIN]), force=force)
    model.chain = build_chain(config, model.latent_dim, model.data_dim, compile=True)
    recipe = Recipe(args.seconds, args.lr, optimizer="muon")
    spent = train_for(model, images.train, recipe)
    found = scores.bounds(model, scores.binarisations(images.test[: args.images], NUM_DRAWS))
    save({"bounds": found}, args.out / f"{force}-bounds.pt")
    return {
        **scores.figures(found, "bound"),
        **spent._asdict(),
        "row": ROW,
        "images": args.images,
        "draws": NUM_DRAWS,
        "recipe": recipe._asdict(),
        "seed": args.seed,
        "chain": dataclasses.asdict(config),
    }


def report(args: argparse.Namespace) -> int:
    """Print bounds and steps of each kind, and what the cheap one gains over the full one."""
    found = read_points(list(FORCES), args.out)
    for name, point in found.items():
        spent = f"{point['steps']} steps in {point['cpu_seconds']:.0f} CPU s"
        print(f"{name}: −bound {-point['bound']:.2f}, {spent}")
    if len(found) == len(FORCES):
        bounds = {name: load(args.out / f"{name}-bounds.pt")["bounds"] for name in found}
        gained = scores.gain(bounds["bf16"], bounds["full"], "gain")
        print(f"bf16 over full, paired: {gained['gain']:+.3f} ± {gained['gain_se']:.3f}")
    return 0
