"""Figures of what refinement buys."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import cycle
from pathlib import Path
from typing import Any

from experiments.report import BLUE, DARK, GREEN, GREY, ORANGE, canvas, save_figure


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
    axes.set_yticks(places, [_name(chain) for chain in chains], fontsize=8)
    axes.invert_yaxis()
    axes.set_xlim(0, 100)
    axes.set_xlabel("share of the gap between plain bound and likelihood that is closed, %")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    save_figure(figure, path)


def draw_curves(points: Mapping[str, Any], path: Path) -> None:
    """The share of the gap that each chain closes against the time of its training."""
    gap = points["likelihood"]["gap"]
    figure, panels = canvas(1, 1, (7, 4.2))
    axes = panels[0, 0]
    followed = {name: point for name, point in points.items() if "curve" in point}
    for (name, point), marker in zip(followed.items(), cycle("osDv^<>P"), strict=False):
        seconds = [at["cpu_seconds"] for at in point["curve"]]
        shares, errors = ([100 * at[key] / gap for at in point["curve"]] for key in ("gain", "gain_se"))
        axes.errorbar(
            seconds, shares, errors, color=_colour(point), marker=marker, ms=4, lw=1.2, label=_name(name)
        )
    axes.axhline(0, color=DARK, lw=0.8)
    axes.set_xscale("log")
    axes.set_ylim(-30, 100)
    axes.set_xlabel("CPU seconds of training")
    axes.set_ylabel("share of the gap that is closed, %")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8, loc="upper left")
    save_figure(figure, path)


def _name(name: str) -> str:
    return name.replace("-seed-", ", seed ")


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
