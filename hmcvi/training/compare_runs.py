"""Runs side by side, with differences image by image."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from hmcvi.training.comparison import load_scores, paired
from hmcvi.training.config import Config, ConfigError, flat
from hmcvi.training.stored_run import STAGES, stored_config, stored_summary

SAME = ("data.name", "data.binarize", "model.likelihood")  # else their bounds are not of the same thing
UNIMPORTANT = ("name", "runs", "data.root", "data.download", "train.threads", "train.device")


class ComparedRun(NamedTuple):
    """A run in a comparison.

    figures: of its last stage, as in summary.json.
    differs: settings that are not those of all the others.
    gains: paired differences to the first run, bound_gain and likelihood_gain with their standard errors;
        empty for the first, and for runs that were evaluated with other settings.
    """

    folder: Path
    figures: dict[str, Any]
    differs: dict[str, Any]
    gains: dict[str, float]


def compare_runs(folders: Sequence[str | Path]) -> list[ComparedRun]:
    """Bound and likelihood of each run, and what it gains over the first, with paired errors."""
    paths = [Path(folder).expanduser() for folder in folders]
    if len({path.resolve() for path in paths}) < len(paths):
        raise ConfigError("the same run was given twice")
    configs = [stored_config(path) for path in paths]
    _refuse_other_data(paths, configs)
    settings = [flat(config) for config in configs]
    varied = [
        key
        for key in settings[0]
        if key not in UNIMPORTANT and any(s[key] != settings[0][key] for s in settings)
    ]
    scores = [_scores(path) for path in paths]
    return [
        ComparedRun(
            path,
            _figures(path),
            {key: own[key] for key in varied},
            paired(scores[0], score) if score is not scores[0] and _alike(scores[0], score) else {},
        )
        for path, own, score in zip(paths, settings, scores, strict=True)
    ]


def comparison_table(runs: Sequence[ComparedRun]) -> str:
    """The comparison as text."""
    width = max(len("test set, nats per image"), *(len(run.folder.name) for run in runs)) + 2
    lines = [f"{'test set, nats per image':<{width}}{'bound':<18}{'NLL':<18}{'refinement':<16}CPU s"]
    for run in runs:
        columns = (_with_error(run.figures, name) for name in ("bound", "nll"))
        bound, nll = (f"{column:<18}" for column in columns)
        gain = _with_error(run.figures, "refinement_gain", "+")
        cost = run.figures.get("cpu_seconds")
        lines.append(
            f"{run.folder.name:<{width}}{bound}{nll}{gain:<16}{'–' if cost is None else f'{cost:.0f}'}"
        )
    if len(runs) > 1:
        lines += ["", f"{f'gain over {runs[0].folder.name}, paired':<{width}}{'bound':<18}likelihood"]
        for run in runs[1:]:
            bound, likelihood = (
                _with_error(run.gains, name, "+") for name in ("bound_gain", "likelihood_gain")
            )
            lines.append(f"{run.folder.name:<{width}}{bound:<18}{likelihood}")
            if not run.gains:
                lines.append(
                    "  not paired: scores of each image are missing, or of another evaluation; score it "
                    "again by hmcvi train --resume RUN evaluate.…"
                )
    if any(run.differs for run in runs):
        lines += ["", "what differs"]
        lines += [
            f"{run.folder.name:<{width}}{', '.join(f'{key}={value}' for key, value in run.differs.items())}"
            for run in runs
        ]
    return "\n".join(lines)


def _with_error(figures: dict[str, Any], name: str, sign: str = "") -> str:
    if figures.get(name) is None:
        return "–"
    return f"{figures[name]:{sign}.2f} ± {figures[f'{name}_se']:.2f}"


def _figures(folder: Path) -> dict[str, Any]:
    stages = stored_summary(folder).get("stages")
    if not stages:
        raise ConfigError(f"{folder} has no results yet: finish it with hmcvi train --resume {folder}")
    figures: dict[str, Any] = stages[-1]
    return figures


def _scores(folder: Path) -> dict[str, Any]:
    """Scores of each test image after the last stage, and the settings of that evaluation."""
    files = (folder / f"{stage}-scores.pt" for stage in STAGES)
    path = next((path for path in files if path.is_file()), None)
    return {} if path is None else load_scores(path)


def _alike(old: dict[str, Any], new: dict[str, Any]) -> bool:
    return "settings" in old and old["settings"] == new.get("settings")


def _refuse_other_data(paths: Sequence[Path], configs: Sequence[Config]) -> None:
    first = flat(configs[0])
    for path, config in zip(paths, configs, strict=True):
        own = flat(config)
        for key in SAME:
            if own[key] != first[key]:
                raise ConfigError(
                    f"{paths[0]} and {path} cannot be compared: {key} is {first[key]} in one, {own[key]} in "
                    "the other, so their bounds are of different data"
                )
