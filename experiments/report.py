"""What all experiments share: arguments, result files, timing, diagnostics, the style of figures."""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, ParamSpec, TypeVar

import numpy as np
from matplotlib.axes import Axes
from matplotlib.container import BarContainer
from matplotlib.figure import Figure
from torch import Tensor

from hmcvi.evidence import EvidenceWarning
from hmcvi.internal.storage import save_json
from hmcvi.kernels import Kernel
from hmcvi.sampling import Draws, sample
from hmcvi.sampling.diagnostics import arviz

P = ParamSpec("P")
Result = TypeVar("Result")

# told apart by colour-blind readers  [Okabe & Ito 2008]
BLUE, ORANGE, GREEN, RED, PURPLE, SKY = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9"
GREY, DARK = "#9A9A9A", "#222222"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of every experiment."""
    parser.add_argument("--out", type=Path, required=True, help="folder for result.json and figure.png")
    parser.add_argument("--seed", type=int, default=0)


def configure_with_quick(parser: argparse.ArgumentParser) -> None:
    """Add --quick as well."""
    configure(parser)
    parser.add_argument("--quick", action="store_true", help="seconds instead of minutes, and larger errors")


def configure_with_run(parser: argparse.ArgumentParser, likelihood: str) -> None:
    """Add the folder of a trained model as well."""
    configure_with_quick(parser)
    parser.add_argument("--run", metavar="RUN", type=Path, help=f"folder of a trained {likelihood} VAE")
    parser.add_argument("--data", metavar="ROOT", help="folder of the data files, if it has moved since")


def write(out: Path, result: Mapping[str, Any]) -> Path:
    """Write result.json to the folder `out`; where the figure belongs."""
    out.mkdir(parents=True, exist_ok=True)
    save_json(result, out / "result.json")
    print(f"results and figure are in {out}")
    return out / "figure.png"


def timed(work: Callable[P, Result], *args: P.args, **kwargs: P.kwargs) -> tuple[Result, float]:
    """work(*args, **kwargs) and its seconds of the processor, which do not depend on what else runs.

    Warnings of estimates are left out: the results of an experiment say how good they are.
    """
    begin = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", EvidenceWarning)
        result = work(*args, **kwargs)
    return result, time.process_time() - begin


class Timed(NamedTuple):
    """Draws after warm-up, of which the first belongs to it, and seconds of the processor."""

    draws: Draws
    seconds: float
    warmup_seconds: float


def timed_draws(
    kernel: Kernel, initial: Tensor, num_samples: int, num_warmup: int, seed: int, thin: int = 1
) -> Timed:
    """1 + `num_samples` draws from initial states [chains, d], warm-up and draws timed apart."""
    first, warmup_seconds = timed(
        sample, kernel, initial, 1, num_warmup, thin, seed, progress=False, check=False
    )
    draws, seconds = timed(first.resume, num_samples, progress=False)
    return Timed(draws, seconds, warmup_seconds)


def describe(values: Tensor) -> dict[str, float]:
    """Mean, its Monte Carlo error, standard deviation, R-hat and effective draws.  [chains, draws]"""
    array = values.numpy()
    with np.errstate(divide="ignore", invalid="ignore"):  # chains that never moved
        error, r_hat, ess = (float(measure(array)) for measure in (arviz().mcse, arviz().rhat, arviz().ess))
    return {
        "mean": float(values.mean()),
        "standard_error": error,
        "standard_deviation": float(values.std()),
        "r_hat": r_hat,
        "ess": ess,
    }


def acceptance_rates(stats: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Those of all parts of a kernel  {name: [chains, draws]}"""
    return {name: value for name, value in stats.items() if name.startswith("acceptance_rate")}


def canvas(rows: int, columns: int, size: tuple[float, float], **options: Any) -> tuple[Figure, Any]:
    """A figure without a window, of so many inches, and its panels [rows, columns]."""
    figure = Figure(figsize=size, layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False, **options)


def save_figure(figure: Figure, path: Path) -> None:
    """Write a PNG of 200 dots per inch, and beside it a PDF for papers, without a date."""
    figure.savefig(path, dpi=200)
    figure.savefig(path.with_suffix(".pdf"), metadata={"CreationDate": None})


def title(axes: Axes, text: str) -> None:
    """Write the title of a panel on its left."""
    axes.set_title(text, loc="left", fontsize=10)


def label_row(axes: Axes, text: str) -> None:
    """Name a row of panels, on the left of its first."""
    axes.set_ylabel(text, rotation=0, ha="right", va="center", fontsize=8)


def grouped_bars(
    axes: Axes, place: tuple[int, int], heights: Sequence[float], filled: float = 0.92, **style: Any
) -> BarContainer:
    """Draw a bar in every group.  place: which of how many bars of a group these are."""
    index, count = place
    width = 0.8 / count
    groups = np.arange(len(heights)) + (index - (count - 1) / 2) * width
    return axes.bar(groups, heights, filled * width, **style)
