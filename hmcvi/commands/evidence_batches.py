"""Estimate the evidence of images batch by batch, so that a run can be stopped and goes on."""

from __future__ import annotations

import hashlib
import inspect
import time
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hmcvi.commands.images import Data
from hmcvi.density import Density
from hmcvi.evidence import Evidence
from hmcvi.evidence.bases import Base
from hmcvi.evidence.methods import METHODS
from hmcvi.evidence.result import PerItem, heavy_tail
from hmcvi.internal.events import open_events
from hmcvi.internal.processes import Processes
from hmcvi.internal.seeds import split
from hmcvi.internal.storage import CheckpointError, load, save, save_json
from hmcvi.models import VAE
from hmcvi.sampling.progress import LINES, Progress
from hmcvi.training import ConfigError
from hmcvi.training.evaluation import Estimate
from hmcvi.training.interrupt import Interrupted, InterruptGuard

BOUNDS = ("lower", "upper")
REPORTED = (*BOUNDS, "pareto_k")  # of the diagnostics of an item
TEMPERED_SAMPLES = 1000
SAMPLES = {
    "importance": 5000,
    "iwae": 5000,
    "thermodynamic_integration": 500,
    "smc": 512,
}  # of others, those above


@dataclass(frozen=True)
class Settings:
    """What the result depends on, beside the model and the images.  method: a name in METHODS."""

    method: str
    temperatures: int
    chains: int
    samples: int | None  # None: what is usual for the method
    schedule: str
    seed: int
    batch: int


def estimate(base: Base, target: Density, exact: Tensor | None, settings: Settings, seed: int) -> Evidence:
    """The evidence by the method of the settings, with those of them that it takes.

    exact: draws of the target [*items, d], for methods that need them.
    """
    method = METHODS[settings.method]
    samples = settings.samples or SAMPLES.get(settings.method, TEMPERED_SAMPLES)
    offered = {
        "exact_sample": exact,
        "num_temperatures": settings.temperatures,
        "schedule": settings.schedule,
        "num_chains": settings.chains,
        "num_samples": samples,
        "num_particles": samples,
        "num_warmup": samples // 2,
        "seed": seed,
        "progress": False,
    }
    taken = inspect.signature(method).parameters
    return method(base, target, **{name: value for name, value in offered.items() if name in taken})


def estimate_images(
    model: VAE, data: Data, settings: Settings, out: Path, guard: InterruptGuard, group: Processes
) -> dict[str, Any]:
    """log p(x) of every image; what was finished before is not computed again.

    Processes take one batch each at a time.  The random numbers of a batch derive from the seed and its
    place, so that neither their number nor a stop changes the result.
    """
    out = out.expanduser()
    store, key = out / f"evidence-{settings.method}.pt", _fingerprint(model, data, settings)
    if group.first:
        _make(out)
    done, seconds = group.broadcast(_finished(store, key) if group.first else ([], [0.0, 0.0]))
    count = len(data.x.split(settings.batch))
    print(f"{settings.method} on {len(data.x):,} images ({data.source})", flush=True)
    writer = open_events(out) if group.first else None
    progress = Progress(settings.method, count, unit="batch", done=len(done), lines=LINES)
    with writer or nullcontext(), progress:
        while len(done) < count:
            began = time.monotonic(), time.process_time()
            mine = len(done) + group.rank
            found = _estimate_batch(model, data, settings, mine) if mine < count else None
            parts = group.gather((found, time.process_time() - began[1], guard.requested))
            new = [batch for batch, _, _ in parts if batch is not None]
            done += new
            seconds[0] += time.monotonic() - began[0]
            seconds[1] += sum(spent for _, spent, _ in parts)
            running = {name: _joined(done, name).mean().item() for name in _estimated(done)}
            if writer is not None:
                _save_or_warn({"key": key, "batches": done, "seconds": seconds, "seed": settings.seed}, store)
                for name, value in running.items():
                    place = len(_joined(done, "log_z"))
                    writer.add_scalar(f"evidence/{settings.method}/{name}", value, place)
            progress.advance(len(new), running)
            for _, _, signal in parts:
                if signal is not None:
                    raise Interrupted(signal)
    return _summary(done, data, settings, seconds)


def save_summary(summary: dict[str, Any], out: Path) -> None:
    save_json(summary, out.expanduser() / f"evidence-{summary['method']}.json")


