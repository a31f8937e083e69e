"""Kernels made of kernels: one after the other."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor

from hmcvi.chain import Phase
from hmcvi.density import Density
from hmcvi.dynamics.metrics import IdentityMetric
from hmcvi.kernels.mcmc.kernel import Info, Kernel
from hmcvi.kernels.mcmc.retarget import conditional, retarget

# (one of the kernels, the whole state) -> that one and the state of what it moves
Part = Callable[[Kernel, Any], tuple[Kernel, Any]]


class Composite(Kernel):
    """A kernel made of others, each of which warm-up tunes by what it reports."""

    kernels: tuple[Kernel, ...]

    @abstractmethod
    def parts(self) -> list[Part]:
        """What each of the kernels moves."""

    @abstractmethod
    def reports(self, info: Info) -> list[Info]:
        """The reports of the single kernels, counts excepted."""

    @abstractmethod
    def with_kernels(self, kernels: Sequence[Kernel]) -> Self:
        """The same composition of other kernels."""

    def replace(self, **settings: Any) -> Self:
        """The same composition; of its settings only `kernels` can be others."""
        if unknown := sorted(settings.keys() - {"kernels"}):
            raise AttributeError(f"{type(self).__name__} has no setting {unknown[0]!r}: replace its kernels'")
        return self.with_kernels(settings.get("kernels", self.kernels))


@dataclass(frozen=True, eq=False, init=False)
class Compose(Composite):
    """K = K_1, then K_2, …: each leaves γ invariant, so their product does.

    The position, log γ and, where it is still valid, ∇log γ are handed on.  So is the momentum of a kernel
    with persistence, past the others, which neither see a meaning in it nor change it.

    info: what one kernel reports keeps its name; of what several report, counts (num_…) are added up,
    `diverged` is whether any did, and the rest has the kernel's index behind it: accepted_0, accepted_1, ….

    >>> from hmcvi.kernels import HMC, RandomWalkMetropolis
    >>> normal = Density(lambda z: -0.5 * z.square().sum(-1))
    >>> kernel = Compose(HMC(normal, 0.5, 3), RandomWalkMetropolis(normal, 1.0))
    >>> state, info = kernel.step(kernel.init(torch.zeros(3, 2)))
    >>> sorted(info)
    ... # doctest: +NORMALIZE_WHITESPACE
    ['acceptance_rate_0', 'acceptance_rate_1', 'accepted_0', 'accepted_1', 'diverged', 'energy',
     'energy_change', 'num_evaluations', 'num_gradients']
    """

    kernels: tuple[Kernel, ...]

    def __init__(self, *kernels: Kernel) -> None:
        shared_density(kernels)
        flat: list[Kernel] = []
        for kernel in kernels:
            flat += kernel.kernels if isinstance(kernel, Compose) else (kernel,)
        metrics = [getattr(kernel, "metric", None) for kernel in flat if _persists(kernel)]
        if len({None if isinstance(metric, IdentityMetric) else metric for metric in metrics}) > 1:
            raise ValueError(
                "kernels with persistence hand on one momentum and must share one metric object: pass "
                "metric=... to each, or set persistence=0 in all but one"
            )
        object.__setattr__(self, "kernels", tuple(flat))

    @property
    def density(self) -> Density:  # type: ignore[override]
        return self.kernels[0].density

    @property
    def uses_gradient(self) -> bool:  # type: ignore[override]
        return any(kernel.uses_gradient for kernel in self.kernels)

    def init(self, position: Tensor) -> Phase:
        states = [kernel.init(position) for kernel in self.kernels]
        return next((state for state in states if state.grad is not None), states[0])

    @torch.no_grad()
    def step(self, state: Phase, generator: torch.Generator | None = None) -> tuple[Phase, Info]:
        reports, momentum = [], state.momentum
        for kernel in self.kernels:
            state, info = kernel.step(state._replace(momentum=momentum), generator)
            momentum = state.momentum if _persists(kernel) else momentum
            reports.append(info)
        return state._replace(momentum=momentum), merge(reports, range(len(reports)))

    def parts(self) -> list[Part]:
        return [lambda kernel, state: (kernel, state)] * len(self.kernels)

    def reports(self, info: Info) -> list[Info]:
        return [report_of(info, index) for index in range(len(self.kernels))]

    def with_kernels(self, kernels: Sequence[Kernel]) -> Self:
        return type(self)(*kernels)


@retarget.register
def _(kernel: Compose, density: Density) -> Compose:
    return Compose(*(retarget(part, density) for part in kernel.kernels))


@conditional.register
def _(kernel: Compose, density: Density, position: Tensor) -> Compose:
    return Compose(*(conditional(part, density, position) for part in kernel.kernels))


def report_of(info: Info, name: str | int) -> Info:
    """What one of the kernels said, as far as `merge` left it apart."""
    suffix = f"_{name}"
    own = {key.removesuffix(suffix): value for key, value in info.items() if key.endswith(suffix)}
    return {**info, **own}


def _persists(kernel: Kernel) -> bool:
    return getattr(kernel, "persistence", 0.0) != 0


def shared_density(kernels: Sequence[Kernel]) -> Density:
    if not kernels:
        raise ValueError("give at least one kernel")
    if any(kernel.density is not kernels[0].density for kernel in kernels):
        raise ValueError("all kernels must be written with one and the same Density object, the joint one")
    return kernels[0].density


def merge(reports: Sequence[Info], names: Iterable[str | int]) -> Info:
    """One report: counts added up, divergences joined, other names made unique."""
    merged: Info = {}
    for name, report in zip(names, reports, strict=True):
        for key, value in report.items():
            if sum(key in other for other in reports) == 1:
                merged[key] = value
            elif key.startswith("num_"):
                merged[key] = merged[key] + value if key in merged else value
            elif key == "diverged":
                merged[key] = merged[key] | value if key in merged else value
            else:
                merged[f"{key}_{name}"] = value
    return merged
