"""The same question for a guide of Pyro: chains of twelve forces that refine a normal distribution.

python -m experiments informed-pyro            every chain that has no point yet
python -m experiments informed-pyro --report   the table

The model is eight schools with their effects as latents (centred), whose posterior is a funnel.  Base and
chain are trained together by SVI, each guide for the same time of the processor.  Every guide is a point,
results/informed/eight-schools/NAME.json: its ELBO, one chain for each draw, and the share of the gap between
the ELBO of the base alone and log Z that it closes.  log Z is that of the non-centred model, which is the
same and easy to anneal.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import pyro
import torch
from pyro import distributions as dist
from pyro.infer import SVI, Trace_ELBO
from torch import Tensor

from experiments.refinement import points, scores
from experiments.refinement.points import Point, make_points, read_points
from experiments.table1.rows import ROOT
from hmcvi.commands.endings import exit_code
from hmcvi.evidence import ais
from hmcvi.pyro import AutoHMC, density_from_pyro
from hmcvi.training import ConfigError, InterruptGuard

EFFECTS = torch.tensor([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
ERRORS = torch.tensor([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])

LIKELIHOOD, BASE = "likelihood", "base"
LONG = {"num_hmc": 12, "num_leapfrog": 1}
POSITION = {"reverse_sees": ("position",)}
GUIDES: dict[str, dict[str, Any]] = {
    BASE: {"num_hmc": 0, "chain": "hamiltonian"},
    "paper": {"num_hmc": 3, "num_leapfrog": 4, "chain": "hamiltonian", **POSITION},
    "informed": {"num_hmc": 3, "num_leapfrog": 4, "chain": "hamiltonian"},
    "informed-12x1": {**LONG, "chain": "hamiltonian"},
    "annealed": {**LONG, "chain": "annealed"},
    "annealed-informed": {**LONG, "chain": "ldvi"},
}
NUM_PARTICLES, NUM_DRAWS = 64, 10_000  # of a step of SVI, of the ELBO at the end


def schools(centred: bool = True) -> None:
    """[Rubin 1981]"""
    mu = pyro.sample("mu", dist.Normal(0.0, 5.0))
    tau = pyro.sample("tau", dist.HalfCauchy(5.0))
    with pyro.plate("schools", 8):
        theta = pyro.sample("theta", dist.Normal(mu, tau) if centred else dist.Normal(0.0, 1.0))
        mean = theta if centred else mu + tau * theta
        pyro.sample("effects", dist.Normal(mean, ERRORS), obs=EFFECTS)


def configure(parser: argparse.ArgumentParser) -> None:
    out = ROOT / "results" / "informed" / "eight-schools"
    points.configure(parser, [LIKELIHOOD, *GUIDES], out, seconds=20.0, images=0, lr=1e-2)


def run(args: argparse.Namespace) -> int:
    return exit_code(lambda: _run(args))


def _run(args: argparse.Namespace) -> int:
    names = points.checked(args.names, [LIKELIHOOD, *GUIDES])
    if not args.report:
        torch.set_num_threads(1)
        with InterruptGuard() as guard:
            make_points(names, args.out, lambda name: point(name, args), guard)
    found = read_points([LIKELIHOOD, *GUIDES], args.out)
    if missing := {LIKELIHOOD, BASE} - found.keys():
        raise ConfigError(f"{args.out} has no {sorted(missing)[0]}.json, from which the gap is computed")
    print(markdown(found))
    return 0


def point(name: str, args: argparse.Namespace) -> Point:
    """log Z, or a guide trained for the time."""
    pyro.clear_param_store()
    torch.manual_seed(args.seed)
    if name == LIKELIHOOD:
        density = density_from_pyro(lambda: schools(centred=False))
        evidence = ais(dist.Normal(torch.zeros(density.layout.dim), 1.0).to_event(1), density, 300, 2000)
        return {"log_z": float(evidence.log_z), "log_z_se": float(evidence.std_error)}
    guide = AutoHMC(schools, base="mvn", num_particles=1, **GUIDES[name])
    elbo = Trace_ELBO(num_particles=NUM_PARTICLES, vectorize_particles=True, max_plate_nesting=1)
    svi = SVI(schools, guide, pyro.optim.ClippedAdam({"lr": args.lr}), elbo)
    steps, began = 0, time.process_time()
    while (spent := time.process_time() - began) < args.seconds:
        svi.step()
        steps += 1
    found = scores.figures(log_weights(guide), "bound")
    return {**found, "steps": steps, "cpu_seconds": spent, "seed": args.seed, "guide": GUIDES[name]}


def log_weights(guide: AutoHMC) -> Tensor:
    """Of fresh draws, whose mean is the ELBO.  [NUM_DRAWS]"""
    with torch.no_grad():
        return guide.log_weights(NUM_DRAWS).double()


def markdown(found: dict[str, Point]) -> str:
    """One line per guide."""
    log_z, plain = found[LIKELIHOOD]["log_z"], found[BASE]["bound"]
    lines = ["| guide | ELBO | share of gap | steps |", "|---|---|---|---|"]
    for name in (name for name in GUIDES if name in found):
        each = found[name]
        share = 100 * (each["bound"] - plain) / (log_z - plain)
        bound = f"{each['bound']:.2f} ± {each['bound_se']:.2f}".replace("-", "−")
        lines.append(f"| {name} | {bound} | {share:.0f} % | {each['steps']} |")
    return "\n".join(lines)
