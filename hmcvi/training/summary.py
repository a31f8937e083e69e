"""What came of a run, as a small table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Stage = Mapping[str, Any]  # an entry of summary["stages"]


def report(summary: Mapping[str, Any]) -> str:
    """The summary as a small table, and what the chain and further training each bought."""
    lines = ["", "test set, nats per image    bound              NLL                epochs   seconds"]
    for stage in summary["stages"]:
        lines += _rows(stage)
    last = summary["stages"][-1]
    if "refinement_gain" in last:
        lines.append(
            f"refinement brought {signed(last, 'refinement_gain')} nats of bound, against the same encoder "
            "and decoder without the chain"
        )
    if gains := summary.get("between_stages"):
        lines.append(_further_training(gains, summary["config"]["train"].get("freeze", [])))
    return "\n".join([*lines, *_warnings(summary["stages"])])


def signed(figures: Mapping[str, Any], name: str) -> str:
    """A difference, with its paired error."""
    return f"{figures[name]:+.2f} ± {figures[f'{name}_se']:.2f}"


def _rows(stage: Stage) -> list[str]:
    nll = "–" if stage["nll"] is None else f"{stage['nll']:.2f} ± {stage['nll_se']:.2f}"
    bound = f"{stage['bound']:.2f} ± {stage['bound_se']:.2f}"
    rows = [f"{stage['name']:<28}{bound:<19}{nll:<19}{stage['epochs']:>6}{stage['seconds']:>10.0f}"]
    if "bound_without_chain" in stage:
        rows.append(
            f"{'  without its chain':<28}{stage['bound_without_chain']:.2f} ± "
            f"{stage['bound_without_chain_se']:.2f}"
        )
    return rows


def _further_training(gains: Mapping[str, Any], frozen: list[str]) -> str:
    bound = f"from {gains['from']} to {gains['to']} the bound rose by {signed(gains, 'bound_gain')} in all"
    if "likelihood_gain" not in gains:
        return bound
    likelihood = signed(gains, "likelihood_gain")
    if "decoder" in frozen:
        return (
            f"the decoder was frozen: likelihoods differ by {likelihood}, errors of their estimates; {bound}"
        )
    return f"training decoder and encoder further brought {likelihood} nats of likelihood; {bound}"


def _warnings(stages: list[Stage]) -> list[str]:
    """What is wrong with figures of the table."""
    lines = []
    if failed := [f"{stage['num_failed']} ({stage['name']})" for stage in stages if stage["num_failed"]]:
        lines.append(f"test images left out because their bound is not finite: {', '.join(failed)}")
    for stage in stages:
        if "nll_problem" in stage:
            lines.append(f"no NLL of {stage['name']}: {stage['nll_problem']}")
        elif stage.get("nll_num_few"):
            remedy = {"is": "evaluate.nll=ais, or more samples", "ais": "more temperatures"}
            lines.append(
                f"the NLL of {stage['name']} rests on few effective samples for {stage['nll_num_few']} of "
                f"{stage['num_images']} images and may be too high: try {remedy[stage['nll_method']]}"
            )
    return lines
