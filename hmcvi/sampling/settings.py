"""What warm-up chose and where chains are, as plain dicts of tensors and numbers that a file can hold."""

from __future__ import annotations

import operator
from typing import Any

from torch import Tensor

from hmcvi.kernels.kernel import Kernel
from hmcvi.kernels.metrics import CholeskyMetric, DiagonalMetric, IdentityMetric, LowRankMetric, Metric
from hmcvi.storage import CheckpointError


def settings_of(kernel: Kernel) -> dict[str, Any]:
    """The settings that warm-up may change, of a kernel and of the kernels it is made of."""
    settings = {name: _plain(getattr(kernel, name)) for name in kernel.tuned}
    parts = [settings_of(part) for part in getattr(kernel, "kernels", ())]
    return {"kernel": type(kernel).__name__, "settings": settings, "parts": parts}


def with_settings(kernel: Kernel, saved: dict[str, Any]) -> Kernel:
    """The kernel as it was when `settings_of` saw it."""
    if saved["kernel"] != type(kernel).__name__:
        raise CheckpointError(f"the draws were made by {saved['kernel']}, not by {type(kernel).__name__}")
    parts = getattr(kernel, "kernels", ())
    if len(parts) != len(saved["parts"]):
        raise CheckpointError(f"the draws were made by {len(saved['parts'])} kernels, not by {len(parts)}")
    settings = {n: _metric(v) if isinstance(v, dict) else v for n, v in saved["settings"].items()}
    if parts:
        settings["kernels"] = tuple(with_settings(*pair) for pair in zip(parts, saved["parts"], strict=True))
    return kernel.replace(**settings)


def _plain(setting: Tensor | Metric | int) -> Any:
    """What a file can hold; counts may have come as numbers of another library."""
    if isinstance(setting, Metric):
        return _metric_dict(setting)
    return setting if isinstance(setting, Tensor) else operator.index(setting)


def _metric_dict(metric: Metric) -> dict[str, Tensor]:
    match metric:
        case IdentityMetric():
            return {}
        case DiagonalMetric():
            return {"log_scale": metric.log_scale}
        case LowRankMetric():
            return {"log_scale": metric.diagonal.log_scale, "factor": metric.factor}
        case CholeskyMetric():
            return {"root": metric.root}
    raise TypeError(f"do not know how to save a {type(metric).__name__}")


def _metric(saved: dict[str, Tensor]) -> Metric:
    kinds: dict[frozenset[str], type[Metric]] = {
        frozenset(): IdentityMetric,
        frozenset({"log_scale"}): DiagonalMetric,
        frozenset({"log_scale", "factor"}): LowRankMetric,
        frozenset({"root"}): CholeskyMetric,
    }
    return kinds[frozenset(saved)](**saved)


def state_dict(state: Any) -> Any:
    """A named tuple of tensors, None and further named tuples as a dict."""
    return {n: state_dict(v) for n, v in state._asdict().items()} if hasattr(state, "_asdict") else state


def restored(template: Any, saved: Any) -> Any:
    """The inverse: a state of the same type as `template`."""
    if not isinstance(saved, dict):
        return saved
    return type(template)(**{name: restored(getattr(template, name), v) for name, v in saved.items()})
