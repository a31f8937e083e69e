"""Fill in missing pixels of test images with a trained variational autoencoder.

hmcvi inpaint runs/NAME                               the lower halves of four test images
hmcvi inpaint runs/NAME --mask random:0.9 --images 8  nine pixels of ten, of eight images
hmcvi inpaint runs/NAME --mask hole.png --method hmc  the white pixels of a picture

Masks name what is MISSING: top, bottom, left or right is that half of the image, random is half of the
pixels, the same for all images, bottom:0.75 and the like are another fraction.  In a PNG file of the size of
the images white pixels are missing, black ones observed.

Methods: hmc samples the latents z given the observed pixels, by HMC on p(z | observed); constrained moves z
and the pixels' noise along the surface of those that give the observed pixels exactly, by constrained HMC.
Missing pixels are then drawn from the decoder.  Both are exact in the limit of many draws and should agree.
Constrained HMC needs a Gaussian likelihood: binary pixels leave no surface to follow.

Written are figure.png, result.json and samples.pt (see docs/inpainting.md).
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch

from hmcvi.commands.images import held_out_images, open_run
from hmcvi.commands.inpaint_chains import METHODS, SETTINGS, Length, Outcome, Problem, inpaint
from hmcvi.commands.inpaint_figure import draw_grid
from hmcvi.data.masks import missing_pixels
from hmcvi.internal.seeds import LARGEST
from hmcvi.internal.storage import save, save_json
from hmcvi.models import Inpainting
from hmcvi.sampling.diagnostics import MAX_RHAT
from hmcvi.training import ConfigError

SAVED = 100  # draws of each image in samples.pt
WARMUP = {"constrained": 50, "hmc": 300}
THIN = {"constrained": 1, "hmc": 10}  # HMC's transitions are much cheaper


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", type=Path, help="folder that `python train.py` made")
    parser.add_argument(
        "--mask", default="bottom", help="what is missing: top, bottom, left, right, random, with :FRACTION, "
        "or a PNG file, white = missing (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--method", choices=["constrained", "hmc", "both"],
        help="default: both for a Gaussian likelihood, hmc for a Bernoulli one",
    )  # fmt: skip
    parser.add_argument("--images", metavar="N", type=int, default=4, help="the first N of the test set (4)")
    parser.add_argument("--samples", metavar="S", type=int, default=100, help="draws of each chain (100)")
    parser.add_argument(
        "--warmup", metavar="W", type=int, help="transitions before them (50 if constrained, 300 by HMC)"
    )
    parser.add_argument("--chains", metavar="C", type=int, default=4, help="chains of each image (4)")
    parser.add_argument("--out", metavar="DIR", type=Path, help="folder for the results (RUN/inpainting)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--data", metavar="ROOT", help="folder of the data files, if it has moved since")


def run(args: argparse.Namespace) -> int:
    for name, least in {"images": 1, "samples": 4, "warmup": 0, "chains": 2, "seed": 0}.items():
        if (value := getattr(args, name)) is not None and value < least:
            raise ConfigError(f"--{name} must be at least {least}, got {value}")
    if args.seed >= LARGEST:  # one of two streams has the next one
        raise ConfigError(f"--seed must be below 2⁶⁴ − 1, got {args.seed}")
    out = args.run / "inpainting" if args.out is None else args.out
    problem, shape = open_problem(args.run, args.data, args.mask, args.images, args.chains, args.seed)
    methods = chosen_methods(args.method, problem)
    try:  # before the work, not after it
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"cannot make the folder {out}: {error.strerror}") from None
    outcomes, reports = {}, {}
    for method in methods:
        warmup = WARMUP[method] if args.warmup is None else args.warmup
        length = Length(warmup, args.samples, THIN[method])
        print(f"{METHODS[method]}: {args.images} images, {args.chains} chains each", flush=True)
        outcomes[method] = inpaint(problem, method, length, args.seed)
        reports[method] = {**outcomes[method].report(), "settings": SETTINGS[method], **vars(length)}
        print(line(reports[method]), flush=True)
    settings = {k: v for k, v in vars(args).items() if k in ("mask", "images", "samples", "chains", "seed")}
    save_json({"settings": settings, "shape": shape, "methods": reports}, out / "result.json")
    draw_grid(problem, outcomes, shape, out / "figure.png")
    save(samples(problem, outcomes, shape, args.seed), out / "samples.pt")
    print(f"results and figure are in {out}")
    return 0


def open_problem(
    folder: Path, data: str | None, mask: str, num_images: int, num_chains: int, seed: int
) -> tuple[Problem, tuple[int, int]]:
    """The first test images of a run, as its model sees them, with some of their pixels missing."""
    vae, test = open_run(folder, root=data)
    missing = missing_pixels(mask, test.shape, seed)
    images = held_out_images(test, num_images, seed + 1)  # not the numbers that chose the mask
    return Problem(Inpainting(vae, missing), images.x, num_chains), test.shape


def chosen_methods(name: str | None, problem: Problem) -> list[str]:
    """The methods that a user names, or all that the likelihood allows."""
    if name is None:
        name = "both" if problem.inpainting.likelihood == "gaussian" else "hmc"
    methods = list(METHODS) if name == "both" else [name]
    for method in methods:
        problem.check(method)
    return methods


def line(report: dict[str, Any]) -> str:
    """Say what a user wants to know first."""
    worst, least = max(report["worst_r_hat"]), min(report["least_ess"])
    rmse = sum(report["rmse_of_missing_pixels"]) / len(report["rmse_of_missing_pixels"])
    text = f"  acceptance {report['acceptance_rate']:.2f}, R-hat up to {worst:.3f}, effective draws at least "
    text += f"{least:.0f}, RMSE of missing pixels {rmse:.3f}, {report['cpu_seconds']:.0f} CPU seconds"
    if report["largest_distance"] is not None:
        text += f", observed pixels within {report['largest_distance']:.1g}"
    if worst > MAX_RHAT:
        text += f"\n  R-hat above {MAX_RHAT}: the chains have not seen the whole posterior; raise --samples"
    return text


def samples(
    problem: Problem, outcomes: dict[str, Outcome], shape: tuple[int, int], seed: int
) -> dict[str, Any]:
    """The content of samples.pt: tensors alone."""
    content: dict[str, Any] = {
        "seed": seed,
        "shape": torch.tensor(shape),
        "missing": problem.inpainting.missing,
        "originals": problem.images,
    }
    for method, outcome in outcomes.items():
        draws = outcome.spread(max(1, SAVED // problem.num_chains))
        latents, images = outcome.latents[:, :, draws], outcome.drawn(draws, seed + 1)
        content[method] = {"latents": latents.flatten(1, 2), "images": images.flatten(1, 2)}
    return content
