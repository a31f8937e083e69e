"""Human poses from images of their joints, in two cameras and in one.

With two cameras, constrained HMC on the inputs and the noise of the images runs beside HMC on the inputs,
from the same initial states drawn from the prior; shown is how the error of the mean of the 3-D joint
positions falls with the seconds of the processor.  With one camera, constrained HMC finds poses that all fit.
Written are result.json, figure.png and figure-one-camera.png.

Draws are kept in files as they come: where a run is stopped it goes on when started again.  --only makes the
draws of one part, for commands side by side, and --report describes those there are; where there are none it
draws the figure of the result again.
[Graham & Storkey 2017, §7.2; Graham 2018, §4.10.3, figures 4.14 and 4.15]
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
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
from experiments.pose.figure import draw_single, draw_stereo
from experiments.report import configure_with_quick, write
from experiments.resumable import configure_parts, load_clocked, sample_clocked
from hmcvi.data import DataError
from hmcvi.kernels import Kernel

METHODS = ("constrained HMC", "HMC")
PARTS = ("constrained", "hmc", "one-camera")  # of both methods with two cameras, and of the first with one
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
    configure_parts(parser, PARTS)
    parser.add_argument("--thesis", type=Path, help="folder with binocular-pose-rmse-*.csv, drawn as well")


def run(args: argparse.Namespace) -> int:
    settings = QUICK if args.quick else Settings()
    try:
        prior = PosePrior.load(args.data)
        published = {} if args.thesis is None else read_curves(args.thesis)
    except ValueError as error:
        raise DataError(str(error)) from None
    stereo, single = scenes(prior, 2, slice(settings.num_scenes)), scenes(prior, 1, MONOCULAR)
    if args.report and not (args.out / "constrained.pt").exists():
        draw_stereo(prior, stereo, stored(args.out, "binocular"), published, args.out / "figure.png")
        return 0
    runs = draws_of(stereo, single, settings, args)
    if args.only is not None:
        return 0
    pair = [runs["constrained"], runs["hmc"]]
    reports = {name: summary(run, stereo, settings) for name, run in zip(METHODS, pair, strict=True)}
    found = runs.get("one-camera")
    result = {
        "settings": {"seed": args.seed, "epsilon": EPSILON, "scenes_seed": SCENES_SEED, **asdict(settings)},
        "binocular": reports,
        "equal_time": at_equal_time(pair, stereo, settings),
        "monocular": found.report(single.generator, single.observed[0])
        if found
        else stored(args.out, "monocular"),
        "cpu_seconds": sum(float(run.seconds[-1]) * len(run.position) for run in runs.values()),
    }
    path = write(args.out, result)
    draw_stereo(prior, stereo, reports, published, path)
    if found is not None:
        draw_single(prior, single, found, path.with_name("figure-one-camera.png"))
    for index in range(settings.num_scenes):
        ends = [reports[name]["scenes"][index]["rmse_at_end"] for name in METHODS]
        print(f"scene {index + 1}: RMSE {ends[0]:.3f} m by {METHODS[0]}, {ends[1]:.3f} m by {METHODS[1]}")
    return 0


def draws_of(stereo: Scenes, single: Scenes, settings: Settings, args: argparse.Namespace) -> dict[str, Run]:
    """Those of all parts, or of one; made, or read where only a report is asked for.

    A report can do without those of one camera: what an earlier one says of them stays.
    """
    found = {}
    for part in PARTS if args.only is None else (args.only,):
        file = args.out / f"{part}.pt"
        if not args.report:
            beginning = start(part, single if part == "one-camera" else stereo, settings, args.seed)
            found[part] = Run.of(sample_clocked(*beginning, args.seed, file))
        elif part != "one-camera" or file.exists():
            found[part] = Run.of(load_clocked(file))
    return found


def stored(folder: Path, part: str) -> Any:
    """What the result in a folder says of a part."""
    file = folder / "result.json"
    if not file.exists():
        raise DataError(f"{folder} holds neither draws nor a result: leave out --report to make them")
    return json.loads(file.read_text())[part]


def start(part: str, scene: Scenes, settings: Settings, seed: int) -> tuple[Kernel, Tensor, int]:
    """A kernel, where its chains begin, at the same inputs for both methods, and how many draws they make."""
    generator, rng = scene.generator, torch.Generator().manual_seed(seed)
    count = settings.num_monocular_chains if part == "one-camera" else settings.num_chains
    observed = scene.observed.repeat_interleave(count, 0)
    initial = generator.sample(len(observed), generator=rng)
    if part == "hmc":
        return unconstrained(generator, observed, settings), initial, settings.num_hmc
    num_samples = settings.num_monocular if part == "one-camera" else settings.num_constrained
    kernel = constrained(generator, observed, settings)
    return kernel, with_noise(generator, initial, observed), num_samples


def at_equal_time(runs: Sequence[Run], scene: Scenes, settings: Settings) -> dict[str, Any]:
    """The errors of all methods when the first to end has ended."""
    seconds = min(float(run.seconds[-1]) for run in runs)
    report: dict[str, Any] = {"seconds_per_chain": seconds}
    for name, run in zip(METHODS, runs, strict=True):
        last = int((run.seconds <= seconds).sum()) - 1
        errors = [
            run.of_chains(chains).errors(scene.generator, truth)[:, last]
            for chains, truth in each_scene(scene, settings)
        ]
        report[name] = {"transitions": last + 1, "rmse": [float(error.mean()) for error in errors]}
    return report


def each_scene(scene: Scenes, settings: Settings) -> list[tuple[slice, Tensor]]:
    """The chains of each scene, and its true joints."""
    count = settings.num_chains
    return [
        (slice(index * count, (index + 1) * count), truth)
        for index, truth in enumerate(scene.latent["joints"])
    ]


def summary(run: Run, scene: Scenes, settings: Settings) -> dict[str, Any]:
    """How the errors fell in each scene, in one chain's seconds, and what the later draws are worth."""
    shown = torch.linspace(0, len(run.seconds) - 1, min(len(run.seconds), CURVE)).long()
    reports = []
    for index, (chains, truth) in enumerate(each_scene(scene, settings)):
        part = run.of_chains(chains)
        errors = part.errors(scene.generator, truth)
        reports.append(
            {
                "rmse_at_end": float(errors[:, -1].mean()),
                **part.report(scene.generator, scene.observed[index]),
                "rmse": errors[:, shown].tolist(),
            }
        )
    return {
        "seconds_per_chain": run.seconds[shown].tolist(),
        "num_draws": len(run.seconds),
        "scenes": reports,
    }


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
