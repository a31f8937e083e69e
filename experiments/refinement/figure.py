"""Figures of what refinement buys."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from experiments.report import BLUE, GREEN, GREY, ORANGE, canvas, save_figure


def draw_ablation(points: Mapping[str, Any], path: Path) -> None:
    """Bars of the gap to the likelihood that each chain closes."""
    chains = {name: point for name, point in points.items() if "chain" in point}
    gap = points["likelihood"]["gap"]
    figure, panels = canvas(1, 1, (7, 0.5 + 0.28 * len(chains)))
    axes = panels[0, 0]
    places = range(len(chains))
    shares = [100 * point["gain"] / gap for point in chains.values()]
    errors = [100 * point["gain_se"] / gap for point in chains.values()]
    axes.barh(places, shares, xerr=errors, color=[_colour(point) for point in chains.values()])
    for place, share in zip(places, shares, strict=True):
        axes.text(share + 1.5, place, f"{share:.0f}", va="center", fontsize=8)
    axes.set_yticks(places, list(chains), fontsize=8)
    axes.invert_yaxis()
    axes.set_xlim(0, 100)
    axes.set_xlabel("share of the gap between plain bound and likelihood that is closed, %")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    save_figure(figure, path)


def _colour(point: Mapping[str, Any]) -> str:
    chain = point["chain"]
    if chain["kind"] in ("annealed", "ldvi"):
        return GREEN
    informed = "force" in chain["reverse_sees"] and len(chain["reverse_sees"]) > 1
    return BLUE if informed and chain["coordinates"] == "encoder" else ORANGE if informed else GREY


def draw_methods(points: Mapping[str, Any], path: Path) -> None:
    """−bound and NLL of each method, joined by a line: the gap that its posterior leaves."""
    ordered = sorted(points.values(), key=lambda point: point["log_likelihood"])
    figure, panels = canvas(1, 1, (7, 0.8 + 0.3 * len(ordered)))
    axes = panels[0, 0]
    for place, point in enumerate(ordered):
        bound, nll = -point["bound"], -point["log_likelihood"]
        axes.plot([nll, bound], [place, place], color=GREY, lw=1.5, zorder=1)
        axes.plot(nll, place, "o", color=BLUE, label="NLL by AIS" if place == 0 else None)
        axes.plot(bound, place, "D", color=ORANGE, ms=5, label="−bound" if place == 0 else None)
    names = [point["title"] + (f", seed {point['seed']}" if point["seed"] else "") for point in ordered]
    axes.set_yticks(range(len(ordered)), names, fontsize=8)
    axes.set_xlabel("nats per image, lower is better")
    axes.legend(loc="upper right", fontsize=8)
    axes.grid(axis="x", alpha=0.3)
    save_figure(figure, path)
