"""Scales of a Gaussian process that explains which tumours are malignant, by pseudo-marginal chains.

The covariance of a latent function of nine features has a scale and nine lengths; the function itself is
integrated out by importance samples from Laplace's approximation.  --data names the folder with
breast-cancer-wisconsin.data (Wolberg & Mangasarian 1990, the original set of 699 rows, of which 683 are
complete).  PM-MH, APM-MI+MH, APM-SS+MH and APM-SS+SS run ten chains each from the prior; where the run is
stopped it goes on when started again, and --only makes the draws of one method, for commands side by side.
Written are result.json (effective draws per fit of Laplace's approximation, which is what costs, R-hat,
acceptance, the longest run of rejections) and figure.png.
[Graham 2018, §3.6.2, figures 3.11 and 3.12]
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from experiments.models.gaussian_process import ProbitProcess
from experiments.pseudo_marginal.figure import draw_gp_probit
from experiments.pseudo_marginal.runs import longest_run, rejections
from experiments.report import acceptance_rates, configure_with_quick, write
from hmcvi.data import DataError
from hmcvi.kernels import (
    AuxiliaryPseudoMarginal,
    Estimator,
    Kernel,
    RandomWalkMetropolis,
    apm_mi_mh,
    apm_ss_mh,
    apm_ss_ss,
    pm_mh,
)
from hmcvi.sampling import Draws, sample
from hmcvi.sampling.diagnostics import arviz

FILE = "breast-cancer-wisconsin.data"
MALIGNANT = "4"
NUM_CHAINS, NUM_IMPORTANCE, WIDTH = 10, 50, 4.0
SIZES = {"num_warmup": 2_000, "num_draws": 10_000}
QUICK_SIZES = {"num_warmup": 20, "num_draws": 20}
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95, 0.99)  # of log s, where the noise of estimates is measured
METHODS = {"APM-MI+MH": 1.0, "APM-SS+MH": 1.0, "APM-SS+SS": 0.5, "PM-MH": 1.0}  # share of the warm-up


def configure(parser: argparse.ArgumentParser) -> None:
    configure_with_quick(parser)
    parser.add_argument("--data", type=Path, required=True, help=f"folder with {FILE}")
    parser.add_argument("--only", choices=METHODS, help="make the draws of one method, and no report")
    parser.add_argument("--report", action="store_true", help="make no draws, report those there are")
    parser.add_argument("--draws", type=int, help=f"of each chain; {SIZES['num_draws']} if not given")


def read(folder: Path) -> tuple[Tensor, Tensor]:
    """Features [M, 9] and labels [M] of the complete rows."""
    path = folder / FILE
    if not path.exists():
        raise DataError(f"there is no {path}: --data names the folder that holds it")
    with open(path) as file:
        rows = [row for row in csv.reader(file) if row and "?" not in row]
    features = torch.tensor([[float(value) for value in row[1:-1]] for row in rows], dtype=torch.float64)
    return features, torch.tensor([float(row[-1] == MALIGNANT) for row in rows], dtype=torch.float64)


def kernels(process: ProbitProcess) -> dict[str, Kernel]:
    """Those of the thesis.  The step of PM-MH is not tuned; it gets what APM-MI+MH has found."""
    estimator = Estimator(
        process.log_estimate, process.auxiliary_dim, prepare=process.prepare, chainwise=True
    )
    return {
        "APM-MI+MH": apm_mi_mh(estimator, 0.3),
        "APM-SS+MH": apm_ss_mh(estimator, 0.3),
        "APM-SS+SS": apm_ss_ss(estimator, WIDTH),
        "PM-MH": pm_mh(estimator, 0.3),
    }


def run(args: argparse.Namespace) -> int:
    sizes = dict(QUICK_SIZES if args.quick else SIZES)
    if args.draws is not None:
        sizes["num_draws"] = args.draws
    process = ProbitProcess(*read(args.data), num_importance=NUM_IMPORTANCE)
    args.out.mkdir(parents=True, exist_ok=True)
    if args.report:
        files = {name: file for name in METHODS if (file := file_of(name, args.out)).exists()}
        all_draws = {name: draws for name, file in files.items() if len(draws := Draws.load(file))}
        if not all_draws:
            raise DataError(f"{args.out} holds no draws yet: leave out --report to make them")
    else:
        all_draws = chains(process, sizes, args)
    if args.only is not None:
        return 0
    reports = {name: report(draws) for name, draws in all_draws.items()}
    settings = {"seed": args.seed, "num_chains": NUM_CHAINS, "num_importance": NUM_IMPORTANCE, **sizes}
    data = {"num_different_points": process.num_points, "num_features": process.num_features}
    noise = noise_by_scale(process, torch.cat([draws.position.flatten(0, 1) for draws in all_draws.values()]))
    result: dict[str, Any] = {"settings": settings, "data": data, "methods": reports, "noise": noise}
    draw_gp_probit(all_draws, reports, write(args.out, result))
    return 0


def chains(process: ProbitProcess, sizes: dict[str, int], args: argparse.Namespace) -> dict[str, Draws]:
    """Draws of all methods, or what is needed for one; from files if they are there already."""
    initial = process.sample_prior(NUM_CHAINS, generator=torch.Generator().manual_seed(args.seed))
    needed = {None: METHODS, "PM-MH": ["APM-MI+MH", "PM-MH"]}.get(args.only, [args.only])
    all_draws: dict[str, Draws] = {}
    for name, kernel in kernels(process).items():
        if name not in needed:
            continue
        if name == "PM-MH":
            walk = all_draws["APM-MI+MH"].kernel
            assert isinstance(walk, AuxiliaryPseudoMarginal)
            move = walk.kernels[1]
            assert isinstance(move, RandomWalkMetropolis)
            kernel = kernel.replace(step_size=move.step_size, metric=move.metric)
        file, num_warmup = file_of(name, args.out), int(METHODS[name] * sizes["num_warmup"])
        print(f"{name}: draws are kept in {file}", flush=True)
        all_draws[name] = sample(
            kernel, initial, sizes["num_draws"], num_warmup, seed=args.seed, checkpoint=file, check=False
        )
    return all_draws


def file_of(method: str, folder: Path) -> Path:
    return folder / f"{method.replace('+', '-')}.pt"


def report(draws: Draws) -> dict[str, Any]:
    stats, variables = draws.stats, [values.numpy() for values in draws.position.unbind(-1)]
    names = ["log_scale", *(f"log_length_{k}" for k in range(1, len(variables)))]
    fits = stats.get("num_target_evaluations", stats["num_evaluations"])
    evaluations = int(fits.sum())
    ess = [1000 * float(arviz().ess(values)) / evaluations for values in variables]

    def each(function: Callable[[Any], Any]) -> dict[str, float]:
        return {name: float(function(values)) for name, values in zip(names, variables, strict=True)}

    return {
        "num_draws": len(draws),
        "evaluations": evaluations,
        "mean_ess_per_1000_evaluations": sum(ess) / len(ess),
        "ess_per_1000_evaluations": dict(zip(names, ess, strict=True)),
        "mean": each(np.mean),
        "mcse": each(arviz().mcse),
        "r_hat": each(arviz().rhat),
        "r_hat_so_far": convergence(draws.position, fits),
        "longest_run_of_rejections": longest_run(rejections(stats)),
        **{name: float(value.mean()) for name, value in acceptance_rates(stats).items()},
    }


def convergence(position: Tensor, fits: Tensor) -> dict[str, list[float]]:
    """The worst R-hat of the first draws of all chains, and how many fits each chain had then made."""
    counts = np.unique(np.geomspace(min(20, position.shape[1]), position.shape[1], 25).astype(int))
    worst = [max(float(arviz().rhat(v.numpy())) for v in position[:, :count].unbind(-1)) for count in counts]
    return {"fits": [float(fits[:, :count].sum(1).double().mean()) for count in counts], "worst": worst}


def noise_by_scale(process: ProbitProcess, position: Tensor) -> list[dict[str, float]]:
    """Standard deviations of log ε(x, u) over u, medians over ten x near quantiles of log s.  [n, d]"""
    by_scale, generator = position[position[:, 0].argsort()], torch.Generator().manual_seed(0)
    found = []
    for quantile in QUANTILES:
        last = int(quantile * (len(by_scale) - 1))
        x = by_scale[max(0, last - 9) : last + 1]
        fit = process.prepare(x)
        u = torch.randn(30, len(x), process.auxiliary_dim, generator=generator, dtype=x.dtype)
        spread = torch.stack([process.log_estimate(x, numbers, fit) for numbers in u]).std(0)
        found.append({"quantile": quantile, "log_scale": float(x[-1, 0]), "std": float(spread.nanmedian())})
    return found