def _make(out: Path) -> None:
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"cannot make the folder {out}: {error.strerror}") from None


def _finished(store: Path, key: str) -> tuple[list[dict[str, Tensor]], list[float]]:
    """The batches that an earlier call has finished, and what they took; a damaged file has none."""
    try:
        kept = load(store) if store.exists() else {}
    except CheckpointError as error:
        print(f"warning: {error}; all images are estimated anew", flush=True)
        kept = {}
    batches, seconds = kept.get("batches"), kept.get("seconds")
    if kept.get("key") != key or not isinstance(batches, list) or not all(map(_is_batch, batches)):
        return [], [0.0, 0.0]
    if isinstance(seconds, list) and len(seconds) == 2 and all(isinstance(s, float) for s in seconds):
        return batches, seconds
    return batches, [0.0, 0.0]


def _is_batch(batch: Any) -> bool:
    """{name: [B]}, as `_estimate_batch` gives it."""
    return (
        isinstance(batch, dict)
        and set(PerItem._fields) <= batch.keys()
        and all(isinstance(v, Tensor) and v.shape == batch["log_z"].shape for v in batch.values())
    )


def _save_or_warn(content: dict[str, Any], store: Path) -> None:
    try:
        save(content, store)
    except CheckpointError as error:
        print(f"warning: {error}; the estimation goes on, and tries again", flush=True)


def _estimated(done: list[dict[str, Tensor]]) -> list[str]:
    return [name for name in ("log_z", *BOUNDS) if name in done[0]]


def _estimate_batch(model: VAE, data: Data, settings: Settings, index: int) -> dict[str, Tensor]:
    """{name: [B]}"""
    x = data.x.split(settings.batch)[index]
    exact = None if data.z is None else data.z.split(settings.batch)[index]
    seed = split(settings.seed, "evidence", index)
    evidence = estimate(model.encode(x), model.posterior(x), exact, settings, seed)
    more = {name: evidence.diagnostics[name] for name in REPORTED if name in evidence.diagnostics}
    return {name: value.cpu() for name, value in {**evidence.per_item._asdict(), **more}.items()}


def _summary(
    done: list[dict[str, Tensor]], data: Data, settings: Settings, seconds: list[float]
) -> dict[str, Any]:
    log_z, std_error, ess = (_joined(done, name).double() for name in ("log_z", "std_error", "ess"))
    mean = Estimate.of(log_z)
    summary: dict[str, Any] = {
        **asdict(settings),
        "source": data.source,
        "num_images": len(log_z),
        "num_failed": mean.num_failed,
        "log_likelihood": mean.mean,
        "log_likelihood_se": mean.std_error,  # over images
        "sampling_se": _sampling_se(std_error[log_z.isfinite()]),
        "ess_median": ess.median().item(),
        "ess_min": ess.min().item(),
    }
    k = _joined(done, "pareto_k") if "pareto_k" in done[0] else torch.full_like(ess, torch.nan)
    if len(known := k[k.isfinite()]):  # JSON has no infinity
        summary["pareto_k_max"] = known.max().item()
    if heavy := heavy_tail(k):
        summary["heavy_tail"] = heavy
    if BOUNDS[0] in done[0]:
        lower, upper = (_joined(done, name).double() for name in BOUNDS)
        gap = upper - lower
        summary |= {"lower": lower.mean().item(), "upper": upper.mean().item()}
        summary |= {"gap": gap.mean().item(), "gap_se": gap.std().item() / len(gap) ** 0.5}
    return summary | {"seconds": round(seconds[0], 1), "cpu_seconds": round(seconds[1], 1)}


def _sampling_se(std_error: Tensor) -> float:
    """Of the mean over these images, were the estimates repeated.  [N]"""
    return std_error.square().sum().sqrt().item() / max(1, len(std_error))


def _joined(done: list[dict[str, Tensor]], name: str) -> Tensor:
    return torch.cat([batch[name] for batch in done])


def _fingerprint(model: VAE, data: Data, settings: Settings) -> str:
    """The same for the same weights, images and settings."""
    digest = hashlib.sha256(repr(settings).encode())
    for tensor in (*model.state_dict().values(), data.x):
        digest.update(tensor.contiguous().numpy().tobytes())
    return digest.hexdigest()
