"""The open questions of the paper and its acceptance: what one change bought, for the same time."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from experiments.table1.rows import ACCEPTANCE, BEYOND, QUESTIONS
from experiments.table1.table import Results, annealed, budget, figure_of
from hmcvi.training.checkpoint import load
from hmcvi.training.evaluation import Estimate

SIGNS = {"bound": 1, "nll": -1}  # a gain is a higher bound, a lower NLL


class Gain(NamedTuple):
    """Of a row over another, in nats per image."""

    mean: float
    std_error: float
    pairing: str = ""  # how its error differs from that of differences image by image, binarised alike

    def __str__(self) -> str:
        mean = f"{self.mean:+.2f}".replace("-", "−")
        return f"{mean} ± {self.std_error:.2f}{f' ({self.pairing})' if self.pairing else ''}"


def gain(results: Results, folder: Path, row: str, compared: str, quantity: str) -> Gain | None:
    """What a row gains over another, paired if the scores of each image are there; None without figures."""
    new, old = results[row], results[compared]
    if new[quantity] is None or old[quantity] is None:
        return None
    scores = [_scores(folder / name / f"{results[name]['name']}-scores.pt") for name in (row, compared)]
    if paired := _paired(scores, quantity):
        return paired
    errors = torch.tensor([result[f"{quantity}_se"] for result in (new, old)])
    return Gain(SIGNS[quantity] * (new[quantity] - old[quantity]), errors.norm().item(), "unpaired")


def likelihood_gain(folder: Path, row: str, compared: str) -> Gain | None:
    """Of the likelihood by annealing or integration, paired; None unless both rows have it for each image."""
    return _paired([_scores(folder / "ais" / f"{name}.pt") for name in (row, compared)], "nll")


def _paired(scores: Sequence[Mapping[str, Any]], quantity: str) -> Gain | None:
    """Of the scores of each image, [new, old]; None where some are missing, or of another evaluation."""
    new, old = scores
    if not new or not old:
        return None
    if _evaluation(new["settings"], quantity) != _evaluation(old["settings"], quantity):
        return None
    difference = Estimate.of(SIGNS[quantity] * (new[quantity].double() - old[quantity].double()))
    alike = _seed(new["settings"]) == _seed(old["settings"])
    return Gain(difference.mean, difference.std_error, "" if alike else "paired by image")


def markdown(results: Results, folder: Path) -> str:
    """The table: one line per question that has a result, after the row it is compared with."""
    lines = [
        "| row | what it changes | −bound | gain | NLL by AIS | gain | NLL | gain | epochs | CPU min |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    rows = QUESTIONS | BEYOND | ACCEPTANCE
    asked = {row: question for row, question in rows.items() if row in results}
    for compared in dict.fromkeys(question.compared for question in asked.values()):
        if compared in results:
            lines.append(_line(results, compared, "the next rows are compared with it", {}))
        for row, question in asked.items():
            if question.compared == compared:
                known = compared in results
                gains = {q: gain(results, folder, row, compared, q) for q in SIGNS} if known else {}
                gains["ais"] = likelihood_gain(folder, row, compared)
                lines.append(_line(results, row, question.change, gains))
    return "\n".join(lines) if asked else ""


def _line(results: Results, row: str, change: str, gains: Mapping[str, Gain | None]) -> str:
    result = results[row]
    figures = {quantity: figure_of(result, quantity) for quantity in SIGNS} | {"ais": annealed(result)}
    cells = [row, change]
    for quantity in ("bound", "ais", "nll"):
        cells += [figures[quantity], str(gains.get(quantity) or "")]
    cells += budget(result)
    return f"| {' | '.join(cells)} |"


def _evaluation(settings: str, quantity: str) -> str:
    """What was evaluated, and how; bounds do not depend on how the NLL was estimated after them."""
    how = settings.removesuffix(_seed(settings))
    return re.sub(", NLL of .*", "", how) if quantity == "bound" else how


def _seed(settings: str) -> str:
    """That of the binarisations, and how it was used."""
    return settings[settings.rfind(", seed") :]


def _scores(path: Path) -> dict[str, Any]:
    return load(path) if path.exists() else {}
