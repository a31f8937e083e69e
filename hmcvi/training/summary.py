"""What came of a run, as a small table."""

from __future__ import annotations

from typing import Any


def report(summary: dict[str, Any]) -> str:
    """The summary as a small table, with what refinement bought."""
    stages = summary["stages"]
    lines = ["", "test set, nats per image    bound              NLL                epochs   seconds"]
    for stage in stages:
        nll = "–" if stage["nll"] is None else f"{stage['nll']:.2f} ± {stage['nll_se']:.2f}"
        bound = f"{stage['bound']:.2f} ± {stage['bound_se']:.2f}"
        lines.append(f"{stage['name']:<28}{bound:<19}{nll:<19}{stage['epochs']:>6}{stage['seconds']:>10.0f}")
    if len(stages) == 2:
        before, after = stages
        gains = [f"{after['bound'] - before['bound']:+.2f} nats of bound"]
        if after["nll"] is not None and before["nll"] is not None:
            gains.append(f"{before['nll'] - after['nll']:+.2f} nats of likelihood")
        lines.append(f"refinement brought {' and '.join(gains)}")
    if failed := [f"{stage['num_failed']} ({stage['name']})" for stage in stages if stage["num_failed"]]:
        lines.append(f"test images left out because their bound is not finite: {', '.join(failed)}")
    return "\n".join(lines)
