"""Figures: scenes and errors with two cameras, and poses that one camera cannot tell apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from torch import Tensor

from experiments.models.pose import PosePrior, project, shifts
from experiments.pose.chains import Run, Scenes
from experiments.report import BLUE, DARK, GREY, RED, SKY, canvas, label_row, save_figure, title
from hmcvi.models.generator import Variables

COLORS = (BLUE, RED)
NUM_ROWS = 3  # scenes
NUM_SHOWN = 4  # poses of one camera, beside the true one
REACH = 1.15  # metres shown around the hips


def draw_stereo(
    prior: PosePrior,
    stereo: Scenes,
    reports: Mapping[str, Any],
    published: Mapping[str, Mapping[int, Tensor]],
    path: Path,
) -> None:
    """A row for each of the first scenes: what two cameras see, and how the error of the mean pose falls."""
    count = min(NUM_ROWS, len(stereo.inputs))
    figure, rows = canvas(count, 3, (10, 3 * count), width_ratios=[1, 1, 2.4])
    for index, (left, right, panel) in enumerate(rows):
        draw_images((left, right), prior, stereo, index)
        draw_errors(panel, reports, published, index)
    for axes, name in zip(rows[0], ("camera 1", "camera 2", "error of the mean pose, m"), strict=True):
        title(axes, name)
    limits = [panel.get_xlim() for panel in rows[:, 2]]
    for panel in rows[:, 2]:
        panel.set_xlim(min(low for low, _ in limits), max(high for _, high in limits))
        panel.set_ylim(0.01, 0.5)
    rows[0, 2].legend(fontsize=8, loc="lower left", frameon=False)
    rows[-1, 2].set_xlabel("seconds of the processor for one chain")
    save_figure(figure, path)


def draw_single(prior: PosePrior, single: Scenes, found: Run, path: Path) -> None:
    """Poses that all give the image of one camera."""
    columns = min(NUM_SHOWN, len(found.position)) + 2
    figure, panels = canvas(2, columns, (2 * columns, 4.6))
    draw_poses(panels, prior, single, found)
    save_figure(figure, path)


def draw_bones(axes: Axes, points: Tensor, prior: PosePrior, **style: Any) -> None:
    """Draw the bones between points in the plane.  [J, 2]"""
    lines = [points[[parent, child]].numpy() for parent, child in prior.skeleton.links]
    axes.add_collection(LineCollection(lines, capstyle="round", **style))


def skeleton(prior: PosePrior, latent: Variables) -> Tensor:
    """All joints  [..., J, 3]"""
    angles = latent["angles"]
    return prior.skeleton.positions(angles.cos(), angles.sin(), latent["lengths"])


def draw_images(panels: Sequence[Axes], prior: PosePrior, stereo: Scenes, index: int) -> None:
    """Draw what was observed, over the bones without noise."""
    latent = stereo.latent
    for camera, axes in enumerate(panels):
        place = latent["camera"][index] + shifts(len(panels))[camera]
        draw_bones(axes, project(skeleton(prior, latent)[index], place).mT, prior, color=SKY, linewidth=2)
        x, y = stereo.observed[index].view(len(panels), 2, -1)[camera]
        axes.plot(x, y, ".", color=DARK, markersize=5)
        axes.set_aspect("equal", adjustable="datalim")
        axes.set(xticks=[], yticks=[])
        axes.margins(0.1)
    label_row(panels[0], f"scene {index + 1}")


def draw_errors(
    axes: Axes, reports: Mapping[str, Any], published: Mapping[str, Mapping[int, Tensor]], index: int
) -> None:
    """Draw errors: their mean over chains, from the least to the largest shaded, of the thesis dashed."""
    for (name, report), color in zip(reports.items(), COLORS, strict=True):
        seconds, errors = report["seconds_per_chain"], np.array(report["scenes"][index]["rmse"])
        axes.fill_between(seconds, errors.min(0), errors.max(0), color=color, alpha=0.15, linewidth=0)
        axes.plot(seconds, errors.mean(0), color=color, linewidth=2.2, label=name)
        if (curve := published.get(name, {}).get(index)) is not None:
            label = f"{name}, Graham (2018)"
            axes.plot(*curve[:, 1:], color=color, linestyle="--", linewidth=1.3, label=label)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_yticks([0.01, 0.02, 0.05, 0.1, 0.2, 0.5], ["0.01", "0.02", "0.05", "0.1", "0.2", "0.5"])
    axes.minorticks_off()
    axes.tick_params(labelsize=8)
    axes.grid(color=GREY, alpha=0.3, linewidth=0.5)


def draw_poses(panels: Any, prior: PosePrior, single: Scenes, found: Run) -> None:
    """Draw poses: above from the camera, below from the side, the camera being on the right."""
    latent = single.generator.latent(found.position[..., : single.generator.dim])
    poses, depths = skeleton(prior, latent), latent["camera"][..., 2]
    truth, depth = skeleton(prior, single.latent), float(single.latent["camera"][0, 2])
    columns = [(f"true\ncamera at {depth:.1f} m", truth, DARK)]
    for pose, place in zip(poses[:NUM_SHOWN, -1:], depths[:NUM_SHOWN, -1].tolist(), strict=True):
        columns.append((f"drawn\ncamera at {place:.1f} m", pose, BLUE))
    late = poses[:, poses.shape[1] // 2 :].flatten(0, 1)
    columns.append((f"{len(late)} draws", late, SKY))
    for column, (name, shown, color) in zip(panels.T, columns, strict=True):
        style = {"linewidth": 2.0} if len(shown) == 1 else {"linewidth": 0.6, "alpha": 0.3}
        for pose in shown:
            x, y, z = pose.unbind(-1)
            draw_bones(column[0], torch.stack([-x, y], -1), prior, color=color, **style)
            draw_bones(column[1], torch.stack([z, y], -1), prior, color=color, **style)
        for axes in column:
            axes.set(xlim=(-REACH, REACH), ylim=(-REACH, REACH), aspect="equal", xticks=[], yticks=[])
        title(column[0], name)
    label_row(panels[0, 0], "from the\ncamera")
    label_row(panels[1, 0], "from the\nside")
