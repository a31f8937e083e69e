"""The same training with several seeds: a run for each, and the spread over them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from hmcvi.internal.processes import ALONE, Processes
from hmcvi.internal.seeds import LARGEST
from hmcvi.internal.storage import save_json
from hmcvi.training.config import Config, ConfigError
from hmcvi.training.run import Run
from hmcvi.training.sweep import begin_or_go_on

WORDS = {
    "refinement_gain": "bound gained by refinement",
    "likelihood_gain": "likelihood gained by training further",
    "bound_gain": "bound gained from stage to stage in all",
}


def take_seeds(arguments: Sequence[str]) -> tuple[list[int], list[str]]:
    """The seeds of a `seeds=0,1,2` among key=value arguments, and the other arguments.

    >>> take_seeds(["train.lr=0.1", "seeds=0,1,2"])
    ([0, 1, 2], ['train.lr=0.1'])
    >>> take_seeds(["seed=3"])
    ([], ['seed=3'])
    """
    given = [argument.partition("=")[2] for argument in arguments if argument.startswith("seeds=")]
    others = [argument for argument in arguments if not argument.startswith("seeds=")]
    if not given:
        return [], others
    try:
        seeds = [int(part) for part in given[-1].strip("[]").split(",")]
    except ValueError:
        raise ConfigError(
            f"seeds takes whole numbers, such as seeds=0,1,2, got {given[-1][:200]!r}"
        ) from None
    if len(set(seeds)) < len(seeds) or min(seeds) < 0 or max(seeds) > LARGEST:
        raise ConfigError(
            f"seeds must differ from one another, be at least 0 and below 2⁶⁴, got {given[-1][:200]}"
        )
    if any(argument.startswith("seed=") for argument in others):
        raise ConfigError("seed and seeds were both given: seeds=0,1,2 sets the seed of each run")
    return seeds, others


def with_name(config: Config, processes: Processes = ALONE) -> Config:
    """The configuration with a name, that of the time if it had none."""
    return replace(config, name=processes.broadcast(config.name or time.strftime("%Y%m%d-%H%M%S")))


def runs_of_seeds(config: Config, seeds: Sequence[int], processes: Processes = ALONE) -> Iterator[Run]:
    """A run in the folder NAME-seedS for each seed: new, or one that goes on where it stands."""
    for seed in seeds:
        yield begin_or_go_on(replace(config, seed=seed, name=f"{config.name}-seed{seed}"), processes)


def summarise_seeds(summaries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Means and standard deviations over runs that differ in their seeds alone.

    {"seeds": [S], "figures": {name: {"mean", "sd", "values": [S]}}}; sd is None for one seed.
    """
    per_run = [_figures(summary) for summary in summaries]
    figures = {}
    for name in per_run[0]:
        if all(name in run for run in per_run):
            values = [run[name] for run in per_run]
            sd = statistics.stdev(values) if len(values) > 1 else None
            figures[name] = {"mean": statistics.fmean(values), "sd": sd, "values": values}
    return {"seeds": [summary["seed"] for summary in summaries], "figures": figures}


def _figures(summary: Mapping[str, Any]) -> dict[str, float]:
    """Bound and NLL of each stage, what the chain brought, and what further training did, if known."""
    stages, gains = summary["stages"], summary.get("between_stages") or {}
    figures = {f"{stage['name']} {name}": stage[name] for stage in stages for name in ("bound", "nll")}
    figures["refinement_gain"] = stages[-1].get("refinement_gain")
    figures |= {name: gains.get(name) for name in ("likelihood_gain", "bound_gain")}
    return {name: value for name, value in figures.items() if value is not None}


def save_seeds(summaries: Sequence[Mapping[str, Any]], run: Run) -> dict[str, Any]:
    """Write what `summarise_seeds` finds to NAME-seeds.json, beside the folder of this last run."""
    over_seeds = summarise_seeds(summaries)
    if run.processes.first:
        name = run.folder.name.removesuffix(f"-seed{run.config.seed}")
        save_json(over_seeds, run.folder.with_name(f"{name}-seeds.json"))
    return over_seeds


def report_seeds(summary: Mapping[str, Any]) -> str:
    """The figures of `summarise_seeds` as a small table."""
    seeds = ", ".join(map(str, summary["seeds"]))
    lines = ["", f"seeds {seeds}: mean ± standard deviation over seeds, nats per image"]
    for name, figure in summary["figures"].items():
        sign = "+" if name.endswith("gain") else ""
        spread = "" if figure["sd"] is None else f" ± {figure['sd']:.2f}"
        lines.append(f"{WORDS.get(name, name):<44}{figure['mean']:{sign}.2f}{spread}")
    return "\n".join(lines)
