"""Refinement at a glance: exact posteriors over two latents, with samples of the encoder and of the chain."""

from __future__ import annotations

import io
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from hmcvi.models import VAE
from hmcvi.objectives import elbo
from hmcvi.training.evaluation import TEST_SEED, prepare
from hmcvi.training.posterior_grid import GridPosterior, grid_posterior
from hmcvi.training.scores import has_chain, without_chain

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SHOWN_IMAGES, SHOWN_SAMPLES = 5, 200
SAMPLES = 1000  # for each image, of which its gap is the mean
MASSES = (0.95, 0.5)  # of the regions of highest density that are filled
REGIONS = ("#DCE3EA", "#A9B8C8")
ENCODER, REFINED = "#D55E00", "#0072B2"  # told apart by colour-blind readers  [Okabe & Ito 2008]
RADIUS = 5.991**0.5  # standard deviations of the ellipse that holds 95 % of a Gaussian
DOTS_PER_INCH = 150


class Cloud(NamedTuple):
    """Samples of one approximate posterior."""

    name: str
    colour: str
    position: Tensor  # [S, 2]
    bound: float


class Panel(NamedTuple):
    """What is drawn for one image: a column of the figure."""

    image: Tensor  # [H, W]
    exact: GridPosterior
    loc: Tensor  # of q0  [2]
    scale: Tensor  # of q0  [2]
    clouds: list[Cloud]


def draw_posteriors(model: VAE, test: Tensor, shape: tuple[int, int], binarize: str) -> Figure | None:
    """The figure for a few test images [N, D], always the same ones; None if no posterior is finite."""
    panels = _panels(model, test, shape, binarize)
    if not panels:
        return None
    from matplotlib.figure import Figure

    rows, columns = len(panels[0].clouds), len(panels)
    figure = Figure(figsize=(2.0 * columns + 0.4, 2.2 * rows + 1.2), layout="constrained")
    grid = figure.add_gridspec(1 + rows, columns, height_ratios=[0.3, *rows * [1]])
    for column, panel in enumerate(panels):
        _show_image(figure.add_subplot(grid[0, column]), panel.image)
        for row, cloud in enumerate(panel.clouds):
            axes = figure.add_subplot(grid[1 + row, column])
            _draw(axes, panel, cloud)
            if column == 0:
                axes.set_ylabel(f"{cloud.name}\n$z_2$", fontsize=9)
            if row == rows - 1:
                axes.set_xlabel("$z_1$", fontsize=9)
    figure.legend(handles=_handles(panels[0]), loc="outside lower center", ncols=5, frameon=False, fontsize=8)
    return figure


@torch.no_grad()
def _panels(model: VAE, test: Tensor, shape: tuple[int, int], binarize: str) -> list[Panel]:
    device = next(model.parameters()).device
    model.eval()
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(TEST_SEED)
        chosen = torch.randperm(len(test))[:SHOWN_IMAGES]
        x = prepare(test[chosen], binarize).to(device)
        runs = {}
        with torch.random.fork_rng([device] if device.type == "cuda" else []), without_chain(model):
            runs["encoder", ENCODER] = model.run(x, SAMPLES)
        if has_chain(model):
            runs["refined", REFINED] = model.run(x, SAMPLES)
    loc, scale = (part.cpu() for part in model.encoder(x))
    panels = []
    for i in range(len(x)):
        clouds = [
            Cloud(*key, run.transition.state.position[:, i].cpu(), elbo(run.weights)[i].item())
            for key, run in runs.items()
        ]
        try:
            near = torch.cat([cloud.position for cloud in clouds])
            exact = grid_posterior(partial(model.log_joint, x=x[i]), near.to(device))
        except ValueError:  # nothing finite to draw; the report counts such images
            continue
        panels.append(Panel(x[i].cpu().reshape(shape), exact, loc[i], scale[i], clouds))
    return panels


def _draw(axes: Axes, panel: Panel, cloud: Cloud) -> None:
    """The exact posterior, the ellipse of the encoder, samples, and how far the bound is from log p(x)."""
    from matplotlib.patches import Ellipse
    from matplotlib.ticker import MaxNLocator

    exact = panel.exact
    levels = np.unique([exact.level(mass) for mass in MASSES])
    axes.contourf(
        exact.first.numpy(), exact.second.numpy(), exact.log_density.T.numpy(),
        [*levels, np.inf], colors=REGIONS[-len(levels) :],
    )  # fmt: skip
    shown = cloud.position[:SHOWN_SAMPLES]
    axes.plot(*shown.T.numpy(), ".", color=cloud.colour, markersize=2.8, markeredgewidth=0, alpha=0.8)
    (x, y), (width, height) = panel.loc.tolist(), (2 * RADIUS * panel.scale).tolist()
    axes.add_patch(Ellipse((x, y), width, height, fill=False, color=ENCODER, linewidth=1))
    lower, upper = _window(panel)
    axes.set_xlim(lower[0].item(), upper[0].item())
    axes.set_ylim(lower[1].item(), upper[1].item())
    if not ((lower < shown) & (shown < upper)).all(-1).any():
        place = ", ".join(f"{coordinate:.2f}" for coordinate in shown.median(0).values)
        axes.text(0.5, 0.06, f"samples are at ({place})", fontsize=7, ha="center", transform=axes.transAxes)
    axes.set_title(f"log p(x) − bound = {exact.log_evidence - cloud.bound:.2f}", fontsize=8)
    axes.tick_params(labelsize=7)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(4))


def _window(panel: Panel) -> tuple[Tensor, Tensor]:
    """The corners of what is shown: the posterior, and the ellipse unless it is far larger."""
    lower, upper = panel.exact.box(0.98)
    size, radii = upper - lower, RADIUS * panel.scale
    lower = torch.maximum(torch.minimum(lower, panel.loc - radii), lower - size) - 0.12 * size
    upper = torch.minimum(torch.maximum(upper, panel.loc + radii), upper + size) + 0.12 * size
    return lower, upper


def _show_image(axes: Axes, image: Tensor) -> None:
    axes.imshow(1 - image.numpy(), cmap="gray", vmin=0, vmax=1)
    axes.set_xticks([])
    axes.set_yticks([])


def _handles(panel: Panel) -> list[Any]:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    regions = [
        Patch(color=colour, label=f"{mass:.0%} of p(z | x)")
        for mass, colour in zip(MASSES, REGIONS, strict=True)
    ]
    ellipse = Line2D([], [], color=ENCODER, linewidth=1, label="95% of the encoder")
    dots = [
        Line2D([], [], color=c.colour, marker=".", linestyle="", label=f"samples, {c.name}")
        for c in panel.clouds
    ]
    return [*regions, ellipse, *dots]


def pixels(figure: Figure) -> np.ndarray:
    """The figure as colours 0, …, 255.  [H, W, 3]"""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    figure.set_dpi(DOTS_PER_INCH)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[..., :3].copy()


def png(image: np.ndarray) -> bytes:
    """Colours [H, W, 3] as the content of a file."""
    from matplotlib.image import imsave

    imsave(buffer := io.BytesIO(), image, format="png", dpi=DOTS_PER_INCH)
    return buffer.getvalue()
