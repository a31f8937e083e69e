"""The likelihood of images under trained importance weighted autoencoders, between two bounds.

--data names the folder with the weights, mnist-iwae and omni-iwae, 50 latents each.  Images drawn from a
model come with exact draws of their posteriors, so that annealing forwards and backwards bounds their
likelihood; AIS, simulated tempering, Gibbs CT and CT-HMC estimate it from the encoder as base.  Written are
result.json and figure.png.  Test images are for `hmcvi evidence`.
[Graham 2018, §5.6.2, figure 5.4; Wu et al. 2017]
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from torch import Tensor

from experiments.report import configure_with_quick, timed, write
from experiments.tempering.figure import draw_images
from hmcvi.commands.evidence_batches import Settings, estimate
from hmcvi.commands.images import Data, simulated_images
from hmcvi.data import DataError
from hmcvi.evidence import Evidence
from hmcvi.models import VAE, load_iwae_npz
from hmcvi.models.iwae import is_iwae_folder
from hmcvi.training.evaluation import Estimate

MODELS = {"MNIST": "mnist-iwae", "Omniglot": "omni-iwae"}
METHODS = {
    "AIS": "ais",
    "ST": "simulated_tempering",
    "Gibbs CT": "gibbs_tempering",
    "CT-HMC": "tempered_hmc",
}
# temperatures of AIS, draws of each chain of the others
CURVES: dict[str, tuple[int, ...]] = {
    "AIS": (25, 100, 400),
    "ST": (40, 150),
    "Gibbs CT": (40, 150),
    "CT-HMC": (40, 150),
}
SIZES = {"images": 100, "temperatures": 1000, "chains": 16}
QUICK_SIZES = {"images": 4, "temperatures": 10, "chains": 4}
QUICK_CURVES: dict[str, tuple[int, ...]] = dict.fromkeys(CURVES, (20,))
CURVE_CHAINS = 4
GRID = 1000  # temperatures of ST


def configure(parser: argparse.ArgumentParser) -> None:
    configure_with_quick(parser)
    parser.add_argument("--data", type=Path, required=True, help=f"folder with {', '.join(MODELS.values())}")
    parser.add_argument("--images", type=int, help=f"of each model; {SIZES['images']} if not given")


def settings(method: str, temperatures: int, chains: int, samples: int | None, seed: int) -> Settings:
    return Settings(method, temperatures, chains, samples, "adaptive", seed, batch=0)


def apply(model: VAE, data: Data, chosen: Settings) -> tuple[Evidence, float]:
    return timed(estimate, model.encode(data.x), model.posterior(data.x), data.z, chosen, chosen.seed)


def mean_over_images(log_z: Tensor, std_error: Tensor) -> dict[str, float]:
    """The mean, the error of the estimates and that over images."""
    mean = Estimate.of(log_z.double())
    sampling = float(std_error.double().square().sum().sqrt()) / len(log_z)
    return {"mean": mean.mean, "sampling_se": sampling, "se_over_images": mean.std_error}


def sandwich(model: VAE, data: Data, sizes: dict[str, int], seed: int) -> dict[str, Any]:
    """Bound log p(x) by annealing in both directions."""
    chosen = settings("bidirectional", sizes["temperatures"], sizes["chains"], None, seed)
    evidence, seconds = apply(model, data, chosen)
    diagnostics = evidence.diagnostics
    gap = Estimate.of(diagnostics["gap"].double())
    return {
        "lower": mean_over_images(diagnostics["lower"], diagnostics["lower_std_error"]),
        "upper": mean_over_images(diagnostics["upper"], diagnostics["upper_std_error"]),
        "gap": gap.mean,
        "gap_se": gap.std_error,
        "largest_gap": float(diagnostics["gap"].max()),
        "cpu_seconds": seconds,
    }


def curve(model: VAE, data: Data, name: str, sizes: tuple[int, ...], seed: int) -> list[dict[str, float]]:
    """Estimate by one method, longer and longer."""
    points = []
    for size in sizes:
        temperatures, samples = (size, None) if name == "AIS" else (GRID, size)
        chosen = settings(METHODS[name], temperatures, CURVE_CHAINS, samples, seed)
        evidence, seconds = apply(model, data, chosen)
        found = mean_over_images(evidence.per_item.log_z, evidence.per_item.std_error)
        points.append({"size": size, "cpu_seconds": seconds, **found})
    return points


def run(args: argparse.Namespace) -> int:
    folders = {name: args.data / folder for name, folder in MODELS.items()}
    folders = {name: folder for name, folder in folders.items() if is_iwae_folder(folder)}
    if not folders:
        names = " nor ".join(MODELS.values())
        raise DataError(f"there is neither {names} in {args.data}: --data names the folder with the weights")
    sizes, curves = (dict(QUICK_SIZES), QUICK_CURVES) if args.quick else (dict(SIZES), CURVES)
    if args.images is not None:
        sizes["images"] = args.images
    result: dict[str, Any] = {
        "settings": {"seed": args.seed, **sizes, "curve_chains": CURVE_CHAINS},
        "models": {},
    }
    for name, folder in folders.items():
        model = load_iwae_npz(folder)
        data = simulated_images(model, sizes["images"], args.seed)
        report: dict[str, Any] = {"sandwich": sandwich(model, data, sizes, args.seed)}
        print(
            f"{name}: a gap of {report['sandwich']['gap']:.3f} nats per image between the bounds", flush=True
        )
        report["methods"] = {
            method: curve(model, data, method, points, args.seed) for method, points in curves.items()
        }
        result["models"][name] = report
    draw_images(result, write(args.out, result))
    return 0
