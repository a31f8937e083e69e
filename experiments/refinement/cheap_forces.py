"""What do cheap forces buy?  The same annealed chain with full forces and with three kinds of cheap ones.

python -m experiments cheap-forces --data ROOT           all kinds, from the same VAE of MNIST
python -m experiments cheap-forces bf16 --data ROOT      one
python -m experiments cheap-forces --seed 1 --data ROOT  another seed
python -m experiments cheap-forces --errors --data ROOT  how far cheap forces are from full ones, errors.json
python -m experiments cheap-forces --report              the comparison

Encoder, decoder and chain are trained together, once for the same CPU time and once for the same number of
steps.  Each is a point, results/cheap-forces/NAME.json, with its bound of each test image beside it;
differences are paired image by image.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics

import torch

from experiments.refinement import points, scores
from experiments.refinement.chains import ABLATION, chain_config
from experiments.refinement.points import Point, make_points, of_seed, read_points, with_seeds, without_seed
from experiments.refinement.training import Recipe, train_for
from experiments.table1.rows import RESULTS, ROOT
from experiments.table1.weights import load_row
from hmcvi.commands.endings import exit_code
from hmcvi.data import binarize, load_images
from hmcvi.dynamics.forces import Subset, force_of
from hmcvi.internal.context import Randomness
from hmcvi.internal.storage import load, save, save_json
from hmcvi.training import InterruptGuard
from hmcvi.training.build import build_chain

ROW, CHAIN, NUM_DRAWS = "basic-vi-20d", "annealed-mass", 5
FORCES = {"full": "full", "bf16": "bf16", "subset": "subset(392)", "surrogate": "surrogate(64)"}
SIZES = ("bf16", *(f"subset({k})" for k in (98, 196, 392)), *(f"surrogate({r})" for r in (16, 32, 64, 128)))
STEPWISE = "-steps"  # behind the name of a training for a number of steps


def configure(parser: argparse.ArgumentParser) -> None:
    points.configure(parser, FORCES, ROOT / "results" / "cheap-forces", seconds=200.0, images=2000, lr=3e-3)
    parser.add_argument("--errors", action="store_true", help="measure the forces alone, train nothing")
    parser.add_argument(
        "--steps", type=int, default=1000, help="of the trainings of the same number of steps"
    )


def run(args: argparse.Namespace) -> int:
    return exit_code(lambda: _run(args))


def _run(args: argparse.Namespace) -> int:
    names = points.checked(args.names, FORCES)
    if args.errors:
        found = force_errors(args)
        save_json(found, args.out / "errors.json")
        for force, error in found.items():
            print(f"{force}: {error:.3f}")
        return 0
    if not args.report:
        torch.set_num_threads(1)
        each = [of_seed(name + kind, args.seed) for kind in ("", STEPWISE) for name in names]
        with InterruptGuard() as guard:
            make_points(each, args.out, lambda name: _point(name, args), guard)
    return report(args)


def _point(name: str, args: argparse.Namespace) -> Point:
    torch.manual_seed(args.seed)
    images = load_images("mnist", args.data)
    model = load_row(ROW, RESULTS)
    kind = without_seed(name)
    config = dataclasses.replace(chain_config(ABLATION[CHAIN]), force=FORCES[kind.removesuffix(STEPWISE)])
    model.chain = build_chain(config, model.latent_dim, model.data_dim, compile=True)
    steps = args.steps if kind.endswith(STEPWISE) else None
    recipe = Recipe(args.seconds, args.lr, optimizer="muon", steps=steps)
    spent = train_for(model, images.train, recipe)
    found = scores.bounds(model, scores.binarisations(images.test[: args.images], NUM_DRAWS))
    save({"bounds": found.float()}, args.out / f"{name}-bounds.pt")
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


@torch.no_grad()
def force_errors(args: argparse.Namespace) -> dict[str, float]:
    """‖σ (f̃ − f)‖ / ‖σ f‖ at draws of the encoder's posteriors, σ its scales, before any training."""
    torch.manual_seed(args.seed)
    x = binarize(load_images("mnist", args.data).test[: args.images])
    target = load_row(ROW, RESULTS).posterior(x)
    assert target.base is not None
    loc, scale = target.base._given
    z = loc + scale * torch.randn_like(loc)
    full, errors = target.value_and_grad(z)[1], {}
    for name in SIZES:
        approximate = force_of(name)
        if isinstance(approximate, Subset):
            approximate = approximate.draw(Randomness())
        assert approximate is not None
        other = approximate(target).value_and_grad(z)[1]
        errors[name] = float((scale * (other - full)).norm() / (scale * full).norm())
    return errors


def report(args: argparse.Namespace) -> int:
    """Print bounds and costs of each kind, and what cheap forces gain over full ones with the same seed."""
    for kind, what in (("", "the same CPU time"), (STEPWISE, "the same number of steps")):
        print(what)
        for name in FORCES:
            found = read_points(with_seeds([name + kind], args.out), args.out)
            for each, point in found.items():
                spent = f"{point['steps']} steps in {point['cpu_seconds']:.0f} CPU s"
                print(f"  {each}: −bound {-point['bound']:.2f}, {spent}{_gain(each, kind, args)}")
            if len(found) > 1:
                print(
                    f"  {name}: −bound {-statistics.mean(p['bound'] for p in found.values()):.2f} on average"
                )
    return 0


def _gain(name: str, kind: str, args: argparse.Namespace) -> str:
    """Over the full forces of the same training, with the error over images."""
    full = name.replace(without_seed(name), "full" + kind)
    paths = [args.out / f"{each}-bounds.pt" for each in (name, full)]
    if name == full or not all(path.exists() for path in paths):
        return ""
    ours, theirs = (load(path)["bounds"].double() for path in paths)
    gained = scores.gain(ours, theirs, "gain")
    return f", {gained['gain']:+.3f} ± {gained['gain_se']:.3f} over full"
