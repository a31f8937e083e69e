"""Evaluate stored weights with other random numbers, and compare with the recorded result."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from experiments.table1.rows import read_results
from experiments.table1.weights import score_row, stored_config
from hmcvi.internal.processes import ALONE, Processes
from hmcvi.training import ConfigError, InterruptGuard

LIMIT = 2.0  # standard errors; one of twenty sound figures falls beyond


class Repeat(NamedTuple):
    """A figure and its repetition with other binarisations and samples of the same images."""

    row: str
    quantity: str
    recorded: float
    repeated: float
    std_error: float  # of the difference

    @property
    def deviation(self) -> float:
        """In standard errors."""
        return abs(self.repeated - self.recorded) / self.std_error


def repeat_row(
    row: str,
    out: Path,
    seed: int,
    guard: InterruptGuard,
    overrides: Sequence[str] = (),
    processes: Processes = ALONE,
) -> list[Repeat]:
    """Evaluate out/row: bound and NLL beside those in out/row.json.

    The images are the same, so the spread of a figure over binarisations and samples is its error here, not
    that over images.  A result that has not recorded it has that of the repetition, which is alike.
    """
    recorded = read_results(out).get(row)
    if recorded is None:
        raise ConfigError(
            f"{out} has no result of {row}: `python -m experiments table1 {row} --out {out}` makes it"
        )
    _refuse_other_settings(row, out, overrides)
    repeated = score_row(row, out, guard, overrides, processes, seed).summary
    found = []
    for name in ("bound", "nll"):
        if repeated[name] is not None and recorded[name] is not None:
            own = repeated[f"{name}_repeat_se"]
            other = recorded.get(f"{name}_repeat_se") or own
            found.append(Repeat(row, name, recorded[name], repeated[name], (own**2 + other**2) ** 0.5))
    return found


def markdown(repeats: Sequence[Repeat]) -> str:
    lines = ["| row | | recorded | repeated | difference in standard errors | |", "|---|---|---|---|---|---|"]
    for r in repeats:
        verdict = "reproduced" if r.deviation <= LIMIT else "**not reproduced**"
        lines.append(
            f"| {r.row} | {r.quantity} | {r.recorded:.3f} | {r.repeated:.3f} ± {r.std_error:.3f} "
            f"| {r.deviation:.1f} | {verdict} |"
        )
    return "\n".join(lines)


def _refuse_other_settings(row: str, out: Path, overrides: Sequence[str]) -> None:
    """Refuse to compare evaluations that are not alike, but for an NLL that is left out."""
    before, now = (stored_config(row, out, settings).evaluate for settings in ((), overrides))
    for name in ("num_draws", "bound_samples", "max_images", "nll", "nll_draws", "nll_samples"):
        value, recorded = getattr(now, name), getattr(before, name)
        if value != recorded and (name, value) != ("nll_samples", 0):
            raise ConfigError(f"{row} was evaluated with evaluate.{name}={recorded}, got {value}")
    if now.num_draws < 2:
        raise ConfigError("one binarisation does not tell its error: evaluate.num_draws must be at least 2")
    if now.nll_samples and now.nll_draws == 1:
        raise ConfigError(
            f"the NLL of {row} is that of one binarisation, which does not tell its error: leave it out by "
            "evaluate.nll_samples=0"
        )
