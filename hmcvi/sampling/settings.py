"""What warm-up chose and where chains are, as plain dicts of tensors and numbers that a file can hold."""

from __future__ import annotations

import hashlib
import operator
from numbers import Integral
from types import FunctionType
from typing import Any

from torch import Tensor

from hmcvi.density import Density
from hmcvi.dynamics.metrics import CholeskyMetric, DiagonalMetric, IdentityMetric, LowRankMetric, Metric
from hmcvi.internal.storage import CheckpointError
from hmcvi.kernels.mcmc.kernel import Kernel


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
    if saved["settings"].keys() != set(kernel.tuned):
        raise CheckpointError(f"the draws come with settings other than {', '.join(kernel.tuned)}")
    settings = {n: _metric(v) if isinstance(v, dict) else v for n, v in saved["settings"].items()}
    if parts:
        settings["kernels"] = tuple(with_settings(*pair) for pair in zip(parts, saved["parts"], strict=True))
    return kernel.replace(**settings)


def fingerprint(*values: Any) -> str:
    """The same for kernels of the same settings, another for others; densities and functions are not seen."""
    return hashlib.sha256(repr([_described(value) for value in values]).encode()).hexdigest()


def _described(value: Any) -> Any:
    match value:
        case Tensor():
            return str(value.dtype), value.tolist()
        case tuple() | list():
            return [_described(entry) for entry in value]
        case bool() | float() | str() | slice() | None:
            return value
        case Integral():
            return int(value)
    if isinstance(value, Density) or not hasattr(value, "__dict__") or isinstance(value, FunctionType):
        return type(value).__name__
    parts = {n: _described(v) for n, v in sorted(vars(value).items()) if not n.startswith("_")}
    return type(value).__name__, parts


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
