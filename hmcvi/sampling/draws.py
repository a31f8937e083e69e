"""Draws: what chains visited, how they moved, and all it takes to go on."""

from __future__ import annotations

import contextlib
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from hmcvi.adaptation.tuned import with_settings
from hmcvi.internal import storage
from hmcvi.internal.layout import Layout
from hmcvi.internal.processes import Processes, connected
from hmcvi.internal.settings import state_dict
from hmcvi.internal.storage import CheckpointError
from hmcvi.kernels.mcmc.hmc import HMC
from hmcvi.kernels.mcmc.kernel import Info, Kernel
from hmcvi.sampling import diagnostics
from hmcvi.sampling.compiling import Compiling
from hmcvi.sampling.diagnostics import SamplingWarning
from hmcvi.sampling.log import DrawsLog, Piece, is_log, read_log
from hmcvi.sampling.progress import KernelProgress
from hmcvi.sampling.record import Record, RunEnd, Transitions, check_content
from hmcvi.sampling.report import report_figure
from hmcvi.sampling.spread import Share, own_kernel, share_of, spread

Callback = Callable[[int, Any, Info], bool | None]
CHECKPOINT_SECONDS = 20.0
FIRST_LEG = 16  # draws between the first two checkpoints of processes that share chains


@dataclass(frozen=True, eq=False)
class RunStart:
    """What a run began with: the same start and kernel give the same draws."""

    position: Tensor  # [chains, d]
    num_warmup: int
    thin: int
    seed: int
    settings: str  # fingerprint of those of the kernel and its warm-up

    def same_as(self, other: RunStart) -> bool:
        (position, *plain), (twin, *others) = vars(self).values(), vars(other).values()
        return plain == others and position.dtype == twin.dtype and torch.equal(position, twin)


@dataclass(frozen=True, eq=False, repr=False)
class Draws:
    """position: [chains, draws, d]; stats: {name: [chains, draws]}.

    Of transitions thinned away, counts (num_…, diverged) are added up and rates averaged; log_prob and energy
    are those of the draw that was kept.  `kernel` has the settings that warm-up chose.
    """

    position: Tensor
    stats: Mapping[str, Tensor]
    layout: Layout | None
    start: RunStart
    end: RunEnd
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
        return self._named(self.position)

    def _named(self, position: Tensor) -> dict[str, Tensor]:
        return {"z": position} if self.layout is None else self.layout.unflatten(position)

    @property
    def values(self) -> dict[str, Tensor]:
        """`variables`, those of a Pyro model as its sites have them: a scale is positive, not its logarithm.

        Draws loaded without their kernel do not know the model, and have the variables as they are.
        """
        constrain = getattr(getattr(self.kernel, "density", None), "constrain", None)
        return self.variables if constrain is None else constrain(self.position)

    def to_arviz(self) -> Any:
        """ArviZ's InferenceData (DataTree since its version 1) of `values`, and its names of statistics."""
        return diagnostics.inference_data(self.values, self.stats)

    def summary(self) -> Any:
        """ArviZ's table: mean, spread, Monte Carlo error, bulk and tail ESS and R-hat of every variable."""
        return diagnostics.arviz().summary(self.to_arviz())

    def problems(self) -> list[str]:
        """What speaks against trusting these draws, each with what to try."""
        starts, persistent = self._named(self.start.position), diagnostics.is_persistent(self.kernel)
        return diagnostics.problems(self.variables, self.stats, persistent, self._is_shared, starts)

    def report(self, path: str | Path) -> None:
        """A page about the run, as an image (.png, .pdf, .svg): traces, ranks, pairs, energies, problems.

        Of many variables it shows those with the largest R-hat.
        """
        from matplotlib.backends.backend_agg import FigureCanvasAgg

        figure = report_figure(self.variables, self.stats, self.problems())
        FigureCanvasAgg(figure)
        figure.savefig(Path(path).expanduser(), dpi=110)

    @torch.no_grad()
    def _is_shared(self) -> bool:
        """Whether all chains have the same density: at one point it has one value."""
        if self.kernel is None:
            return True
        position = self.start.position
        value = self.kernel.density.finite_log_prob(position[:1].repeat(len(position), 1))
        return torch.allclose(value, value[:1].expand_as(value), rtol=1e-3, atol=1e-3)

    def resume(self, more: int, progress: bool = True) -> Draws:
        """These draws and `more`: exactly those that one longer run would have given."""
        with connected() as group:
            return extend_by(group, self, more, progress)

    def extended(self, position: Tensor, stats: Mapping[str, Tensor], end: RunEnd) -> Draws:
        """These draws and the next ones."""
        if len(self):
            position = torch.cat([self.position, position], 1)
            stats = {name: torch.cat([self.stats[name], values], 1) for name, values in stats.items()}
        return replace(self, position=position, stats=dict(stats), end=end)

    def save(self, path: str | Path) -> None:
        """To one file, atomically.  It holds tensors and numbers only: loading it executes nothing."""
        content = {
            **self.head(),
            "position": self.position.contiguous(),
            "stats": {name: values.contiguous() for name, values in self.stats.items()},
            "end": _plain(self.end),
        }
        storage.save(content, Path(path))

    def head(self) -> dict[str, Any]:
        """What a file says of a run as a whole."""
        shapes = None if self.layout is None else {n: list(s) for n, s in self.layout.shapes.items()}
        return {"shapes": shapes, "start": vars(self.start)}

    @classmethod
    def load(cls, path: str | Path, kernel: Kernel | None = None) -> Draws:
        """What `save` stored.  To `resume`, pass the kernel as it was given to `sample`."""
        return cls.from_content(read_draws(Path(path))[0], path, kernel)

    @classmethod
    def from_content(cls, content: Mapping[str, Any], path: str | Path, kernel: Kernel | None) -> Draws:
        """Draws from what a file at `path` holds, refused if they are none."""
        if missing := {"position", "stats", "shapes", "start", "end"} - content.keys():
            raise CheckpointError(f"{path} holds no draws: it lacks {', '.join(sorted(missing))}")
        try:
            start, end = RunStart(**content["start"]), RunEnd(**content["end"])
            check_content(content["position"], content["stats"], start, end)
            layout = None if content["shapes"] is None else Layout(content["shapes"])
            tuned = None if kernel is None else with_settings(kernel, end.settings)
        except Exception as error:  # whatever an edited file may hold
            reason = str(error or type(error).__name__).splitlines()[0]
            raise CheckpointError(f"{path} is damaged or of another version ({reason})") from None
        if kernel is not None:
            own = kernel.density.layout
            if (own and own.shapes) != (layout and layout.shapes):
                raise CheckpointError(f"{path} has other variables than the kernel's density")
            layout = own
        return cls(content["position"], content["stats"], layout, start, end, tuned)


