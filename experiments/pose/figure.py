"""The figure: scenes and errors with two cameras, and poses that one camera cannot tell apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from torch import Tensor

from experiments.models.pose import PosePrior, project, shifts
from experiments.pose.chains import Run, Scenes
from experiments.report import BLUE, DARK, GREY, RED, SKY, save_figure
from hmcvi.models.generator import Variables

COLORS = (BLUE, RED)
NUM_SHOWN = 4  # poses of one camera, beside the true one
REACH = 1.15  # metres shown around the hips


def draw(
    prior: PosePrior,
    stereo: Scenes,
    reports: Mapping[str, Any],
    published: Mapping[str, Mapping[int, Tensor]],
    single: Scenes,
    found: Run,
    path: Path,
) -> None:
    figure = Figure(figsize=(11, 13), layout="constrained")
    parts: Any = figure.subfigures(2, 1, height_ratios=[3 * len(stereo.inputs), 4.2])
    parts[0].suptitle("Two cameras: what they see, and how the error of the mean pose falls", fontsize=11)
    rows = parts[0].subplots(len(stereo.inputs), 3, width_ratios=[1, 1, 2.2])
    for index, (left, right, panel) in enumerate(rows):
        draw_images((left, right), prior, stereo, index)
        draw_errors(panel, reports, published, index)
    rows[-1, 2].legend(*rows[0, 2].get_legend_handles_labels(), fontsize=8, loc="upper right")
    limits = [panel.get_xlim() for panel in rows[:, 2]]
    for panel in rows[:, 2]:
        panel.set_xlim(min(low for low, _ in limits), max(high for _, high in limits))
    rows[-1, 2].set_xlabel("seconds of the processor for one chain")
    parts[1].suptitle(
        "One camera: the true pose and poses drawn by constrained HMC, all of which give its image",
        fontsize=11,
    )
    draw_poses(parts[1], prior, single, found)
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
        draw_bones(axes, project(skeleton(prior, latent)[index], place).mT, prior, color=GREY, linewidth=1.2)
        x, y = stereo.observed[index].view(len(panels), 2, -1)[camera]
        axes.plot(x, y, ".", color=DARK, markersize=4)
        axes.set_aspect("equal", adjustable="datalim")
        axes.tick_params(labelsize=7)
        axes.margins(0.15)
        axes.set_title(f"scene {index + 1}, camera {camera + 1}", fontsize=8, loc="left")


def draw_errors(
    axes: Axes, reports: Mapping[str, Any], published: Mapping[str, Mapping[int, Tensor]], index: int
) -> None:
    """Draw errors: of single chains thin, of their mean thick, of the thesis dashed."""
    for (name, report), color in zip(reports.items(), COLORS, strict=True):
        seconds, errors = report["seconds_per_chain"], np.array(report["scenes"][index]["rmse"])
        axes.plot(seconds, errors.T, color=color, linewidth=0.7, alpha=0.45)
        axes.plot(seconds, errors.mean(0), color=color, linewidth=2.4, label=name)
        if (curve := published.get(name, {}).get(index)) is not None:
            label = f"{name}, Graham (2018)"
            axes.plot(*curve[:, 1:], color=color, linestyle="--", linewidth=1.3, label=label)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_ylabel("RMSE of 3-D joints, m", fontsize=8)
    axes.tick_params(labelsize=7, which="both")
    axes.grid(color=GREY, alpha=0.25, which="both", linewidth=0.5)


def draw_poses(part: Any, prior: PosePrior, single: Scenes, found: Run) -> None:
    """Draw poses: above from the camera, below from the side, the camera being on the right."""
    latent = single.generator.latent(found.position[..., : single.generator.dim])
    poses, depths = skeleton(prior, latent), latent["camera"][..., 2]
    truth, depth = skeleton(prior, single.latent), float(single.latent["camera"][0, 2])
    columns = [(f"true, camera at {depth:.1f} m", truth, DARK)]
    for pose, place in zip(poses[:NUM_SHOWN, -1:], depths[:NUM_SHOWN, -1].tolist(), strict=True):
        columns.append((f"drawn, camera at {place:.1f} m", pose, BLUE))
    late = poses[:, poses.shape[1] // 2 :].flatten(0, 1)
    columns.append(("second half of the draws", late, SKY))
    panels = part.subplots(2, len(columns))
    for column, (title, shown, color) in zip(panels.T, columns, strict=True):
        style = {"linewidth": 2.0} if len(shown) == 1 else {"linewidth": 0.6, "alpha": 0.3}
        for pose in shown:
            x, y, z = pose.unbind(-1)
            draw_bones(column[0], torch.stack([-x, y], -1), prior, color=color, **style)
            draw_bones(column[1], torch.stack([z, y], -1), prior, color=color, **style)
        for axes in column:
            axes.set(xlim=(-REACH, REACH), ylim=(-REACH, REACH), aspect="equal")
            axes.tick_params(labelsize=6)
        column[0].set_title(title, fontsize=8)
    panels[0, 0].set_ylabel("from the camera, m", fontsize=8)
    panels[1, 0].set_ylabel("side, camera on the right", fontsize=8)
