"""What must a reverse model know?  Chains of twelve forces that refine the same frozen VAE.

python -m experiments informed --data ROOT            every chain that has no point yet
python -m experiments informed annealed --data ROOT   some
python -m experiments informed --report               the table and the figures
python -m experiments informed --row basic-vi-2d      another VAE of Table 1, or the folder of a run

Only the chain is trained, each for the same time of the processor.  Every chain is a point, results/informed/
ROW/NAME.json: its bound on test images, what it gains over the plain VAE image by image, and the share of the
gap between the plain bound and the likelihood (by annealed importance sampling, or exactly for two latents)
that it closes.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from experiments.refinement import points, scores
from experiments.refinement.chains import ABLATION, chain_config
from experiments.refinement.figure import draw_ablation, draw_curves
from experiments.refinement.points import Point, make_points, read_points
from experiments.refinement.training import Curve, Recipe, train_for
from experiments.table1.likelihood import exact_nll
from experiments.table1.rows import RESULTS, ROOT
from hmcvi.chain import Chain
from hmcvi.commands.endings import exit_code
from hmcvi.data import load_images
from hmcvi.models import VAE
from hmcvi.training import ConfigError, InterruptGuard
from hmcvi.training.build import build_chain
from hmcvi.training.stored_run import load_run

LIKELIHOOD = "likelihood"  # the point of the frozen VAE itself
NUM_DRAWS = 5
NUM_WATCHED = 500  # images whose bound is followed during training


def configure(parser: argparse.ArgumentParser) -> None:
    out = ROOT / "results" / "informed"
    points.configure(parser, [LIKELIHOOD, *ABLATION], out, seconds=100.0, images=2000, lr=1e-2)
    parser.add_argument(
        "--row", default="basic-vi-20d", help="the plain VAE to refine: of Table 1, or the folder of a run"
    )
    parser.add_argument(
        "--stride", type=int, default=1, help="every so many test images, where they are ordered by class"
    )


def run(args: argparse.Namespace) -> int:
    return exit_code(lambda: _run(args))


def _run(args: argparse.Namespace) -> int:
    names, out = points.checked(args.names, [LIKELIHOOD, *ABLATION]), args.out / Path(args.row).name
    if not args.report:
        torch.set_num_threads(1)
        study = Study(args)
        with InterruptGuard() as guard:
            make_points([points.of_seed(name, args.seed) for name in names], out, study.point, guard)
    return report(out)


class Study:
    """The frozen VAE, its test images and their plain bounds."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.folder = Path(args.row) if Path(args.row).is_dir() else RESULTS / args.row
        self.images = load_images(load_run(self.folder).config.data.name, args.data)
        self.x = scores.binarisations(self.images.test[:: args.stride][: args.images], NUM_DRAWS)
        self.plain_bounds = scores.bounds(self.frozen(), self.x)

    def frozen(self) -> VAE:
        """Encoder and decoder, which are not trained."""
        return load_run(self.folder).model.requires_grad_(False)

    def point(self, name: str) -> Point:
        torch.manual_seed(self.args.seed)
        model = self.frozen()
        settings = {
            "row": self.folder.name, "images": self.args.images, "stride": self.args.stride,
            "draws": NUM_DRAWS,
        }  # fmt: skip
        chain = points.without_seed(name)
        if chain == LIKELIHOOD:
            return settings | self._likelihood(model)
        config = chain_config(ABLATION[chain])
        model.chain = build_chain(config, model.latent_dim, model.data_dim, compile=True)
        recipe, curve = Recipe(self.args.seconds, self.args.lr), self._curve(model)
        spent = train_for(model, self.images.train, recipe, curve)
        found = scores.bounds(model, self.x)
        return {
            **settings,
            **scores.figures(found, "bound"),
            **scores.gain(found, self.plain_bounds, "gain"),
            **spent._asdict(),
            "recipe": recipe._asdict(),
            "seed": self.args.seed,
            "chain": asdict(config),
            "curve": curve.points,
        }

    def _curve(self, model: VAE) -> Curve:
        """What the model gains over the plain VAE on some of the images."""
        x = self.x[:1, :NUM_WATCHED]
        plain = scores.bounds(self.frozen(), x)
        return Curve(lambda: scores.gain(scores.bounds(model, x), plain, "gain"))

    def _likelihood(self, model: VAE) -> dict[str, Any]:
        """log p(x) of the first binarisation of each image, and what lies between it and the plain bound."""
        model.chain = Chain()
        if model.latent_dim == 2:
            found = -torch.tensor([exact_nll(model, image) for image in self.x[0]], dtype=torch.float64)
        else:
            found = scores.log_likelihoods(model, self.x[0])
        return {
            **scores.figures(self.plain_bounds, "bound"),
            **scores.figures(found, "log_likelihood"),
            **scores.gain(found, scores.bounds(model, self.x[:1].expand_as(self.x)), "gap"),
        }


def report(out: Path) -> int:
    """Print the table and draw the figures of the points in `out`."""
    found = read_points(points.with_seeds([LIKELIHOOD, *ABLATION], out), out)
    if LIKELIHOOD not in found:
        raise ConfigError(f"{out} has no {LIKELIHOOD}.json, from which shares of the gap are computed")
    print(markdown(found))
    draw_ablation(found, out / "figure.png")
    if any("curve" in point for point in found.values()):
        draw_curves(found, out / "curves.png")
    return 0


def markdown(found: dict[str, Point]) -> str:
    """One line per chain and seed."""
    lines = [
        "| chain | seed | T × L | coordinates | reverse model sees | mass | −bound | gain | share of gap |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    gap = found[LIKELIHOOD]["gap"]
    for name, point in found.items():
        if name == LIKELIHOOD:
            continue
        chain = point["chain"]
        seen = "–" if chain["kind"] == "annealed" else ", ".join(chain["reverse_sees"])
        lines.append(
            f"| {points.without_seed(name)} | {point['seed']} | {chain['num_hmc']} × {chain['num_leapfrog']} "
            f"| {chain['coordinates']} | {seen} | {chain['mass']} | {-point['bound']:.2f} "
            f"| {point['gain']:.2f} ± {point['gain_se']:.2f} | {100 * point['gain'] / gap:.0f} % |"
        )
    return "\n".join(lines)
