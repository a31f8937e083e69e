"""The likelihood of images under trained importance weighted autoencoders, between two bounds.

--data names the folder with the weights, mnist-iwae and omni-iwae, 50 latents each.  Images drawn from a
model come with exact draws of their posteriors, so that annealing forwards and backwards bounds their
likelihood; AIS with more and more temperatures, and simulated tempering, Gibbs CT and CT-HMC with more and
more draws of single chains, estimate it from the encoder as base.  Runs of a method share one batch, and its
processor time equally.  Parts that are finished are kept beside the result, and the same command goes on
where it was stopped.  Written are result.json and figure.png.  Test images are for `hmcvi evidence`.
[Graham 2018, §5.6.2, figure 5.4; Wu et al. 2017]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from experiments.report import configure_with_quick, timed, write
from experiments.resumable import once
from experiments.tempering.figure import draw_images
from experiments.tempering.running import running_estimates
from hmcvi.commands.images import Data, simulated_images
from hmcvi.data import DataError
from hmcvi.evidence import (
    Evidence,
    ExtendedDensity,
    Grid,
    ais,
    bidirectional,
    gibbs_tempering,
    sigmoidal,
    simulated_tempering,
    tempered_hmc,
)
from hmcvi.models import VAE, load_iwae_npz
from hmcvi.models.iwae import is_iwae_folder
from hmcvi.training.evaluation import Estimate

MODELS = {"MNIST": "mnist-iwae", "Omniglot": "omni-iwae"}
TEMPERED: dict[str, Callable[..., Evidence]] = {
    "ST": simulated_tempering,
    "Gibbs CT": gibbs_tempering,
    "CT-HMC": tempered_hmc,
}
METHODS = ("AIS", *TEMPERED)
GRID = sigmoidal(1000)  # temperatures of ST
LEAST = 4  # draws of the runs that tell what comes before the draws
POINTS = 12  # of a curve
BATCH = 4000  # images decoded at once
SIZES: dict[str, Any] = {
    "images": 150,
    "runs": 2,
    "temperatures": 1000,  # of the bounds, with so many chains:
    "chains": 16,
    "ais_chains": 4,  # of one run
    "ais_temperatures": [50, 250, 1200],
    "draws": 800,
    "warmup": 100,
}
# what a part depends on
KEYS = {"bounds": ("images", "temperatures", "chains"), "AIS": ("images", "runs", "ais_chains")}
TEMPERED_KEYS = ("images", "runs", "draws", "warmup")
QUICK_SIZES: dict[str, Any] = {
    "images": 4,
    "runs": 2,
    "temperatures": 10,
    "chains": 4,
    "ais_chains": 2,
    "ais_temperatures": [5, 20],
    "draws": 20,
    "warmup": 10,
}


def configure(parser: argparse.ArgumentParser) -> None:
    configure_with_quick(parser)
    parser.add_argument("--data", type=Path, required=True, help=f"folder with {', '.join(MODELS.values())}")
    parser.add_argument("--images", type=int, help=f"of each model; {SIZES['images']} if not given")


def sandwich(model: VAE, data: Data, sizes: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """Bounds on log p(x) by annealing in both directions, and their errors.  [images]"""
    assert data.z is not None
    evidence, seconds = timed(
        bidirectional,
        model.encode(data.x),
        model.posterior(data.x),
        data.z,
        sizes["temperatures"],
        sizes["chains"],
        schedule="adaptive",
        seed=seed,
        progress=False,
    )
    names = ("lower", "upper", "lower_std_error", "upper_std_error")
    return {name: evidence.diagnostics[name].double() for name in names} | {"cpu_seconds": seconds}


def annealed(model: VAE, data: Data, sizes: Mapping[str, Any], count: int, seed: int) -> dict[str, Any]:
    """Estimates of all runs by AIS with `count` temperatures, log_z [runs, 1, images]."""
    shape = sizes["runs"], sizes["ais_chains"]
    evidence, seconds = timed(
        ais,
        model.encode(data.x),
        model.posterior(data.x),
        count,
        shape[0] * shape[1],
        seed=seed,
        progress=False,
    )
    assert evidence.log_weight is not None
    weights = evidence.log_weight.unflatten(0, shape)
    log_z = weights.logsumexp(1, keepdim=True) - np.log(shape[1])
    return {"log_z": log_z, "sizes": [count], "cpu_seconds": [seconds / shape[0]], "total": seconds}


def tempered(model: VAE, data: Data, sizes: Mapping[str, Any], name: str, seed: int) -> dict[str, Any]:
    """Estimates of all runs from more and more draws of their chain, log_z [runs, points, images]."""
    base, target = model.encode(data.x), model.posterior(data.x)
    num_runs, num_draws = sizes["runs"], sizes["draws"]
    options: dict[str, Any] = {"num_warmup": sizes["warmup"], "seed": seed, "progress": False}
    if name == "ST":
        options["schedule"] = GRID
    _, beginning = timed(TEMPERED[name], base, target, LEAST, num_runs, **options)
    evidence, seconds = timed(TEMPERED[name], base, target, num_draws, num_runs, **options)
    assert evidence.position is not None
    log_zeta = evidence.diagnostics["log_zeta"]
    density = ExtendedDensity(base, target, log_zeta).tempered
    with torch.no_grad():
        parts = evidence.position.split(max(1, BATCH // len(data.x)))
        delta = torch.cat([density.delta(part) for part in parts]).unflatten(0, (num_draws, num_runs))
    estimates = running_estimates(delta, log_zeta, Grid(GRID) if name == "ST" else None)
    counts = np.unique(np.geomspace(LEAST, num_draws, POINTS).astype(int)).tolist()
    return {
        "log_z": estimates[[count - 1 for count in counts]].movedim(0, 1),
        "sizes": counts,
        "cpu_seconds": (np.interp(counts, [LEAST, num_draws], [beginning, seconds]) / num_runs).tolist(),
        "total": beginning + seconds,
    }


def curve(found: Mapping[str, Any], reference: Tensor) -> list[dict[str, float]]:
    """The mean over images and runs, its distance from the reference, and the error of a single estimate.

    Standard errors are those over images, which are independent.
    """
    points = []
    for index, (size, seconds) in enumerate(zip(found["sizes"], found["cpu_seconds"], strict=True)):
        error = found["log_z"][:, index].double() - reference  # [runs, images]
        off, square = Estimate.of(error.mean(0)), Estimate.of(error.square().mean(0))
        rmse = square.mean**0.5
        points.append(
            {
                "size": size,
                "cpu_seconds": seconds,
                "mean": float(reference.mean()) + off.mean,
                "bias": off.mean,
                "bias_se": off.std_error,
                "rmse": rmse,
                "rmse_se": square.std_error / (2 * rmse),
            }
        )
    return points


def bounds(found: Mapping[str, Any]) -> dict[str, Any]:
    """Means of both bounds over images, with the errors of annealing and those over images."""
    report: dict[str, Any] = {}
    for name in ("lower", "upper"):
        mean, errors = Estimate.of(found[name]), found[f"{name}_std_error"]
        sampling = float(errors.square().sum().sqrt()) / len(errors)
        report[name] = {"mean": mean.mean, "sampling_se": sampling, "se_over_images": mean.std_error}
    gaps = found["upper"] - found["lower"]
    gap = Estimate.of(gaps)
    report |= {"gap": gap.mean, "gap_se": gap.std_error, "largest_gap": float(gaps.max())}
    return report | {"cpu_seconds": found["cpu_seconds"]}


def parts_of(
    model: VAE, data: Data, sizes: Mapping[str, Any], seed: int
) -> dict[str, Callable[[], Mapping[str, Any]]]:
    """What there is to compute for a model, part by part."""
    return {
        "bounds": partial(sandwich, model, data, sizes, seed),
        **{f"AIS {n}": partial(annealed, model, data, sizes, n, seed) for n in sizes["ais_temperatures"]},
        **{name: partial(tempered, model, data, sizes, name, seed) for name in TEMPERED},
    }


def report_of(name: str, folder: Path, sizes: Mapping[str, Any], args: argparse.Namespace) -> dict[str, Any]:
    """All about one model; parts that an earlier call has finished are read."""
    model = load_iwae_npz(folder)
    data = simulated_images(model, sizes["images"], args.seed)
    found: dict[str, dict[str, Any]] = {}
    for part, work in parts_of(model, data, sizes, args.seed).items():
        file = args.out / "parts" / f"{name}-{part.replace(' ', '-')}.pt"
        key = {"seed": args.seed, **{size: sizes[size] for size in KEYS.get(part.split()[0], TEMPERED_KEYS)}}
        found[part] = once(file, key, work)
        print(f"{name}: {part} done", flush=True)
    reference = (found["bounds"]["lower"] + found["bounds"]["upper"]) / 2
    curves: dict[str, list[dict[str, float]]] = {method: [] for method in METHODS}
    for part, value in found.items():
        if part != "bounds":
            curves["AIS" if part.startswith("AIS") else part] += curve(value, reference)
    total = sum(value["total"] for part, value in found.items() if part != "bounds")
    seconds = total + found["bounds"]["cpu_seconds"]
    return {"sandwich": bounds(found["bounds"]), "methods": curves, "cpu_seconds": seconds}


def run(args: argparse.Namespace) -> int:
    folders = {name: args.data / folder for name, folder in MODELS.items()}
    folders = {name: folder for name, folder in folders.items() if is_iwae_folder(folder)}
    if not folders:
        names = " nor ".join(MODELS.values())
        raise DataError(f"there is neither {names} in {args.data}: --data names the folder with the weights")
    sizes = dict(QUICK_SIZES if args.quick else SIZES)
    if args.images is not None:
        sizes["images"] = args.images
    models = {name: report_of(name, folder, sizes, args) for name, folder in folders.items()}
    total = sum(report["cpu_seconds"] for report in models.values())
    result = {"settings": {"seed": args.seed, **sizes}, "models": models, "cpu_seconds": total}
    draw_images(result, write(args.out, result))
    return 0