def extend(
    draws: Draws,
    more: int,
    progress: bool = True,
    callback: Callback | None = None,
    log: DrawsLog | None = None,
    display: KernelProgress | None = None,
) -> Draws:
    """The same run, longer by `more` draws.

    log: that of a checkpoint, which grows with them.  display: the progress of a longer run that these
    belong to.
    """
    if more <= 0:
        return draws
    kernel, thin = draws.kernel, draws.start.thin
    if kernel is None:
        raise ValueError("to go on, the kernel is needed: Draws.load(path, kernel).resume(more)")
    goes_on = len(draws) > 0 or isinstance(draws.end.state, dict)
    transitions = Transitions(kernel, draws.start.position, draws.end, goes_on)
    record = Record(more, thin)
    compiling = Compiling(kernel, draws.start.position, draws.end.settings.get("gradients", 0))
    grown = _Grown(draws, record, log)
    saved = time.monotonic()
    try:
        with (
            KernelProgress("sampling", more, progress, lambda: record.first(record.count)[0])
            if display is None
            else contextlib.nullcontext(display)
        ) as display:
            while (before := record.count) < more:
                transitions.kernel = compiling.apply(kernel, (len(draws) + before) * thin)
                if transitions.in_one_call and callback is None:
                    info = record.keep_all(*transitions.several((more - before) * thin, thin))
                else:
                    for _ in range(thin):
                        state, info = transitions.next()
                        record.observe(info)
                    info = record.keep(state)
                grown.kept = record.count, transitions.end()
                display.advance(kernel, info, record.count - before)
                if callback is not None and callback(len(draws) + before, state, info):
                    break
                if log is not None and time.monotonic() - saved > CHECKPOINT_SECONDS:
                    grown.save("sampling goes on, and tries again")
                    saved = time.monotonic()
    except BaseException as error:  # whatever happened, Ctrl-C included
        error.draws = found = grown.so_far()  # type: ignore[attr-defined]
        error.add_note(f"the {len(found)} draws until then are the attribute .draws of this exception")
        with contextlib.suppress(SamplingWarning):  # where warnings are errors, the first one counts
            grown.save("they are the attribute .draws of the exception")
        raise
    grown.save("they are returned: save them elsewhere with draws.save(path)")
    return grown.so_far()


