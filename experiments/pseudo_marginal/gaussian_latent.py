"""Pseudo-marginal chains on a normal model whose posterior is known.

x ~ N(0, I) in ten dimensions, z_m ~ N(x, σ² I), y_m ~ N(z_m, ε² I), m = 1 … 10, the z_m integrated out by
importance samples from their prior.  PM-MH, APM-MI+MH and APM-SS+MH run with many step sizes, APM-MI+SS and
APM-SS+SS with many widths, ten chains each from the prior.  --reading: σ = 1 and ε = 2 as the thesis prints
them, or σ = 2/3, with which estimates have the noise that it reports.  Written are result.json (effective
samples per density evaluation and per second, acceptance, the longest run of rejections, errors against the
exact posterior, also of many chains that start from exact draws), figure.png with the curves and
figure-traces.png.  [Graham 2018, §3.6.1, figures 3.3 to 3.9]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from experiments.pseudo_marginal.gaussian_figure import draw_curves, draw_traces
from experiments.pseudo_marginal.gaussian_model import DIM, Model
from experiments.pseudo_marginal.runs import BURN_IN, Outcome, explore
from experiments.report import configure_with_quick, write
from hmcvi.kernels import (
    ImportanceEstimator,
    Kernel,
    apm_mi_mh,
    apm_mi_ss,
    apm_ss_mh,
    apm_ss_ss,
    pm_mh,
)
from hmcvi.kernels.pseudo_marginal.kernels import PseudoMarginal
from hmcvi.sampling import sample

READINGS = {"printed": Model(1.0, 2.0), "noise": Model(2 / 3, 2.0)}
NUM_CHAINS = 10
STEPS, WIDTHS = (0.05, 1.0), (0.5, 10.0)
AUXILIARY = ("APM-MI+MH", "APM-SS+MH")  # whose u are shown


NUM_SETTINGS = {1: 20, 8: 10, 32: 10}  # by the number of importance samples
NUM_AUXILIARY, QUICK_AUXILIARY = 12_500, 100  # transitions of chains whose u are shown


class Check(NamedTuple):
    num_chains: int
    num_steps: int


CHECK, QUICK_CHECK = Check(1000, 200), Check(50, 3)


class Method(NamedTuple):
    """A kernel as a function of the estimator and its one setting, and between which values that is tried.

    num_draws: of each chain, by the number of importance samples
    """

    make: Callable[[ImportanceEstimator, Tensor], Kernel]
    setting: str
    bounds: tuple[float, float]
    num_draws: Mapping[int, int]

    def quick(self) -> Method:
        return self._replace(num_draws={n: max(20, length // 250) for n, length in self.num_draws.items()})


METHODS = {
    "PM-MH": Method(pm_mh, "step size", STEPS, {1: 50_000, 8: 10_000, 32: 3_000}),
    "APM-MI+MH": Method(apm_mi_mh, "step size", STEPS, {1: 20_000, 8: 5_000, 32: 1_500}),
    "APM-SS+MH": Method(apm_ss_mh, "step size", STEPS, {1: 5_000}),
    "APM-MI+SS": Method(apm_mi_ss, "width", WIDTHS, {1: 5_000}),
    "APM-SS+SS": Method(apm_ss_ss, "width", WIDTHS, {1: 5_000}),
}


def configure(parser: argparse.ArgumentParser) -> None:
    configure_with_quick(parser)
    parser.add_argument(
        "--reading", choices=READINGS, default="printed", help="of the noise in the thesis (default: printed)"
    )


def from_prior(count: int, seed: int) -> Tensor:
    return torch.randn(count, DIM, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def check(model: Model, method: Method, num_importance: int, setting: float, sizes: Check, seed: int) -> Any:
    """Measure how far many chains go from exact draws, in standard errors; they need not converge."""
    kernel = method.make(model.estimator(num_importance), torch.tensor(setting, dtype=torch.float64))
    assert isinstance(kernel, PseudoMarginal)
    generator = torch.Generator().manual_seed(seed)
    state = kernel.at(*model.draw(sizes.num_chains, num_importance, generator))
    draws = []
    for _ in range(sizes.num_steps):
        state, _ = kernel.step(state, generator)
        draws.append(state.position)
    means = [values.mean(1) for values in model.deviations(torch.stack(draws, 1))]
    scores = [m.mean(0) / (m.std(0) / sizes.num_chains**0.5) for m in means]
    return {name: float(score.abs().max()) for name, score in zip(("mean", "variance"), scores, strict=True)}


def auxiliary_chains(model: Model, name: str, step_size: float, num_draws: int, seed: int) -> Tensor:
    """The first u of ten chains with one importance sample, after burn-in  [chains, draws]"""
    found: list[Tensor] = []

    def keep(index: int, state: Any, info: Any) -> None:
        found.append(state.auxiliary[:, 0].clone())

    kernel = METHODS[name].make(model.estimator(1), torch.tensor(step_size, dtype=torch.float64))
    sample(
        kernel,
        from_prior(NUM_CHAINS, seed),
        num_draws,
        seed=seed,
        progress=False,
        check=False,
        callback=keep,
    )
    return torch.stack(found, 1)[:, int(BURN_IN * num_draws) :]


def run(args: argparse.Namespace) -> int:
    model = READINGS[args.reading]
    methods = {name: method.quick() if args.quick else method for name, method in METHODS.items()}
    outcomes: dict[tuple[str, int], Outcome] = {}
    reports: dict[str, Any] = {}
    for name, method in methods.items():
        for n, num_draws in method.num_draws.items():
            num_settings = 2 if args.quick else NUM_SETTINGS[n]
            grid = torch.linspace(*method.bounds, num_settings, dtype=torch.float64)
            make = partial(method.make, model.estimator(n))
            outcomes[name, n] = outcome = explore(
                make, grid, from_prior, NUM_CHAINS, num_draws, args.seed, n, model.deviations
            )
            reports[f"{name}, N = {n}"] = report = {"num_draws": num_draws, **outcome.report()}
            lengths = QUICK_CHECK if args.quick else CHECK
            report["error_of_exact_draws_in_standard_errors"] = check(
                model, method, n, outcome.best["setting"], lengths, args.seed
            )
            print(
                f"{name}, N = {n}: {outcome.best['ess_per_1000_evaluations']:.2g} effective draws per 1000 "
                f"evaluations, {outcome.cpu_seconds:.0f} CPU seconds",
                flush=True,
            )
    best = {key: report["best"]["ess_per_1000_evaluations"] for key, report in reports.items()}
    step_size = outcomes["APM-MI+MH", 1].best["setting"]
    lengths_of_u = QUICK_AUXILIARY if args.quick else NUM_AUXILIARY
    auxiliary = {
        name: auxiliary_chains(model, name, step_size, lengths_of_u, args.seed) for name in AUXILIARY
    }
    result = {
        "settings": {
            "seed": args.seed,
            "num_chains": NUM_CHAINS,
            "quick": args.quick,
            "reading": args.reading,
            "sigma": model.sigma,
            "epsilon": model.epsilon,
        },
        "cpu_seconds": sum(outcome.cpu_seconds for outcome in outcomes.values()),
        "standard_deviation_of_log_estimates": {n: model.spread_of_estimates(n) for n in NUM_SETTINGS},
        "gain_of_splitting_at_one_sample": best["APM-MI+MH, N = 1"] / best["PM-MH, N = 1"],
        "gain_of_slices_of_u_at_one_sample": best["APM-SS+MH, N = 1"] / best["APM-MI+MH, N = 1"],
        "methods": reports,
    }
    figure = write(args.out, result)
    draw_curves(reports, METHODS, figure)
    draw_traces(outcomes, auxiliary, model, figure.with_name("figure-traces.png"))
    print(
        f"APM-MI+MH has {result['gain_of_splitting_at_one_sample']:.1f} times the effective samples per "
        f"density evaluation of PM-MH, APM-SS+MH {result['gain_of_slices_of_u_at_one_sample']:.1f} times "
        "those of APM-MI+MH, one importance sample each"
    )
    return 0
