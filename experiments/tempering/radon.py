"""The evidence of a multilevel regression of radon in houses: 919 measurements, 85 counties, 92 parameters.

--data names the folder with radon-group.npz: y, log radon [N]; x, the floor, and u, log uranium of the county
[N]; county, from 0 [N].  A diagonal normal distribution fitted by ADVI is the base, its bound ζ; Pyro's NUTS,
CT-HMC and Gibbs CT run on the tempered density, every run a single chain.  A long run of AIS is the
reference, as it would be where nothing else is known; here all but three integrals are known in closed form
and the others are done numerically.  Parts that are finished, among them single runs of NUTS, are kept beside
the result, and the same command goes on where it was stopped.  Written are result.json and figure.png.
[Graham 2018, §5.6.3, figure 5.6]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from experiments.models import MultilevelRegression
from experiments.report import configure_with_quick, timed, write
from experiments.resumable import once
from experiments.tempering.figure import draw_radon
from experiments.tempering.running import running_estimates
from hmcvi.data import DataError
from hmcvi.density import Density
from hmcvi.dynamics.metrics import DiagonalMetric
from hmcvi.evidence import (
    Evidence,
    ExtendedDensity,
    Fit,
    ais,
    fit_advi,
    gibbs_tempering,
    laplace,
    tempered_hmc,
)
from hmcvi.kernels import HMC

FILE, KEYS = "radon-group.npz", ("y", "x", "u", "county")
NUM_POINTS, REACH = 61, 4.5  # of the quadrature, along each axis


class Problem(NamedTuple):
    model: MultilevelRegression
    base: Fit
    num_runs: int
    options: dict[str, Any]  # of every method

    def runs(self) -> Fit:
        """The base, once for every run."""
        count, base = self.num_runs, self.base
        return Fit(base.mean.expand(count, -1), base.root.expand(count, -1, -1), base.log_zeta.expand(count))


def configure(parser: argparse.ArgumentParser) -> None:
    configure_with_quick(parser)
    parser.add_argument("--data", type=Path, required=True, help=f"folder with {FILE}")


def read(folder: Path) -> MultilevelRegression:
    path = folder.expanduser() / FILE
    if not path.exists():
        raise DataError(f"there is no {FILE} in {folder}: --data names the folder with it")
    with np.load(path, allow_pickle=False) as file:
        if missing := [key for key in KEYS if key not in file]:
            raise DataError(f"{path} has no {missing[0]}: it must have {', '.join(KEYS)}")
        y, x, u, county = (torch.from_numpy(file[key]) for key in KEYS)
    return MultilevelRegression(y.double(), torch.stack([x, u], -1).double(), county.long())


def log_integral(density: Density, dim: int, num_points: int = NUM_POINTS) -> Tensor:
    """log ∫γ by the trapezoidal rule in v, z = mode + L sinh v with Laplace's L.

    Densely about the mode, and exponentially far out: its error falls exponentially with num_points.
    """
    fit = laplace(density, torch.zeros(dim, dtype=torch.float64))
    v = torch.linspace(-REACH, REACH, num_points, dtype=torch.float64)
    log_volume = dim * (v[1] - v[0]).log() + fit.root.diagonal().log().sum()
    grid = torch.cartesian_prod(*[v] * (dim - 1)).view(-1, dim - 1)
    planes = []
    for first in v:
        point = torch.cat([first.expand(len(grid), 1), grid], -1)
        log_prob = density.log_prob(fit.mean + point.sinh() @ fit.root.mT)
        planes.append((log_prob + point.cosh().log().sum(-1)).logsumexp(0))
    return torch.stack(planes).logsumexp(0) + log_volume


def hmc(fit: Fit) -> Callable[[Density], HMC]:
    """Long trajectories: σ_b and m trade off along a ridge, on which single steps only diffuse."""
    return lambda density: HMC(
        density, 0.1, num_steps=10, metric=DiagonalMetric(-fit.stddev.log()), jitter=0.8
    )


def nuts(problem: Problem) -> Evidence:
    from hmcvi.pyro import tempered_nuts

    return tempered_nuts(problem.base, problem.model, num_chains=problem.num_runs, **problem.options)


def joint(problem: Problem) -> Evidence:
    return tempered_hmc(problem.runs(), problem.model, num_chains=1, **problem.options)


def gibbs(problem: Problem) -> Evidence:
    return gibbs_tempering(
        problem.runs(), problem.model, kernel=hmc(problem.base), num_chains=1, **problem.options
    )


METHODS: dict[str, Callable[[Problem], Evidence]] = {"CT-NUTS": nuts, "CT-HMC": joint, "Gibbs CT": gibbs}
SINGLE = ("CT-NUTS",)  # methods that make one run after another


@dataclass(frozen=True)
class Sizes:
    """Lengths of all runs; the last fit is the base."""

    advi_steps: tuple[int, ...] = (100, 200, 500, 2000)
    num_temperatures: int = 10_000
    num_ais_chains: int = 100
    num_runs: int = 10
    num_samples: Mapping[str, int] = field(
        default_factory=lambda: {"CT-NUTS": 2500, "CT-HMC": 3000, "Gibbs CT": 3000}
    )
    num_warmup: int = 150


QUICK = Sizes((100, 500), 100, 20, num_runs=2, num_samples=dict.fromkeys(METHODS, 60), num_warmup=40)


def fitted(model: MultilevelRegression, num_steps: int, seed: int) -> dict[str, Any]:
    """The parameters of a fit by ADVI, and the seconds it took."""
    initial = torch.zeros(model.dim, dtype=torch.float64)
    fit, seconds = timed(fit_advi, model, initial, num_steps=num_steps, seed=seed)
    return {"mean": fit.mean, "root": fit.root, "log_zeta": fit.log_zeta, "cpu_seconds": seconds}


def annealed(model: MultilevelRegression, fit: Fit, sizes: Sizes, seed: int) -> dict[str, Any]:
    """The estimate of one long run of AIS."""
    evidence, seconds = timed(
        ais,
        fit,
        model,
        sizes.num_temperatures,
        sizes.num_ais_chains,
        kernel=hmc(fit),
        seed=seed,
        progress=False,
    )
    numbers = {name: float(getattr(evidence, name)) for name in ("log_z", "std_error", "ess", "pareto_k")}
    return {**numbers, "cpu_seconds": seconds}


def tempered(problem: Problem, name: str) -> dict[str, Any]:
    """Δ of the draws of all runs of a problem [draws, runs], and the seconds of all."""
    evidence, seconds = timed(METHODS[name], problem)
    assert evidence.position is not None
    density = ExtendedDensity(problem.base, problem.model, problem.base.log_zeta).tempered
    shape = problem.options["num_samples"], problem.num_runs
    found = {"delta": density.delta(evidence.position.view(*shape, -1)), "cpu_seconds": seconds}
    if "num_divergences" in evidence.diagnostics:
        found["num_divergences"] = int(evidence.diagnostics["num_divergences"].sum())
    return found


def measure(problem: Problem, parts: Sequence[Mapping[str, Any]], truth: float) -> dict[str, Any]:
    """Estimate by all runs from more and more of their draws; time is shared out equally."""
    num_samples, num_warmup = problem.options["num_samples"], problem.options["num_warmup"]
    delta = torch.cat([part["delta"] for part in parts], 1)
    estimates = running_estimates(delta, problem.base.log_zeta)  # [draws, runs]
    num_runs = delta.shape[1]
    seconds = sum(part["cpu_seconds"] for part in parts) / num_runs
    counts = np.unique(np.geomspace(10, num_samples, 30).astype(int)).tolist()
    times = seconds * (num_warmup + np.array(counts)) / (num_warmup + num_samples)
    report: dict[str, Any] = {
        "cpu_seconds_of_one_run": seconds,
        "log_z": estimates[-1].tolist(),
        "rmse": float((estimates[-1] - truth).square().mean().sqrt()),
        "curve": [
            {
                "draws": count,
                "cpu_seconds": at,
                "mean": float(estimates[count - 1].mean()),
                "se": float(estimates[count - 1].std()) / num_runs**0.5,
            }
            for count, at in zip(counts, times.tolist(), strict=True)
        ],
    }
    if "num_divergences" in parts[0]:
        report["num_divergences"] = sum(part["num_divergences"] for part in parts)
    return report


def parts_of(problem: Problem, name: str, folder: Path) -> list[dict[str, Any]]:
    """All runs of a method, one by one where it makes them so; those in files are read."""
    count = problem.num_runs if name in SINGLE else 1
    parts = []
    for index in range(count):
        seed = problem.options["seed"] + index
        part = problem._replace(num_runs=problem.num_runs // count, options=problem.options | {"seed": seed})
        key = {"num_runs": part.num_runs, "bound": float(part.base.log_zeta), **part.options}
        file = folder / f"{name.replace(' ', '-')}-{index}.pt"
        parts.append(once(file, key, partial(tempered, part, name)))
    return parts


def run(args: argparse.Namespace) -> int:
    model, sizes = read(args.data), QUICK if args.quick else Sizes()
    folder, seed = args.out / "parts", args.seed
    truth = float(log_integral(Density(model.log_marginal), 3))
    print(f"exact: log Z {truth:.3f}", flush=True)
    fits = []
    for num_steps in sizes.advi_steps:
        key = {"seed": seed, "steps": num_steps, "num_data": model.num_data}
        found = once(folder / f"ADVI-{num_steps}.pt", key, partial(fitted, model, num_steps, seed))
        bound = float(found["log_zeta"])
        fits.append({"steps": num_steps, "cpu_seconds": found["cpu_seconds"], "bound": bound})
    fit = Fit(found["mean"], found["root"], found["log_zeta"])
    print(f"ADVI: a bound of {float(fit.log_zeta):.3f}", flush=True)
    key = {"seed": seed, "sizes": [sizes.num_temperatures, sizes.num_ais_chains], "bound": bound}
    reference = once(folder / "AIS.pt", key, partial(annealed, model, fit, sizes, seed))
    print(f"AIS: log Z {reference['log_z']:.3f} ± {reference['std_error']:.3f}", flush=True)
    methods, total = {}, reference["cpu_seconds"] + sum(entry["cpu_seconds"] for entry in fits)
    for name in METHODS:
        lengths = {"num_samples": sizes.num_samples[name], "num_warmup": sizes.num_warmup}
        problem = Problem(model, fit, sizes.num_runs, {"seed": seed, "progress": False, **lengths})
        parts = parts_of(problem, name, folder)
        total += sum(part["cpu_seconds"] for part in parts)
        methods[name] = measure(problem, parts, truth)
        last = methods[name]["curve"][-1]
        print(
            f"{name}: log Z {last['mean']:.3f} ± {last['se']:.3f} over runs of {last['cpu_seconds']:.1f} CPU "
            "seconds",
            flush=True,
        )
    result = {
        "settings": {"seed": seed, **asdict(sizes)},
        "num_data": model.num_data,
        "num_parameters": model.dim,
        "exact": truth,
        "advi": fits,
        "ais": reference,
        "methods": methods,
        "cpu_seconds": total,
    }
    draw_radon(result, write(args.out, result))
    return 0
