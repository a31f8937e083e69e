"""One line: AutoHMC(model) against the guides of Pyro, each for the same CPU time from scratch.

For each model and seed: log Z and moments, exact or by annealed importance sampling with its error, and for
each guide the bound, its share of AutoMultivariateNormal's gap to log Z, errors of means and standard
deviations in units of the posterior, k̂ and the number of steps.  The importance-weighted
AutoMultivariateNormal has as many evaluations of the model in a draw as AutoHMC.
"""

from __future__ import annotations

import argparse
import math
import time
import warnings
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
from pyro.infer.autoguide import AutoIAFNormal, AutoMultivariateNormal
from torch import Tensor

from benchmarks.guide_models import EXACT, MODELS
from benchmarks.measuring import Record
from hmcvi.evidence import Evidence, ais, fit_normal
from hmcvi.pyro import AutoHMC, compare, density_from_pyro
from hmcvi.pyro.compare import FittedGuide, MakeGuide

EVALUATIONS = 64 * 9  # of a draw of AutoHMC: 64 chains of eight steps
NORMAL, WEIGHTED = "AutoMultivariateNormal", f"AutoMultivariateNormal, {EVALUATIONS} weighted draws"
GUIDES: dict[str, MakeGuide] = {
    "AutoHMC": AutoHMC,
    NORMAL: AutoMultivariateNormal,
    WEIGHTED: AutoMultivariateNormal,
    "AutoIAFNormal": AutoIAFNormal,
}
WIDER = 1.3  # than the fit: a base needs the tails of its target
TEMPERATURES, EXACT_DRAWS = 300, 100_000


class Reference(NamedTuple):
    """What is known of a posterior: log Z, its error, and moments of the unconstrained latents."""

    log_z: float
    error: float
    moments: tuple[Tensor, Tensor]


def reference(name: str, density: Any) -> Reference:
    """Exact where draws are.  The centred schools have the evidence and draws of the non-centred ones."""
    if name in EXACT:
        draws = density.unconstrain(EXACT[name](EXACT_DRAWS))
        return Reference(0.0, 0.0, moments(draws, torch.ones(len(draws))))
    centred = name == "eight schools, centred"
    annealed = density_from_pyro(MODELS["eight schools"]) if centred else density
    evidence = by_annealing(annealed)
    assert evidence.position is not None and evidence.log_weight is not None
    position = evidence.position
    if centred:
        values = annealed.constrain(position)
        values["theta"] = values["mu"][:, None] + values["tau"][:, None] * values.pop("eta")
        position = density.unconstrain(values)
    found = moments(position, evidence.log_weight.softmax(0))
    return Reference(float(evidence.log_z), float(evidence.std_error), found)


def by_annealing(density: Any) -> Evidence:
    fits = fit_normal(density, torch.empty(4, density.layout.dim).uniform_(-2, 2))
    best = fits[int(fits.log_zeta.argmax())]
    base = torch.distributions.MultivariateNormal(best.mean, scale_tril=WIDER * best.root)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ais(base, density, num_temperatures=TEMPERATURES, num_chains=2000, seed=0, progress=False)


def moments(position: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    share = (weight / weight.sum())[:, None].double()
    mean = (share * position.double()).sum(0)
    return mean, (share * (position.double() - mean).square()).sum(0).sqrt()


def errors(fit: FittedGuide, density: Any, exact: tuple[Tensor, Tensor]) -> dict[str, float]:
    """RMS over the unconstrained latents: of means in standard deviations, of logarithms of these."""
    draws = density.unconstrain(fit.draws)
    mean, sd = moments(draws, torch.ones(len(draws)))
    parts = {"mean error": (mean - exact[0]) / exact[1], "log sd error": (sd / exact[1]).log()}
    return {name: float(part.square().mean().sqrt()) for name, part in parts.items()}


def row(fit: FittedGuide, density: Any, exact: tuple[Tensor, Tensor]) -> Record:
    """None where a figure is not a finite number: the guide has failed."""
    found = {
        "bound": fit.bound,
        "standard error": fit.std_error,
        "pareto k": fit.pareto_k,
        "steps": fit.num_steps,
        "CPU seconds": fit.cpu_seconds,
        **errors(fit, density, exact),
    }
    return {name: value if math.isfinite(value) else None for name, value in found.items()}


def measure(name: str, seed: int, budget: float, rate: float) -> Record:
    model = MODELS[name]
    torch.manual_seed(seed)
    density = density_from_pyro(model)
    known = reference(name, density)
    fits: Mapping[str, FittedGuide] = compare(
        model,
        guides=GUIDES,
        budget=budget,
        learning_rate=rate,
        num_particles={WEIGHTED: EVALUATIONS},
        seed=seed,
    )
    rows: dict[str, Any] = {label: row(fit, density, known.moments) for label, fit in fits.items()}
    log_z, plain = known.log_z, rows[NORMAL]["bound"]
    for each in rows.values():
        has_bound = each["bound"] is not None
        each["share of the gap"] = (each["bound"] - plain) / (log_z - plain) if has_bound else None
    return {
        "model": name,
        "seed": seed,
        "budget": budget,
        "log Z": log_z,
        "error of log Z": known.error,
        "guides": rows,
    }


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("models", nargs="*", metavar="MODEL", help=", ".join(MODELS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1], metavar="SEED")
    parser.add_argument("--budget", type=float, default=20.0, help="CPU seconds for each guide")
    parser.add_argument("--rate", type=float, default=0.01, help="of Adam")


def run(args: argparse.Namespace) -> Iterator[Record]:
    if unknown := set(args.models) - set(MODELS):
        raise SystemExit(f"no model {', '.join(sorted(unknown))}; there are {', '.join(MODELS)}")
    for seed in args.seeds:
        for name in args.models or MODELS:
            began = time.process_time()
            record = measure(name, seed, args.budget, args.rate)
            yield {**record, "CPU seconds in all": time.process_time() - began}
