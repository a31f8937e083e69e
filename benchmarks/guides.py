"""One line: AutoHMC(model) against the guides of Pyro and NumPyro, each for the same CPU time from scratch.

For each model and seed: log Z and moments, exact or by annealed importance sampling with its error, and for
each guide the bound, its share of AutoMultivariateNormal's gap to log Z, errors of means and standard
deviations in units of the posterior, k̂ and the number of steps.  The importance-weighted
AutoMultivariateNormal has as many evaluations of the model in a draw as AutoHMC.  NumPyro's guides take part
with `--peer-python`; the time of their compilation, "CPU seconds before", comes on top of theirs.
"""

from __future__ import annotations

import argparse
import json
import math
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from pyro import poutine
from pyro.infer.autoguide import AutoIAFNormal, AutoMultivariateNormal
from torch import Tensor

from benchmarks.guide_models import EXACT, MODELS
from benchmarks.guide_table import markdown
from benchmarks.measuring import Record
from benchmarks.workers import add_peer_python, idle_cores, worker
from hmcvi.evidence import Evidence, ais, fit_normal, pareto_k
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
PEERS = ("AutoDAIS", "AutoDAIS, K=8, cholesky", "AutoBNAFNormal")
COSTS = ("steps", "CPU seconds", "CPU seconds before", "error")
FAILED: Record = dict.fromkeys(("bound", "standard error", "pareto k", "mean error", "log sd error"))
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


def peer(name: str, label: str, answer: Mapping[str, Any]) -> FittedGuide:
    """What a guide of NumPyro says of itself, once its model has been found to be ours."""
    draws = {site: torch.tensor(values) for site, values in answer["draws"].items()}
    check_model(name, draws, answer["log joint"])
    log_weights = torch.tensor(answer["log weights"], dtype=torch.float64)
    return FittedGuide(
        label,
        float(log_weights.mean()),
        float(log_weights.std()) / math.sqrt(len(log_weights)),
        float(pareto_k(log_weights)),
        {site: value.mean(0) for site, value in draws.items()},
        {site: value.std(0) for site, value in draws.items()},
        answer["steps"],
        answer["CPU seconds"],
        draws,
    )


def check_model(name: str, draws: Mapping[str, Tensor], log_joint: Sequence[float]) -> None:
    """Compare log p(x, z) of the first draws with those of the Pyro model."""
    for index, theirs in enumerate(log_joint):
        values = {site: value[index] for site, value in draws.items()}
        ours = float(poutine.trace(poutine.condition(MODELS[name], values)).get_trace().log_prob_sum())
        if not math.isclose(ours, theirs, rel_tol=1e-3, abs_tol=1e-2):
            raise RuntimeError(f"the models of {name} differ: log p(x, z) = {ours} here, {theirs} in NumPyro")


def add_shares(rows: Mapping[str, dict[str, Any]], log_z: float) -> None:
    """Of AutoMultivariateNormal's gap to log Z, where it took part."""
    plain = rows.get(NORMAL, {}).get("bound")
    for each in rows.values():
        bound = each["bound"]
        each["share of the gap"] = (
            None if plain is None or bound is None else (bound - plain) / (log_z - plain)
        )


def measure(
    name: str, seed: int, budget: float, rate: float, labels: Sequence[str], python: str | None
) -> Record:
    model = MODELS[name]
    torch.manual_seed(seed)
    density = density_from_pyro(model)
    known = reference(name, density)
    guides = {label: make for label, make in GUIDES.items() if label in labels}
    rows: dict[str, Any] = {}
    if guides:
        fits = compare(
            model,
            guides=guides,
            budget=budget,
            learning_rate=rate,
            num_particles={WEIGHTED: EVALUATIONS} if WEIGHTED in guides else None,
            seed=seed,
        )
        rows = {label: row(fit, density, known.moments) for label, fit in fits.items()}
    peers = [label for label in PEERS if label in labels]
    if python is not None and peers:
        with worker("guide_engines", name, budget, rate, cores=idle_cores(1), python=python) as engine:
            for label in peers:
                answer = engine.ask(json.dumps([label, seed]))
                failed = "draws" not in answer
                found = FAILED if failed else row(peer(name, label, answer), density, known.moments)
                rows[label] = {**found, **{key: answer[key] for key in COSTS if key in answer}}
    add_shares(rows, known.log_z)
    record = {
        "model": name,
        "seed": seed,
        "budget": budget,
        "log Z": known.log_z,
        "error of log Z": known.error,
        "guides": rows,
    }
    return record | ({"versions": engine.start["versions"]} if python is not None and peers else {})


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("models", nargs="*", metavar="MODEL", help=", ".join(MODELS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1], metavar="SEED")
    parser.add_argument("--budget", type=float, default=20.0, help="CPU seconds for each guide")
    parser.add_argument("--rate", type=float, default=0.01, help="of Adam")
    parser.add_argument(
        "--guides", nargs="+", choices=[*GUIDES, *PEERS], default=[*GUIDES, *PEERS], metavar="GUIDE"
    )
    parser.add_argument("--table", type=Path, metavar="FILE", help="print the table of records, run nothing")
    add_peer_python(parser)


def run(args: argparse.Namespace) -> Iterator[Record]:
    if args.table is not None:
        print(markdown(args.table, [*GUIDES, *PEERS]))
        return
    if unknown := set(args.models) - set(MODELS):
        raise SystemExit(f"no model {', '.join(sorted(unknown))}; there are {', '.join(MODELS)}")
    for seed in args.seeds:
        for name in args.models or MODELS:
            began = time.process_time()
            record = measure(name, seed, args.budget, args.rate, args.guides, args.peer_python)
            yield {**record, "CPU seconds in all": time.process_time() - began}
