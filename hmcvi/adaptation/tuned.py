"""Tuned settings as plain dicts of tensors and numbers, which a file can hold."""

from __future__ import annotations

from typing import Any

from hmcvi.adaptation.tunable import tuning
from hmcvi.dynamics.metrics import (
    CholeskyMetric,
    DiagonalMetric,
    IdentityMetric,
    LowRankMetric,
    SpectralMetric,
)
from hmcvi.dynamics.noncentring import Noncentring
from hmcvi.internal.settings import as_plain, from_plain
from hmcvi.internal.storage import CheckpointError
from hmcvi.kernels.mcmc.compose import Composite
from hmcvi.kernels.mcmc.kernel import Kernel

ADDED = {
    "jitter",
    "coordinates",
}  # settings that earlier releases did not tune; their files keep the kernel's own
KNOWN = (IdentityMetric, DiagonalMetric, LowRankMetric, CholeskyMetric, SpectralMetric, Noncentring)


def settings_of(kernel: Kernel) -> dict[str, Any]:
    """The settings that warm-up may change, of a kernel and of the kernels it is made of."""
    settings = {name: as_plain(getattr(kernel, name)) for name in tuning(kernel).names}
    parts = [settings_of(part) for part in kernel.kernels] if isinstance(kernel, Composite) else []
    return {"kernel": type(kernel).__name__, "settings": settings, "parts": parts}


def with_settings(kernel: Kernel, saved: dict[str, Any]) -> Kernel:
    """The kernel with saved `settings_of`; metrics are the library's or of the type of the kernel's own."""
    if saved["kernel"] != type(kernel).__name__:
        raise CheckpointError(f"the draws were made by {saved['kernel']}, not by {type(kernel).__name__}")
    if isinstance(kernel, Composite):
        if len(kernel.kernels) != len(saved["parts"]):
            count = len(kernel.kernels)
            raise CheckpointError(f"the draws were made by {len(saved['parts'])} kernels, not by {count}")
        pairs = zip(kernel.kernels, saved["parts"], strict=True)
        return kernel.with_kernels([with_settings(part, own) for part, own in pairs])
    names = tuning(kernel).names
    if not set(names) - ADDED <= saved["settings"].keys() <= set(names):
        raise CheckpointError(f"the draws come with settings other than {', '.join(names)}")
    if not names:
        return kernel
    known: list[type] = [*KNOWN, type(getattr(kernel, "metric", IdentityMetric()))]
    return kernel.replace(**{name: from_plain(value, known) for name, value in saved["settings"].items()})
