"""What a training run tells about its chain: the parts of the bound, step sizes, masses, acceptance."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from hmcvi.chain import Context
from hmcvi.internal.processes import Processes
from hmcvi.kernels import Mass, Metric, NetworkStepSize, Persistence, Schedule, StepSize
from hmcvi.models import VAE
from hmcvi.models.vae import Refinement

PARTS = ("momentum", "acceptance", "flow", "annealing", "langevin")  # prices that steps report


class RunningMeans:
    """Means of named quantities and totals of counts, over the batches of an epoch so far.

    totals: {name: sum of values or count, "#name": how many values}.  They stay on the device of the values
    until they are read.
    """

    def __init__(self, totals: dict[str, float] | None = None) -> None:
        self._totals: dict[str, float | Tensor] = dict(totals or {})

    def __contains__(self, name: str) -> bool:
        return f"#{name}" in self._totals

    @property
    def totals(self) -> dict[str, float]:
        """All of them, by one transfer from the device."""
        waiting = {name: total for name, total in self._totals.items() if isinstance(total, Tensor)}
        if waiting:
            self._totals.update(zip(waiting, torch.stack(list(waiting.values())).tolist(), strict=True))
        return {name: float(total) for name, total in self._totals.items()}

    def add(self, name: str, values: Tensor) -> None:
        """Take the finite ones among `values` into the mean."""
        values = values.detach().double()
        finite = values.isfinite()
        self.count(name, values.where(finite, 0.0).flatten().sum())
        self.count(f"#{name}", finite.sum(dtype=torch.double))

    def count(self, name: str, number: float | Tensor) -> None:
        """number: a tensor of it is float64."""
        self._totals[name] = self._totals.get(name, 0.0) + number

    def mean(self, name: str) -> float:
        totals = self.totals
        count = totals.get(f"#{name}", 0.0)
        return totals[name] / count if count else math.nan

    def of_all(self, processes: Processes) -> RunningMeans:
        """Over the values of all processes."""
        joined = RunningMeans()
        for totals in processes.gather(self.totals):
            for name, value in totals.items():
                joined.count(name, value)
        return joined


def add_refinement(means: RunningMeans, refinement: Refinement, bound: Tensor) -> None:
    """Add one batch: its bound, the bound's parts, and what the chain did."""
    weights, transition, log_base, _ = refinement
    position = transition.state.position.detach()
    log_prior = -0.5 * (position.square() + math.log(2 * math.pi)).sum(-1)
    prices = {name: transition.info[name].sum(0) for name in PARTS if name in transition.info}
    log_target = weights.log_weight + log_base - transition.log_ratio
    means.add("bound", bound)
    means.add("reconstruction", log_target - log_prior)
    means.add("prior", log_prior)
    means.add("entropy", -log_base)
    if not prices:
        means.add("kl", log_base - log_prior)
    for name, price in prices.items():
        means.add(name, price)
    if weights.initial is not None:
        means.add("gain", weights.log_weight - weights.initial)
    if "accepted" in transition.info:
        means.add("acceptance_rate", transition.info["accepted"].double())
    if "diverged" in transition.info:
        means.count("divergences", transition.info["diverged"].sum(dtype=torch.double))
    means.count("masked", (~weights.log_weight.isfinite()).sum(dtype=torch.double))


@torch.no_grad()
def chain_parameters(model: VAE, x: Tensor) -> dict[str, Tensor]:
    """The learned numbers of the chain for data x: step size, eigenvalues of the mass, α, temperatures."""
    context, found = Context(x), {}
    for module in model.chain.modules():
        match module:
            case StepSize() | NetworkStepSize():
                found["step_size"] = module(context).flatten()
            case Mass():
                found["mass"] = eigenvalues(module(context), torch.eye(model.latent_dim).to(x))
            case Persistence():
                found["persistence"] = module().flatten()
            case Schedule():
                found["temperature"] = module()
    return found


def eigenvalues(metric: Metric, identity: Tensor) -> Tensor:
    """The spectrum of M = L Lᵀ, ascending, averaged over data if it depends on them.  [d, d] -> [d]"""
    root = metric.color(identity[:, None, :]).transpose(0, 1)  # rows (L e_i)ᵀ, [batch, d, d]
    return torch.linalg.eigvalsh(root.mT @ root).mean(0)
