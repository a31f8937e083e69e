"""Minibatches of a hierarchical model: AutoSemiHMC against AutoNormal, for the same CPU time from scratch.

Logistic regressions of many groups, whose intercepts and slopes are drawn from a common distribution; each
step sees some of the groups.  For each seed and guide: the bound given all groups with its standard error,
RMS errors of the means of the global latents, in standard deviations, and of the logarithms of these, both
against draws by `hmcvi.sample`, and the number of steps.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from typing import Any

import pyro
import torch
from pyro import distributions as dist
from pyro.infer import SVI, Trace_ELBO
from pyro.infer.autoguide import AutoGuide, AutoNormal
from torch import Tensor

import hmcvi
from benchmarks.measuring import Record
from hmcvi.kernels import HMC
from hmcvi.pyro import AutoSemiHMC, density_from_pyro

NUM_GROUPS, PER_GROUP, BATCH = 200, 8, 20
GLOBAL = ("mean", "spread")


class Groups:
    """y_ni ~ Bernoulli(logit = a_n + b_n x_i), (a_n, b_n) ~ N(mean, diag(spread²)), n = 1, …, N."""

    def __init__(self, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.x = torch.linspace(-1.5, 1.5, PER_GROUP)
        effects = torch.tensor([-0.5, 1.0]) + torch.tensor([1.0, 1.5]) * torch.randn(
            NUM_GROUPS, 2, generator=generator
        )
        self.y = torch.bernoulli(self._logits(effects).sigmoid(), generator=generator)

    def _logits(self, effect: Tensor) -> Tensor:
        return effect[..., :1] + effect[..., 1:] * self.x

    def __call__(self, size: int) -> None:
        """size: of the minibatch"""
        mean = pyro.sample("mean", dist.Normal(torch.zeros(2), 2.0).to_event(1))
        spread = pyro.sample("spread", dist.HalfNormal(torch.full((2,), 2.0)).to_event(1))
        with self.plate(size) as index:
            effect = pyro.sample("effect", dist.Normal(mean, spread).to_event(1))
            pyro.sample("y", dist.Bernoulli(logits=self._logits(effect)).to_event(1), obs=self.y[index])

    @staticmethod
    def plate(size: int) -> Any:
        return pyro.plate("groups", NUM_GROUPS, subsample_size=size, dim=-1)


GUIDES: dict[str, Callable[[Groups], AutoGuide]] = {
    "AutoSemiHMC": AutoSemiHMC,
    "AutoNormal": lambda model: AutoNormal(model, create_plates=model.plate),
}


def reference(model: Groups) -> dict[str, Tensor]:
    """Draws of the global latents.  {site: [n, 2]}"""
    density = density_from_pyro(model, NUM_GROUPS)
    draws = hmcvi.sample(
        HMC(density, 0.1), num_chains=16, num_samples=1000, num_warmup=1000, seed=0, progress=False
    )
    values = density.constrain(draws.position.flatten(0, 1))
    return {name: values[name] for name in GLOBAL}


def errors(found: dict[str, Tensor], known: dict[str, Tensor]) -> Record:
    mean, sd = [], []
    for name in GLOBAL:
        scale = known[name].std(0)
        mean.append((found[name].mean(0) - known[name].mean(0)) / scale)
        sd.append((found[name].std(0) / scale).log())
    return {
        "mean error": float(torch.cat(mean).square().mean().sqrt()),
        "log sd error": float(torch.cat(sd).square().mean().sqrt()),
    }


def measure(
    make: Callable[[Groups], AutoGuide], model: Groups, args: argparse.Namespace, seed: int
) -> Record:
    pyro.clear_param_store()
    pyro.set_rng_seed(seed)
    began, steps = time.process_time(), 0
    guide = make(model)
    svi = SVI(model, guide, pyro.optim.Adam({"lr": args.rate}), Trace_ELBO())
    while (used := time.process_time() - began) < args.budget:
        svi.step(BATCH)
        steps += 1
    with torch.no_grad():
        bounds = torch.tensor([-Trace_ELBO().loss(model, guide, NUM_GROUPS) for _ in range(args.draws)])
        draws = [guide(NUM_GROUPS) for _ in range(args.draws)]
    found = {name: torch.stack([draw[name] for draw in draws]) for name in GLOBAL}
    return {
        "bound": float(bounds.mean()),
        "standard error": float(bounds.std() / len(bounds) ** 0.5),
        **errors(found, args.known),
        "steps": steps,
        "CPU seconds": used,
    }


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1], metavar="SEED")
    parser.add_argument("--budget", type=float, default=20.0, help="CPU seconds for each guide")
    parser.add_argument("--rate", type=float, default=0.01, help="of Adam")
    parser.add_argument("--draws", type=int, default=500, help="of each trained guide")


def run(args: argparse.Namespace) -> Iterator[Record]:
    for seed in args.seeds:
        model = Groups(seed)
        args.known = reference(model)
        for name, make in GUIDES.items():
            setting = {"groups": NUM_GROUPS, "batch": BATCH, "seed": seed, "budget": args.budget}
            yield {**setting, "guide": name, **measure(make, model, args, seed)}
