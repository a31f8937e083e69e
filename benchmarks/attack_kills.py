"""Processes killed at random moments: what goes on ends as if nothing had happened, bit for bit."""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
import traceback
import warnings
from pathlib import Path

import torch

import experiments.__main__
import hmcvi
from benchmarks.attack_parts import SMALL, Clock, Count, only_json
from hmcvi import commands
from hmcvi.commands.train import main
from hmcvi.kernels import HMC
from hmcvi.sampling import draws

ERROR = "error.txt"  # of a process that raised, in its folder
SIGNALS = (signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT)


def attack(rng: random.Random, folder: Path, clock: Clock) -> Count:
    """Training, sampling and evidence in turns, each killed up to three times on its way."""
    torch.set_num_threads(1)
    count, expected = Count(), {}
    longest: dict[str, float] = {}
    for kind in KINDS:
        if kind == "evidence":
            shutil.copytree(folder / "expected-train", folder / f"expected-{kind}")
        began = time.monotonic()
        expected[kind] = _end(kind, _whole(kind, folder / f"expected-{kind}"))
        longest[kind] = time.monotonic() - began
    while clock():
        kind = rng.choice(list(KINDS))
        place = folder / "killed"
        shutil.rmtree(place, ignore_errors=True)
        if kind == "evidence":
            shutil.copytree(folder / "expected-train", place)
        kills = 0
        for _ in range(rng.randrange(1, 4)):
            if (code := _killed(kind, place, rng, 1.1 * longest[kind])) is not None:
                kills += 1
                if code not in (-signal.SIGKILL, -signal.SIGTERM, -signal.SIGINT, 130, 143, 0, 1):
                    count.failures.append(f"{kind} ended with {code}: {_error(place)}")
        found = _end(kind, _whole(kind, place))
        is_same = found == expected[kind]
        for _ in range(max(1, kills)):
            count.add(kind)
        if not is_same:
            count.failures.append(f"{kind} after {kills} kills ended otherwise")
    return count


def _error(folder: Path) -> str:
    """What the process that ended so raised."""
    file = folder / ERROR
    return file.read_text() if file.exists() else "it says nothing"


def _train(folder: Path) -> int:
    run = folder / "run"
    goes_on = (run / "checkpoint.pt").exists()
    return main(
        ["--resume", str(run)] if goes_on else ["--config", "hmcvi", *SMALL, f"runs={folder}", "name=run"]
    )


def _sample(folder: Path) -> int:
    draws.CHECKPOINT_SECONDS = 0.0
    warnings.simplefilter("ignore")
    kernel = HMC(hmcvi.Density(lambda z: -0.5 * z.square().sum(-1)), 0.3, 2)
    found = hmcvi.sample(
        kernel, torch.zeros(3, 2), 400, 50, progress=False, check=False, checkpoint=folder / "draws.pt"
    )
    found.save(folder / "end.pt")
    return 0


def _evidence(folder: Path) -> int:
    options = ["--method", "iwae", "--images", "20", "--batch", "1", "--samples", "50"]
    return commands.main(["evidence", str(folder / "run"), *options])


def _table1(folder: Path) -> int:
    sets = [
        word for setting in (*SMALL, "data.name=digits", "data.validation=200") for word in ("--set", setting)
    ]
    return experiments.__main__.main(["table1", "basic-vi-2d", "--out", str(folder), *sets])


KINDS = {"train": _train, "sample": _sample, "evidence": _evidence, "table1": _table1}


def _start(kind: str, folder: Path) -> int:
    """The process, with all that is imported already, so that kills meet the work."""
    folder.mkdir(parents=True, exist_ok=True)
    if child := os.fork():
        return child
    code = 70
    try:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
        code = KINDS[kind](folder)
    except KeyboardInterrupt:
        code = 130
    except BaseException:
        (folder / ERROR).write_text(traceback.format_exc())
    finally:
        os._exit(code)


def _ended(child: int, seconds: float) -> int | None:
    """Its exit code, minus a signal; None if it has not ended within so long."""
    ends = time.monotonic() + seconds
    while True:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > ends:
            return None
        time.sleep(0.005)


def _whole(kind: str, folder: Path) -> Path:
    code = _ended(_start(kind, folder), 600)
    if code:
        raise RuntimeError(f"{kind} ended with {code}")
    return folder


def _killed(kind: str, folder: Path, rng: random.Random, longest: float) -> int | None:
    """Start it and kill it after a random time; its exit code, None if it had ended before."""
    child = _start(kind, folder)
    if _ended(child, rng.uniform(0, longest)) is not None:
        return None
    os.kill(child, rng.choice(SIGNALS))
    return _ended(child, 300)


def _end(kind: str, folder: Path) -> object:
    if kind == "sample":
        return torch.load(folder / "end.pt", weights_only=True)["position"].numpy().tobytes()
    run = folder / ("basic-vi-2d" if kind == "table1" else "run")
    found: dict[str, object] = {}
    for path in sorted(run.glob("*.pt")):
        if path.name in ("vae.pt", "chain.pt"):
            state = torch.load(path, weights_only=True)["model"]
            found |= {f"{path.name} {name}": value.numpy().tobytes() for name, value in state.items()}
        elif path.name.endswith("-scores.pt"):
            scores = torch.load(path, weights_only=True)
            found |= {
                f"{path.name} {n}": v.numpy().tobytes() for n, v in scores.items() if torch.is_tensor(v)
            }
    if kind == "evidence":
        found["log p"] = only_json(run / "evidence-iwae.json")["log_likelihood"]
    return found
