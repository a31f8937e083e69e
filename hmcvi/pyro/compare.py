"""Which guide should I use? The usual ones and ours, each for the same CPU time on the user's own model."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pyro
import torch
from pyro import poutine
from pyro.infer import SVI, RenyiELBO, Trace_ELBO, TraceEnum_ELBO
from pyro.infer.autoguide import AutoDiagonalNormal, AutoIAFNormal, AutoMultivariateNormal
from pyro.optim import Adam  # type: ignore[attr-defined]
from torch import Tensor

from hmcvi.evidence.pareto import pareto_k
from hmcvi.internal.checks import at_least, positive
from hmcvi.internal.seeds import seed_all
from hmcvi.pyro.density import density_from_pyro
from hmcvi.pyro.guide import AutoHMC
from hmcvi.pyro.latents import Latents, Model, find_latents
from hmcvi.pyro.refined import RefinedGuide

MakeGuide = Callable[[Model], Any]

GUIDES: dict[str, MakeGuide] = {
    "AutoDiagonalNormal": AutoDiagonalNormal,
    "AutoMultivariateNormal": AutoMultivariateNormal,
    "AutoIAFNormal": AutoIAFNormal,
    "AutoHMC": AutoHMC,
}


@dataclass(frozen=True, eq=False)
class FittedGuide:
    """What became of one guide."""

    name: str
    bound: float  # mean log-weight of a draw, a lower bound of log Z
    std_error: float
    pareto_k: float  # of these weights: how far to trust averages over them
    means: Mapping[str, Tensor]  # of each latent site
    stddevs: Mapping[str, Tensor]
    num_steps: int
    cpu_seconds: float
    draws: Mapping[str, Tensor]  # {site: [num_draws, *shape]}


class Comparison(dict[str, FittedGuide]):
    """{name: its fit}, printed as a table, best bound first."""

    def __str__(self) -> str:
        width = max(len(name) for name in self)
        lines = [f"{'guide':<{width}}  {'bound':>18}  {'k̂':>5}  {'steps':>6}  {'CPU s':>6}"]
        for fit in sorted(self.values(), key=lambda fit: -fit.bound):
            bound = f"{fit.bound:.3f} ± {fit.std_error:.3f}"
            lines.append(
                f"{fit.name:<{width}}  {bound:>18}  {fit.pareto_k:>5.2f}  {fit.num_steps:>6}  "
                f"{fit.cpu_seconds:>6.1f}"
            )
        lines.append("bound: higher is better; k̂ above 0.7: do not trust averages over its weights")
        return "\n".join(lines)


def compare(
    model: Model,
    *args: Any,
    guides: Mapping[str, MakeGuide] = GUIDES,
    budget: float = 20.0,
    learning_rate: float = 0.01,
    num_draws: int = 1000,
    num_particles: Mapping[str, int] | None = None,
    seed: int = 0,
    **kwargs: Any,
) -> Comparison:
    """Train each guide by SVI for `budget` CPU seconds, from scratch, and say what it gives.

    guides: {name: function of the model that makes a guide}.  num_particles: {name: K}, for guides that are
    trained and judged by K weighted draws (RenyiELBO).  The param store and the random state are restored.
    Discrete latents that the model marks by `config_enumerate` are summed out, with TraceEnum_ELBO.

    >>> from pyro.distributions import Normal
    >>> def model():
    ...     z = pyro.sample("z", Normal(torch.zeros(2), 1.0).to_event(1))
    ...     pyro.sample("x", Normal(z.prod(-1), 0.5), obs=torch.tensor(2.0))
    >>> table = compare(model, budget=0.1, num_draws=50)
    >>> sorted(table) == sorted(GUIDES)
    True
    """
    positive(budget, "budget")
    at_least(2, num_draws=num_draws)
    particles = dict(num_particles or {})
    if unknown := particles.keys() - guides.keys():
        raise ValueError(f"num_particles names {sorted(unknown)[0]!r}, which is not among the guides")
    with _apart(seed):
        latents = find_latents("compare", model, args, kwargs, subsample=True)
    if latents.summed_out and max(particles.values(), default=1) > 1:
        raise ValueError(
            "num_particles needs a model without discrete latents: "
            f"{', '.join(sorted(latents.summed_out))} are summed out, with TraceEnum_ELBO"
        )
    fits = Comparison()
    for name, make in guides.items():
        problem = Problem(model, args, kwargs, latents, particles.get(name, 1))
        try:
            with _apart(seed):
                fits[name] = _fit(name, make, problem, budget, learning_rate, num_draws)
        except (ValueError, RuntimeError) as error:  # NaN in its parameters, say: the others go on
            warnings.warn(f"{name} failed and is left out: {str(error).splitlines()[0]}", stacklevel=2)
    if not fits:
        raise RuntimeError("no guide could be trained on this model")
    return fits


@dataclass(frozen=True, eq=False)
class Problem:
    """A model with its data, and by how many weighted draws a guide of it is judged."""

    model: Model
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    latents: Latents
    num_particles: int

    def guide(self, make: MakeGuide) -> Any:
        """Guides other than ours are of the model without the latents that are summed out."""
        guide, hidden = make(self.model), self.latents.summed_out
        if hidden and not isinstance(guide, RefinedGuide):
            return make(poutine.block(self.model, hide=list(hidden)))
        return guide

    def elbo(self) -> Any:
        if self.latents.summed_out:
            return TraceEnum_ELBO(max_plate_nesting=self.latents.nesting)
        if self.num_particles == 1:
            return Trace_ELBO()
        return RenyiELBO(alpha=0.0, num_particles=self.num_particles, vectorize_particles=True)


def _fit(
    name: str, make: MakeGuide, problem: Problem, budget: float, learning_rate: float, num_draws: int
) -> FittedGuide:
    began, num_steps = time.process_time(), 0
    guide, elbo = problem.guide(make), problem.elbo()
    svi = SVI(problem.model, guide, Adam({"lr": learning_rate}), elbo)
    while (used := time.process_time() - began) < budget:
        svi.step(*problem.args, **problem.kwargs)
        num_steps += 1
    log_weights, draws = _weigh(problem, guide, num_draws)
    k = float(pareto_k(log_weights))
    if problem.num_particles > 1:
        with torch.no_grad():
            losses = [
                elbo.loss(problem.model, guide, *problem.args, **problem.kwargs)
                for _ in range(max(2, num_draws // 5))
            ]
        log_weights = -torch.tensor(losses, dtype=torch.float64)
    return FittedGuide(
        name,
        float(log_weights.mean()),
        float(log_weights.std()) / math.sqrt(len(log_weights)),
        k,
        {site: value.mean(0) for site, value in draws.items()},
        {site: value.std(0) for site, value in draws.items()},
        num_steps,
        used,
        draws,
    )


@torch.no_grad()
def _weigh(problem: Problem, guide: Any, count: int) -> tuple[Tensor, dict[str, Tensor]]:
    """log p(x, z) − log q(z) of single draws [count], and the draws."""
    model, args, kwargs = problem.model, problem.args, problem.kwargs
    log_weights, draws = [], []
    sites: list[str] = list(problem.latents.sites) if problem.latents.summed_out else []
    for _ in range(count):
        guide_trace = poutine.trace(guide).get_trace(*args, **kwargs)
        log_q = guide_trace.log_prob_sum()
        if problem.latents.summed_out:
            nodes: Any = guide_trace.nodes
            log_weights.append(-log_q)
        else:
            model_trace = poutine.trace(poutine.replay(model, trace=guide_trace)).get_trace(*args, **kwargs)
            log_weights.append(model_trace.log_prob_sum() - log_q)
            nodes = model_trace.nodes
            sites = sites or _continuous(model_trace)
        draws.append({site: nodes[site]["value"].detach() for site in sites})
    stacked = {site: torch.stack([draw[site] for draw in draws]) for site in sites}
    total = torch.stack([torch.as_tensor(value).double() for value in log_weights])
    if problem.latents.summed_out:
        total = total + _log_marginal(problem, stacked)
    return total, stacked


def _log_marginal(problem: Problem, values: Mapping[str, Tensor]) -> Tensor:
    """log p(x, z), discrete latents summed out.  {site: [n, *shape]} -> [n]"""
    density = density_from_pyro(problem.model, *problem.args, **problem.kwargs)
    position = density.unconstrain(values)
    log_det = [
        torch.as_tensor(density.latents.constrain(density.layout.unflatten(row))[1]) for row in position
    ]
    return (density.log_prob(position) - torch.stack(log_det)).double()


def _continuous(trace: Any) -> list[str]:
    """The latent sites whose values are real numbers."""
    return [name for name, site in trace.iter_stochastic_nodes() if site["value"].is_floating_point()]


@contextmanager
def _apart(seed: int) -> Iterator[None]:
    """A param store and random numbers of their own, without the warnings of models that do not vectorise."""
    with pyro.get_param_store().scope(), torch.random.fork_rng(), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        pyro.clear_param_store()
        seed_all(seed)
        yield