class _Grown:
    """Draws and those that a record has kept since.

    kept: how many, and the end after them; in one assignment, so that an interrupt finds both of one moment.
    """

    def __init__(self, draws: Draws, record: Record, log: DrawsLog | None) -> None:
        self._draws, self._record, self._log = draws, record, log
        self.kept = 0, draws.end

    def so_far(self) -> Draws:
        count, end = self.kept
        return self._draws.extended(*self._record.first(count), end) if count else self._draws

    def save(self, then: str) -> None:
        """Write the new ones to the log, if there is one."""
        count, end = self.kept
        if self._log is not None:
            new = self._record.first(count) if count else None
            save_or_warn(self._log, self._draws, end, then, new)


def extend_by(
    group: Processes,
    draws: Draws,
    more: int,
    progress: bool = True,
    callback: Callback | None = None,
    log: DrawsLog | None = None,
    saves: bool = False,
) -> Draws:
    """`extend` by processes that share the chains; each of them returns the draws of all.

    saves: whether there is a checkpoint, whose log the first process has.
    """
    if group.size == 1 or more <= 0 or draws.kernel is None:
        return extend(draws, more, progress, callback, log)
    kernel, progress = spread(draws.kernel, draws.start.position, group), progress and group.first
    if (share := share_of(kernel)) is None:
        made = extend(replace(draws, kernel=kernel), more, progress, callback, log)
        return replace(made, kernel=draws.kernel)
    if callback is not None:
        raise ValueError("processes that share chains have no state of all of them to give to a callback")
    goes_on = len(draws) > 0 or isinstance(draws.end.state, dict)
    end = Transitions(draws.kernel, draws.start.position, draws.end, goes_on).end()
    end = replace(end, state=share.of(end.state))
    total, leg = len(draws) + more, FIRST_LEG if saves else more
    with KernelProgress("sampling", more, progress) as display:
        while (left := total - len(draws)) > 0:
            began, count = time.monotonic(), group.broadcast(min(leg, left))
            own = extend(_of_share(draws, share, end), count, display=display)
            draws, end = _joined(draws, share, own), own.end
            if log is not None:
                save_or_warn(log, draws, draws.end, "sampling goes on, and tries again")
            rate = count / max(time.monotonic() - began, 1e-9)
            leg = max(1, min(4 * count, int(rate * CHECKPOINT_SECONDS)))
    return draws


def _of_share(draws: Draws, share: Share, end: RunEnd) -> Draws:
    """A run of the chains of this process, without draws, that goes on from `end`, where `draws` end."""
    kernel = cast(HMC, draws.kernel)
    made = len(draws) * draws.start.thin * kernel.num_steps * kernel.integrator.num_stages
    settings = {**draws.end.settings, "gradients": draws.end.settings.get("gradients", 0) + made}
    return replace(
        draws,
        position=draws.position[share.rows, :0],
        stats={},
        start=replace(draws.start, position=draws.start.position[share.rows]),
        end=replace(end, settings=settings),
        kernel=own_kernel(kernel, share),
    )


def _joined(draws: Draws, share: Share, own: Draws) -> Draws:
    """The draws of all chains, with those that each process has made of its own."""
    state, (position, *stats) = share.gathered(own.end.state, [own.position, *own.stats.values()])
    end = RunEnd(state, own.end.generator, draws.end.settings)
    return draws.extended(position, dict(zip(own.stats, stats, strict=True)), end)


def save_or_warn(
    log: DrawsLog,
    draws: Draws,
    end: RunEnd,
    then: str,
    new: tuple[Tensor, Mapping[str, Tensor]] | None = None,
) -> None:
    """Add to a checkpoint what it lacks of `draws` and the `new` ones, [chains, draws, …], that follow.

    That it could not be written is a warning, because draws are worth more than their file.
    """
    total = len(draws) + (0 if new is None else new[0].shape[1])
    try:
        if not log.is_whole():
            log.size = log.count = 0
        if log.size and log.count == total:
            return
        if new is None or log.count < len(draws):
            whole = draws if new is None else draws.extended(*new, end)
            position, stats, before = whole.position, whole.stats, 0
        else:
            (position, stats), before = new, len(draws)
        part = slice(log.count - before, None)
        lacking = {name: values[:, part] for name, values in stats.items()}
        log.append(draws.head(), Piece(position[:, part], lacking, _plain(end)))
    except Exception as error:  # a full disk, a folder that is gone, memory that is exhausted
        message = f"{total} draws were not saved: {error or type(error).__name__}; {then}"
        warnings.warn(message, SamplingWarning, stacklevel=4)


def read_draws(path: Path) -> tuple[dict[str, Any], DrawsLog]:
    """What a file of draws holds, and the log by which it grows; other files of draws are made logs by it."""
    if is_log(path):
        return read_log(path)
    return storage.load(path), DrawsLog(path)


def _plain(end: RunEnd) -> dict[str, Any]:
    return {**vars(end), "state": state_dict(end.state)}
