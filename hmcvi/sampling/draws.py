"""Draws: what chains visited, how they moved, and all it takes to go on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hmcvi.internal import storage
from hmcvi.internal.layout import Layout
from hmcvi.internal.storage import CheckpointError
from hmcvi.kernels.mcmc.kernel import Kernel
from hmcvi.sampling import diagnostics
from hmcvi.sampling.settings import with_settings


@dataclass(frozen=True)
class Start:
    """What a run began with: the same start and kernel give the same draws."""

    position: Tensor  # [chains, d]
    num_warmup: int
    thin: int
    seed: int
    settings: str  # fingerprint of those of the kernel and its warm-up

    def same_as(self, other: Start) -> bool:
        (position, *plain), (twin, *others) = vars(self).values(), vars(other).values()
        return plain == others and position.dtype == twin.dtype and torch.equal(position, twin)


@dataclass(frozen=True)
class End:
    """Where a run stands: what the next transition depends on besides the kernel."""

    state: dict[str, Any]  # of the chains
    generator: Tensor  # state of the random numbers
    settings: dict[str, Any]  # chosen by warm-up
    made: int = 0  # transitions from here that the run has behind it, of a kernel that makes several at once


@dataclass(frozen=True, eq=False, repr=False)
class Draws:
    """position: [chains, draws, d]; stats: {name: [chains, draws]}.

    Of transitions thinned away, counts (num_…, diverged) are added up and rates averaged; log_prob and energy
    are those of the draw that was kept.  `kernel` has the settings that warm-up chose.
    """

    position: Tensor
    stats: Mapping[str, Tensor]
    layout: Layout | None
    start: Start
    end: End
    kernel: Kernel | None = None

    def __repr__(self) -> str:
        shapes = {"z": (self.position.shape[-1],)} if self.layout is None else self.layout.shapes
        return f"Draws({len(self.position)} chains, {len(self)} draws of {shapes})"

    def __len__(self) -> int:
        """The number of draws of each chain."""
        return self.position.shape[1]

    def __getitem__(self, name: str) -> Tensor:
        """A variable  [chains, draws, *shape]"""
        return self.variables[name]

    @property
    def variables(self) -> dict[str, Tensor]:
        """{name: [chains, draws, *shape]}; variables without names are together called z."""
        return {"z": self.position} if self.layout is None else self.layout.unflatten(self.position)

    def to_arviz(self) -> Any:
        """ArviZ's InferenceData, with its own names for the statistics."""
        return diagnostics.inference_data(self.variables, self.stats)

    def summary(self) -> Any:
        """ArviZ's table: mean, spread, Monte Carlo error, bulk and tail ESS and R-hat of every variable."""
        return diagnostics.arviz().summary(self.to_arviz())

    def problems(self) -> list[str]:
        """What speaks against trusting these draws, each with what to try."""
        parts = getattr(self.kernel, "kernels", (self.kernel,))
        persistent = any(getattr(part, "persistence", 0.0) != 0 for part in parts)
        shared = self.kernel is None or _is_shared(self.kernel, self.start.position)
        return diagnostics.problems(self.variables, self.stats, persistent, shared)

    def resume(self, more: int, progress: bool = True) -> Draws:
        """These draws and `more`: exactly those that one longer run would have given."""
        from hmcvi.sampling.run import extend

        return extend(self, more, progress)

    def extended(self, position: Tensor, stats: Mapping[str, Tensor], end: End) -> Draws:
        """These draws and the next ones."""
        if len(self):
            position = torch.cat([self.position, position], 1)
            stats = {name: torch.cat([self.stats[name], values], 1) for name, values in stats.items()}
        return replace(self, position=position, stats=dict(stats), end=end)

    def save(self, path: str | Path) -> None:
        """To one file, atomically.  It holds tensors and numbers only: loading it executes nothing."""
        content = {
            "position": self.position.contiguous(),
            "stats": {name: values.contiguous() for name, values in self.stats.items()},
            "shapes": None if self.layout is None else {n: list(s) for n, s in self.layout.shapes.items()},
            "start": vars(self.start),
            "end": vars(self.end),
        }
        storage.save(content, Path(path))

    @classmethod
    def load(cls, path: str | Path, kernel: Kernel | None = None) -> Draws:
        """What `save` stored.  To `resume`, pass the kernel as it was given to `sample`."""
        content = storage.load(Path(path))
        if missing := {"position", "stats", "shapes", "start", "end"} - content.keys():
            raise CheckpointError(f"{path} holds no draws: it lacks {', '.join(sorted(missing))}")
        try:
            start, end = Start(**content["start"]), End(**content["end"])
            layout = None if content["shapes"] is None else Layout(content["shapes"])
            tuned = None if kernel is None else with_settings(kernel, end.settings)
        except (AttributeError, KeyError, TypeError) as error:
            raise CheckpointError(f"{path} is damaged or of another version ({error})") from None
        if kernel is not None:
            own = kernel.density.layout
            if (own and own.shapes) != (layout and layout.shapes):
                raise CheckpointError(f"{path} has other variables than the kernel's density")
            layout = own
        return cls(content["position"], content["stats"], layout, start, end, tuned)


@torch.no_grad()
def _is_shared(kernel: Kernel, position: Tensor) -> bool:
    """Whether all chains have the same density: at one point it has one value."""
    value = kernel.density.finite_log_prob(position[:1].repeat(len(position), 1))
    return torch.allclose(value, value[:1].expand_as(value), rtol=1e-3, atol=1e-3)
