"""Human poses from images of their joints, in two cameras and in one.

With two cameras, constrained HMC on the inputs and the noise of the images runs beside HMC on the inputs,
from the same initial states drawn from the prior; shown is how the error of the mean of the 3-D joint
positions falls with the seconds of the processor.  With one camera, constrained HMC finds poses that all fit.
Written are result.json and figure.png.
[Graham & Storkey 2017, §7.2; Graham 2018, §4.10.3, figures 4.14 and 4.15]
"""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from experiments.models.pose import PosePrior
from experiments.pose.chains import (
    EPSILON,
    NUM_SCENES,
    QUICK,
    SCENES_SEED,
    Run,
    Scenes,
    Settings,
    constrained,
    scenes,
    unconstrained,
    with_noise,
)
from experiments.pose.figure import draw
from experiments.report import configure_with_quick, write
from hmcvi.data import DataError
from hmcvi.kernels import Kernel

METHODS = ("constrained HMC", "HMC")
MONOCULAR = slice(1, 2)  # the scene with its arms apart
CURVE = 60  # points of a curve in the result file


def configure(parser: argparse.ArgumentParser) -> None:
    configure_with_quick(parser)
    parser.add_argument(
        "--data",
        type=Path,
        required=True,
        help="folder with joint-angles-sin-cos-vae-decoder and bone-length-log-normal",
    )
    parser.add_argument("--thesis", type=Path, help="folder with binocular-pose-rmse-*.csv, drawn as well")


def run(args: argparse.Namespace) -> int:
    settings = QUICK if args.quick else Settings()
    try:
        prior = PosePrior.load(args.data)
        published = {} if args.thesis is None else read_curves(args.thesis)
    except ValueError as error:
        raise DataError(str(error)) from None
    stereo, single = scenes(prior, 2), scenes(prior, 1, MONOCULAR)
    reports = binocular(stereo, settings, args.seed)
    found, report = monocular(single, settings, args.seed)
    result = {
        "settings": {"seed": args.seed, "epsilon": EPSILON, "scenes_seed": SCENES_SEED, **asdict(settings)},
        "binocular": reports,
        "monocular": report,
    }
    path = write(args.out, result)
    draw(prior, stereo, reports, published, single, found, path)
    for index in range(NUM_SCENES):
        ends = [reports[name]["scenes"][index]["rmse_at_end"] for name in METHODS]
        print(f"scene {index + 1}: RMSE {ends[0]:.3f} m by {METHODS[0]}, {ends[1]:.3f} m by {METHODS[1]}")
    return 0


def binocular(scene: Scenes, settings: Settings, seed: int) -> dict[str, Any]:
    """Run both methods on all scenes, from the same initial states drawn from the prior."""
    generator = scene.generator
    observed = scene.observed.repeat_interleave(settings.num_chains, 0)
    initial = generator.sample(len(observed), generator=torch.Generator().manual_seed(seed))
    races: dict[str, tuple[Kernel, Tensor, int]] = {
        METHODS[0]: (
            constrained(generator, observed, settings),
            with_noise(generator, initial, observed),
            settings.num_constrained,
        ),
        METHODS[1]: (unconstrained(generator, observed, settings), initial, settings.num_hmc),
    }
    return {name: summary(Run.of(*race, seed), scene, settings) for name, race in races.items()}


def summary(run: Run, scene: Scenes, settings: Settings) -> dict[str, Any]:
    """How the errors fell in each scene, in one chain's seconds, and what the later draws are worth."""
    shown = torch.linspace(0, len(run.seconds) - 1, min(len(run.seconds), CURVE)).long()
    reports = []
    for index, truth in enumerate(scene.latent["joints"]):
        part = run.of_chains(slice(index * settings.num_chains, (index + 1) * settings.num_chains))
        errors = part.errors(scene.generator, truth)
        reports.append(
            {
                "rmse_at_end": float(errors[:, -1].mean()),
                **part.report(scene.generator, scene.observed[index]),
                "rmse": errors[:, shown].tolist(),
            }
        )
    return {"seconds_per_chain": run.seconds[shown].tolist(), "scenes": reports}


def monocular(scene: Scenes, settings: Settings, seed: int) -> tuple[Run, dict[str, Any]]:
    """Run constrained HMC on what one camera saw."""
    generator, observed = scene.generator, scene.observed[0]
    rng = torch.Generator().manual_seed(seed)
    initial = generator.sample(settings.num_monocular_chains, generator=rng)
    kernel = constrained(generator, observed, settings)
    found = Run.of(kernel, with_noise(generator, initial, observed), settings.num_monocular, seed)
    return found, found.report(generator, observed)


def read_curves(folder: Path) -> dict[str, dict[int, Tensor]]:
    """Read the thesis' curves that there are: {method: {scene: seconds and errors [2, points]}}."""
    curves: dict[str, dict[int, Tensor]] = {name: {} for name in METHODS}
    for method, short in zip(METHODS, ("chmc", "hmc"), strict=True):
        for scene in range(NUM_SCENES):
            path = folder / f"binocular-pose-rmse-{short}-{scene + 1}.csv"
            if path.is_file():
                rows = [line.split() for line in path.read_text().splitlines()[1:]]
                curves[method][scene] = torch.tensor([[float(word) for word in row] for row in rows]).mT
    if not any(curves.values()):
        raise ValueError(f"the folder {folder} has no files such as binocular-pose-rmse-chmc-1.csv")
    return curves
