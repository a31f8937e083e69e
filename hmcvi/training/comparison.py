"""What changed from one stage to the next, image by image."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from hmcvi.training.checkpoint import CheckpointError, load
from hmcvi.training.scores import Estimate

SIGNS = {"bound": ("bound_gain", 1), "nll": ("likelihood_gain", -1)}  # scores -> what is gained


def compare_stages(folder: Path, before: str, after: str) -> dict[str, Any] | None:
    """Gains of stage `after` over stage `before`, from the scores in the folder of their run.

    None unless both were scored on the same images, binarised alike.
    """
    files = [folder / f"{stage}-scores.pt" for stage in (before, after)]
    if not all(path.exists() for path in files):
        return None
    old, new = (load_scores(path) for path in files)
    return {"from": before, "to": after, **paired(old, new)} if old["settings"] == new["settings"] else None


def load_scores(path: Path) -> dict[str, Any]:
    """Settings of an evaluation, and tensors [N] with the scores of its images."""
    scores = load(path)
    values = [value for name, value in scores.items() if name not in ("settings", "seed")]
    shapes = {
        value.shape if isinstance(value, Tensor) and not value.is_complex() else None for value in values
    }
    if not isinstance(scores.get("settings"), str) or len(shapes) != 1 or len(shapes.pop() or ()) != 1:
        raise CheckpointError(f"{path} holds no scores of images; delete it, and evaluate again")
    return scores


def paired(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, float]:
    """Means of differences of the scores of each image, {name: [N]}, with standard errors of these means.

    sd(new_i − old_i) / √N: much less than that of two unrelated means, since images that are hard for one
    model are hard for the other.
    """
    gains: dict[str, float] = {}
    for score, (name, sign) in SIGNS.items():
        if score in old and score in new and old[score].shape == new[score].shape:
            gain = Estimate.of(sign * (new[score].double() - old[score].double()))
            gains |= {name: gain.mean, f"{name}_se": gain.std_error}
    return gains
