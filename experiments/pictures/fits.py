"""Fits in pictures: Laplace's method, and normal distributions fitted to two modes by three divergences.

Written are figure.png and result.json: the fits, their bounds by quadrature, and what each is worth as a base
for importance sampling.  With --data FOLDER the published fits beside them, which that folder has in
variational-objective-comparison.csv.  [after Graham 2018, figures C.1 and C.2]
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor
from torch.distributions import Categorical, MixtureSameFamily, Normal

from experiments.pictures.hmc import skewed
from experiments.report import BLUE, DARK, GREEN, GREY, ORANGE, save_figure, title, write
from experiments.report import configure as configure_output
from hmcvi.density import Density
from hmcvi.evidence import Fit, fit_renyi, importance, laplace

__all__ = ["configure", "run"]

F64 = torch.float64
TARGET = MixtureSameFamily(  # what the published figure has: p of its file to rounding
    Categorical(torch.tensor([0.2, 0.8], dtype=F64)),
    Normal(torch.tensor([-4.8, 1.2], dtype=F64), torch.tensor([0.25, 2.0], dtype=F64)),
)
ALPHAS = {"q_kl_pq": 0.0, "q_renyi": 0.5, "q_kl_qp": 1.0}  # of the columns of the published file
TITLES = {0.0: "KL[p ‖ q], α = 0", 0.5: "Rényi, α = ½", 1.0: "KL[q ‖ p], α = 1", -1.0: "χ², α = −1"}
NUM_SAMPLES, NUM_REPEATS = 1000, 50


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the folder of the published fits."""
    configure_output(parser)
    parser.add_argument("--data", metavar="FOLDER", type=Path, help="folder of the published fits")


def run(args: argparse.Namespace) -> int:
    density = Density(lambda z: TARGET.log_prob(z[..., 0]))
    start = torch.ones(1, dtype=F64)
    fits = {alpha: fit_renyi(density, start, alpha, seed=args.seed) for alpha in TITLES}
    known = {} if args.data is None else published(args.data / "variational-objective-comparison.csv")
    result: dict[str, Any] = {"fits": {}, "published": {}}
    for alpha, fit in fits.items():
        mean, scale = fit.mean[0], fit.stddev[0]
        result["fits"][TITLES[alpha]] = described(alpha, mean, scale) | worth(density, fit)
    for alpha, (mean, scale) in known.items():
        result["published"][TITLES[alpha]] = described(alpha, mean, scale)
    figure = Figure(figsize=(13, 3.4), layout="constrained")
    panels = figure.subplots(1, 4)
    result["laplace"] = draw_laplace(panels[0])
    for axes, alpha in zip(panels[1:], ALPHAS.values(), strict=True):
        draw_fit(axes, alpha, fits[alpha], known.get(alpha))
    save_figure(figure, write(args.out, result))
    return 0


def published(path: Path) -> dict[float, tuple[Tensor, Tensor]]:
    """Mean and standard deviation of each published fit, from its log density, a parabola."""
    table = np.genfromtxt(path, delimiter=",", names=True)
    found = {}
    for name, alpha in ALPHAS.items():
        curvature, slope, _ = np.polyfit(table["x"], np.log(table[name]), 2)
        found[alpha] = (torch.tensor(-0.5 * slope / curvature), torch.tensor((-0.5 / curvature) ** 0.5))
    return found


def bound(alpha: float, mean: Tensor, scale: Tensor) -> float:
    """L_α of N(mean, scale²) by quadrature; log Z is zero."""
    x = torch.linspace(-40, 40, 80_001, dtype=F64)
    log_p, log_q = TARGET.log_prob(x), Normal(mean.to(F64), scale.to(F64)).log_prob(x)
    if alpha == 1:
        return float((log_q.exp() * (log_p - log_q)).sum() * (x[1] - x[0]))
    total = (alpha * log_q + (1 - alpha) * log_p).logsumexp(0) + (x[1] - x[0]).log()
    return float(total / (1 - alpha))


def described(alpha: float, mean: Tensor, scale: Tensor) -> dict[str, float]:
    """A fit and its bound; for α = 0, whose bound is log Z for all q, −KL[p ‖ q] instead."""
    x = torch.linspace(-40, 40, 80_001, dtype=F64)
    log_p, log_q = TARGET.log_prob(x), Normal(mean.to(F64), scale.to(F64)).log_prob(x)
    divergence = float((log_p.exp() * (log_p - log_q)).sum() * (x[1] - x[0]))
    value = -divergence if alpha == 0 else bound(alpha, mean, scale)
    return {"mean": float(mean), "standard_deviation": float(scale), "bound": value}


def worth(density: Density, fit: Fit) -> dict[str, float]:
    """Of a fit as a base of importance sampling: effective share of the samples, error of log Z."""
    runs = [importance(fit, density, NUM_SAMPLES, seed=seed) for seed in range(NUM_REPEATS)]
    errors = torch.tensor([float(run.log_z) for run in runs])
    return {
        "mean_effective_share": float(np.mean([float(run.ess) for run in runs])) / NUM_SAMPLES,
        "rmse_of_log_z": float(errors.square().mean().sqrt()),
    }


def draw_laplace(axes: Axes) -> dict[str, float]:
    """Draw a skewed density and the parabola at the mode of its logarithm, as densities."""
    fit = laplace(Density(skewed), torch.zeros(1, dtype=F64))
    x = torch.linspace(-6, 12, 400, dtype=F64)
    log_z = -torch.tensor(0.4, dtype=F64).log()  # of e^{−αx} (1 + e^{−x})^{−1−α}, α = 0.4
    axes.plot(x, (skewed(x[:, None]) - log_z).exp(), color=GREEN, label="p")
    axes.plot(x, fit.log_prob(x[:, None]).exp(), "--", color=ORANGE, label="q")
    axes.axvline(float(fit.mean), color=GREY, linestyle=":", linewidth=1.0)
    axes.set_xlabel("x")
    axes.legend(frameon=False, fontsize=8)
    title(axes, "Laplace's method")
    return {
        "mode": float(fit.mean),
        "standard_deviation": float(fit.stddev),
        "log_zeta": float(fit.log_zeta),
        "log_z": float(log_z),
    }


def draw_fit(axes: Axes, alpha: float, fit: Fit, known: tuple[Tensor, Tensor] | None) -> None:
    """Draw the target with two modes, our fit and, if there is one, the published one."""
    x = torch.linspace(-9, 9, 600, dtype=F64)
    axes.fill_between(x, TARGET.log_prob(x).exp(), color=GREY, alpha=0.4, linewidth=0, label="p")
    axes.plot(x, fit.log_prob(x[:, None]).exp(), color=BLUE, label="q")
    if known is not None:
        axes.plot(x, Normal(*known).log_prob(x).exp(), ":", color=DARK, label="q, published")
    axes.set_xlabel("x")
    axes.set_ylim(0, 0.34)
    axes.legend(frameon=False, fontsize=8, loc="upper right")
    title(axes, TITLES[alpha])
