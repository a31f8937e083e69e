"""Processes killed at random moments: what goes on ends as if nothing had happened, bit for bit."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.attack_parts import SMALL, Clock, Count
from benchmarks.workers import ROOT

SAMPLE = """
import sys, torch, hmcvi, warnings
from hmcvi.kernels import HMC
from hmcvi.sampling import draws
draws.CHECKPOINT_SECONDS = 0.0
warnings.simplefilter("ignore")
kernel = HMC(hmcvi.Density(lambda z: -0.5 * z.square().sum(-1)), 0.3, 2)
hmcvi.sample(kernel, torch.zeros(3, 2), 400, num_warmup=50, progress=False, check=False,
             checkpoint=sys.argv[1] + "/draws.pt").save(sys.argv[1] + "/end.pt")
"""
SIGNALS = (signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT)


def attack(rng: random.Random, folder: Path, clock: Clock) -> Count:
    """Training, sampling and evidence in turns, each killed up to three times on its way."""
    count, expected = Count(), {}
    longest: dict[str, float] = {}
    for kind in KINDS:
        began = time.monotonic()
        expected[kind] = _end(kind, _whole(kind, folder / f"expected-{kind}"))
        longest[kind] = time.monotonic() - began
    while clock():
        kind = rng.choice(list(KINDS))
        place = folder / "killed"
        shutil.rmtree(place, ignore_errors=True)
        kills = 0
        for _ in range(rng.randrange(1, 4)):
            if (code := _killed(kind, place, rng, 1.1 * longest[kind])) is not None:
                kills += 1
                if code not in (-signal.SIGKILL, -signal.SIGTERM, -signal.SIGINT, 130, 143, 0, 1):
                    count.failures.append(f"{kind} ended with {code}")
        found = _end(kind, _whole(kind, place))
        is_same = found == expected[kind]
        for _ in range(max(1, kills)):
            count.add(kind)
        if not is_same:
            count.failures.append(f"{kind} after {kills} kills ended otherwise")
    return count


def _train(folder: Path) -> list[str]:
    run = folder / "run"
    if (run / "checkpoint.pt").exists():
        return [str(ROOT / "train.py"), "--resume", str(run)]
    return [str(ROOT / "train.py"), "--config", "hmcvi", *SMALL, f"runs={folder}", "name=run"]


def _sample(folder: Path) -> list[str]:
    return ["-c", SAMPLE, str(folder)]


def _table1(folder: Path) -> list[str]:
    sets = [word for setting in SMALL for word in ("--set", setting)]
    sets += ["--set", "data.name=digits", "--set", "data.validation=200"]
    return ["-m", "experiments", "table1", "basic-vi-2d", "--out", str(folder), *sets]


KINDS = {"train": _train, "sample": _sample, "table1": _table1}


def _start(kind: str, folder: Path) -> subprocess.Popen[bytes]:
    folder.mkdir(parents=True, exist_ok=True)
    return subprocess.Popen(
        [sys.executable, *KINDS[kind](folder)],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def _whole(kind: str, folder: Path) -> Path:
    process = _start(kind, folder)
    _, err = process.communicate(timeout=600)
    if process.returncode:
        raise RuntimeError(f"{kind}: {err.decode()[-1000:]}")
    return folder


def _killed(kind: str, folder: Path, rng: random.Random, longest: float) -> int | None:
    """Start it and kill it after a random time; its exit code, None if it had ended before."""
    process = _start(kind, folder)
    try:
        process.wait(rng.uniform(0, longest))
    except subprocess.TimeoutExpired:
        process.send_signal(rng.choice(SIGNALS))
        process.communicate(timeout=300)
        return process.returncode
    process.communicate()
    return None


def _end(kind: str, folder: Path) -> object:
    import torch

    if kind == "sample":
        return torch.load(folder / "end.pt", weights_only=True)["position"].numpy().tobytes()
    run = folder / ("run" if kind == "train" else "basic-vi-2d")
    found = {}
    for path in sorted(run.glob("*.pt")):
        if path.name in ("vae.pt", "chain.pt"):
            state = torch.load(path, weights_only=True)["model"]
            found |= {f"{path.name} {name}": value.numpy().tobytes() for name, value in state.items()}
        elif path.name.endswith("-scores.pt"):
            scores = torch.load(path, weights_only=True)
            found |= {
                f"{path.name} {n}": v.numpy().tobytes() for n, v in scores.items() if torch.is_tensor(v)
            }
    return found
