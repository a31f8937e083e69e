"""Checkpoints of training, and weights that move from one model to another."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from hmcvi.internal.lock import locked
from hmcvi.internal.processes import Processes
from hmcvi.internal.storage import CheckpointError, keep_copy, load, remove_stale, save, write_atomically
from hmcvi.models import VAE
from hmcvi.training.interrupt import InterruptGuard

__all__ = [
    "CheckpointError",
    "Checkpoints",
    "LastTwo",
    "load",
    "load_vae",
    "load_weights",
    "save",
    "write_atomically",
    "writing",
]

State = dict[str, Any]


class Checkpoints:
    """Saves the state of a stage every so many seconds, at its end, and when it is asked to stop.

    save: stores a state.  All processes save at the same moment, and stop if one of them is asked to.
    """

    def __init__(
        self, save: Callable[[State], None], seconds: float, guard: InterruptGuard, processes: Processes
    ) -> None:
        self.save, self.seconds, self.guard, self.processes = save, seconds, guard, processes
        self.saved = time.monotonic()

    def pause(self, state: Callable[[], State], say: Callable[[str], None], last: bool = False) -> None:
        """Between two batches: save if it is time to, then stop if asked to.

        A checkpoint that cannot be written is a warning, unless training is about to stop.
        """
        due, stopping = self._agree()
        if due or stopping or last:
            try:
                self.save(state())
            except CheckpointError as error:
                if stopping:
                    raise
                say(f"warning: {error}; training goes on")
            self.saved = time.monotonic()
        self.guard.check()

    def _agree(self) -> tuple[bool, bool]:
        """Whether any process finds it time to save, or was asked to stop."""
        due = time.monotonic() - self.saved > self.seconds
        asked = -1 if self.guard.requested is None else self.guard.requested
        due_now, asked_now = self.processes.max(torch.tensor([int(due), asked])).tolist()
        if asked_now >= 0:
            self.guard.request(asked_now)
        return bool(due_now), asked_now >= 0


@contextlib.contextmanager
def writing(folder: Path, processes: Processes) -> Iterator[None]:
    """Hold the lock of a run's folder, and clear away what writers that died have left.

    The first process locks for all; where it cannot, all refuse.
    """
    with contextlib.ExitStack() as stack:
        problem = None
        if processes.first:
            try:
                stack.enter_context(locked(folder))
                remove_stale(folder)
            except CheckpointError as error:
                problem = str(error)
        if (problem := processes.broadcast(problem)) is not None:
            raise CheckpointError(problem)
        yield


class LastTwo:
    """The checkpoint of a run, checkpoint.pt, and the one before it, for the day that it is damaged."""

    def __init__(self, folder: Path) -> None:
        self.path, self.before = folder / "checkpoint.pt", folder / "checkpoint-before.pt"
        self.is_whole = True  # as far as is known

    def load(self) -> State:
        """The newest state that is whole."""
        try:
            return load(self.path)
        except CheckpointError as error:
            try:
                state = load(self.before)
            except CheckpointError:
                raise error from None
            self.is_whole = False
            print(f"{error}: going on from the one before, {self.before}", flush=True)
            return state

    def save(self, state: State) -> None:
        """Write the newest; the last one becomes the one before, unless it is damaged."""
        if self.is_whole:
            with contextlib.suppress(CheckpointError, OSError):  # the newest is worth more
                keep_copy(self.path, self.before)
        save(state, self.path)
        self.is_whole = True


def load_weights(module: torch.nn.Module, state: Mapping[str, Any], source: object) -> None:
    """Copy weights into a module of the same architecture."""
    try:
        module.load_state_dict(state)
    except Exception as error:  # of states that are none, whatever torch raises
        lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
        raise CheckpointError(
            f"{source} has another architecture: {' '.join(lines[1:3]) or lines[0]} "
            "— use the model and chain settings it was trained with"
        ) from None


def load_vae(model: VAE, run: Path) -> None:
    """Copy encoder and decoder from the weights another run stored (vae.pt, else chain.pt)."""
    path = next((p for p in (run, run / "vae.pt", run / "chain.pt") if p.is_file()), None)
    if path is None:
        raise CheckpointError(f"{run} holds no weights (vae.pt or chain.pt) to start from")
    weights = load(path).get("model")
    if not isinstance(weights, dict):
        raise CheckpointError(f"{path} holds no model")
    for name in ("encoder", "decoder"):
        own = {key.removeprefix(f"{name}."): v for key, v in weights.items() if key.startswith(f"{name}.")}
        load_weights(getattr(model, name), own, path)
