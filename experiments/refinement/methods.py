"""Which refinement should I use?  Methods of the field on the same networks, start and time of the processor.

python -m experiments methods --data ROOT         every method that has no point yet
python -m experiments methods iaf --data ROOT     some
python -m experiments methods --report            the table and the figure

Each starts from the same VAE of MNIST with 20 latents (basic-vi-20d of Table 1) and trains all it has,
encoder and decoder too, by the same optimiser for the same time.  Every method and seed is a point,
results/methods/NAME-SEED.json: its own bound, and the likelihood of its decoder by annealed importance
sampling.  The report has the gains over the VAE trained further, image by image.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import torch

from experiments.refinement import points, scores
from experiments.refinement.chains import ABLATION, ENCODER, LONG, PAPER, Settings, chain_config
from experiments.refinement.figure import draw_methods
from experiments.refinement.points import Point, make_points, read_points
from experiments.refinement.training import Recipe, train_for
from experiments.table1.rows import RESULTS, ROOT
from experiments.table1.weights import load_row
from hmcvi.commands.endings import exit_code
from hmcvi.data import load_images
from hmcvi.internal.storage import load, save
from hmcvi.training import ConfigError, InterruptGuard
from hmcvi.training.build import build_chain

START = "basic-vi-20d"
NUM_DRAWS = 5


class Method(NamedTuple):
    """A way to train, and its name in tables."""

    title: str
    chain: Settings
    num_samples: int = 1  # K of the IWAE bound


NONE: Settings = {"kind": "none"}
LANGEVIN: Settings = {"kind": "langevin", "num_hmc": 12, "coordinates": "encoder", "initial_step_size": 0.02}

METHODS = {
    "vae": Method("VAE, trained further", NONE),
    "iwae-5": Method("IWAE, K = 5", NONE, num_samples=5),
    "iwae-50": Method("IWAE, K = 50", NONE, num_samples=50),
    "iaf": Method("inverse autoregressive flow, 2 layers", {"kind": "flow", "flow": "iaf", "num_flows": 2}),
    "hvae": Method("Hamiltonian VAE", {"kind": "hvae", "num_leapfrog": 12, "initial_step_size": 0.05}),
    "ula": Method("ULA", LANGEVIN),
    "mcd": Method("MCD", {**LANGEVIN, "control": "reverse"}),
    "cmcd": Method("CMCD", {**LANGEVIN, "control": "both"}),
    "uha": Method("UHA", {"kind": "annealed", **LONG, **ENCODER, "mass": "global"}),
    "ldvi": Method("LDVI", {"kind": "ldvi", **LONG, **ENCODER, "mass": "global"}),
    "hmcvi": Method("HMCVI as in the paper, 3 × 4", PAPER),
    "informed": Method("HMCVI informed, 12 × 1", ABLATION["informed-12x1-mass"]),
    "annealed": Method("annealed, mass for each image", ABLATION["annealed-mass"]),
    "annealed-informed": Method("annealed, informed reversal", ABLATION["annealed-informed"]),
}


def configure(parser: argparse.ArgumentParser) -> None:
    points.configure(parser, METHODS, ROOT / "results" / "methods", seconds=120.0, images=500, lr=3e-3)


def run(args: argparse.Namespace) -> int:
    return exit_code(lambda: _run(args))


def _run(args: argparse.Namespace) -> int:
    names = [f"{name}-{args.seed}" for name in points.checked(args.names, METHODS)]
    if not args.report:
        torch.set_num_threads(1)
        with InterruptGuard() as guard:
            comparison = Comparison(args)
            make_points(names, args.out, comparison.point, guard)
    return report(args.out)


class Comparison:
    """The images, and how a method is trained and scored on them."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.images = load_images("mnist", args.data, validation=0)
        self.x = scores.binarisations(self.images.test[: args.images], NUM_DRAWS)

    def point(self, name: str) -> Point:
        method = METHODS[name.rpartition("-")[0]]
        torch.manual_seed(self.args.seed)
        model = load_row(START, RESULTS)
        config = chain_config(method.chain)
        model.chain = build_chain(config, model.latent_dim, model.data_dim, compile=True)
        recipe = Recipe(
            self.args.seconds, self.args.lr, "muon", 500, method.num_samples, float(method.num_samples == 1)
        )
        spent = train_for(model, self.images.train, recipe)
        found = {
            "bound": scores.bounds(model, self.x, method.num_samples),
            "log_likelihood": scores.log_likelihoods(model, self.x[0]),
        }
        save({quantity: values.float() for quantity, values in found.items()}, self.args.out / f"{name}.pt")
        return {
            "title": method.title,
            **scores.figures(found["bound"], "bound"),
            **scores.figures(found["log_likelihood"], "log_likelihood"),
            **spent._asdict(),
            "images": self.args.images,
            "recipe": recipe._asdict(),
            "seed": self.args.seed,
            "chain": asdict(config),
        }


def report(out: Path) -> int:
    """Print the table and draw the figure of the points in `out`."""
    found = read_points(sorted(path.stem for path in out.glob("*.json")), out)
    if "vae-0" not in found:
        raise ConfigError(f"{out} has no vae-0.json, with which the methods are compared")
    for name, point in found.items():
        point.update(_gains(out, name))
    sound = {name: point for name, point in found.items() if point["log_likelihood"] >= point["bound"]}
    print(markdown(sound))
    for name in found.keys() - sound.keys():
        print(f"left out: {name}, because its likelihood by annealing is below its own bound")
    draw_methods(sound, out / "figure.png")
    return 0


def _gains(out: Path, name: str) -> dict[str, Any]:
    """Of both figures over the VAE trained further, image by image."""
    ours, plain = (load(out / f"{stem}.pt") for stem in (name, "vae-0"))
    gains: dict[str, Any] = {}
    for quantity in ("bound", "log_likelihood"):
        gains |= scores.gain(ours[quantity].double(), plain[quantity].double(), f"{quantity}_gain")
    return gains


def markdown(found: dict[str, Point]) -> str:
    """One line per point, the best likelihood first."""
    lines = [
        "| method | seed | −bound | gain | NLL (AIS) | gain | gap | steps |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for point in sorted(found.values(), key=lambda point: -point["log_likelihood"]):
        gap = point["log_likelihood"] - point["bound"]
        gains = [
            f"{point[f'{q}_gain']:+.2f} ± {point[f'{q}_gain_se']:.2f}" for q in ("bound", "log_likelihood")
        ]
        lines.append(
            f"| {point['title']} | {point['seed']} | {-point['bound']:.2f} | {gains[0]} "
            f"| {-point['log_likelihood']:.2f} | {gains[1]} | {gap:.2f} | {point['steps']} |"
        )
    return "\n".join(lines)
