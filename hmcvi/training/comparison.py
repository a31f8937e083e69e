"""What changed from one stage to the next, image by image."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hmcvi.training.checkpoint import load
from hmcvi.training.scores import Estimate

SIGNS = {"bound": ("bound_gain", 1), "nll": ("likelihood_gain", -1)}  # scores -> what is gained


def compare_stages(folder: Path, before: str, after: str) -> dict[str, Any] | None:
    """Gains of stage `after` over stage `before`, from the scores in the folder of their run.

    None unless both were scored on the same images, binarised alike.
    """
    files = [folder / f"{stage}-scores.pt" for stage in (before, after)]
    if not all(path.exists() for path in files):
        return None
    old, new = (load(path) for path in files)
    return {"from": before, "to": after, **paired(old, new)} if old["settings"] == new["settings"] else None


def paired(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, float]:
    """Means of differences of the scores of each image, {name: [N]}, with standard errors of these means.

    sd(new_i − old_i) / √N: much less than that of two unrelated means, since images that are hard for one
    model are hard for the other.
    """
    gains: dict[str, float] = {}
    for score, (name, sign) in SIGNS.items():
        if score in old and score in new:
            gain = Estimate.of(sign * (new[score].double() - old[score].double()))
            gains |= {name: gain.mean, f"{name}_se": gain.std_error}
    return gains
