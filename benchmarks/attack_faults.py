"""Disks that fail now and then: nothing is lost but time, and what was written is whole."""

from __future__ import annotations

import random
import shutil
import warnings
from pathlib import Path
from typing import Any

from benchmarks.attack_parts import SMALL, Clock, Count, FailingDisk, only_json, quietly, train, weights_of


def attack(rng: random.Random, folder: Path, clock: Clock) -> Count:
    """Training, sampling and evidence on a failing disk, then again on a good one."""
    count = Count()
    kinds = {"train": _train, "sample": _sample, "evidence": _evidence}
    good = FailingDisk(rng, folder, 0.0)
    expected = {kind: work(folder / "good", good) for kind, work in kinds.items()}
    assert all(code == 0 for code, _ in expected.values()), expected
    while clock():
        kind = rng.choice(list(kinds))
        place = folder / "bad"
        shutil.rmtree(place, ignore_errors=True)
        if kind == "evidence":
            shutil.copytree(folder / "good", place)
            for path in (place / "run").glob("evidence*"):
                path.unlink()
        place.mkdir(exist_ok=True)
        disk = FailingDisk(rng, place, rng.choice((0.05, 0.3, 1.0)))
        with disk.mounted():
            code, found = kinds[kind](place, disk)
        failure = None
        if isinstance(code, str):
            failure = f"{kind}: {code}"
        elif code == 0 and found != expected[kind][1]:
            failure = f"{kind}: ended otherwise, as if all were well"
        elif code not in (0, 2):
            failure = f"{kind}: exit code {code}"
        disk.broken = False
        again, after = kinds[kind](place, disk)
        if failure is None and (again != 0 or after != expected[kind][1]):
            failure = f"{kind}: after the disk was repaired, {again}"
        count.add(kind, failure)
        count.kinds["faults"] = count.kinds.get("faults", 0) + disk.faults
    return count


def _train(folder: Path, disk: FailingDisk) -> tuple[int | str, Any]:
    run = folder / "run"
    goes_on = (run / "checkpoint.pt").exists()
    begin = ["--resume", str(run)] if goes_on else ["--config", "hmcvi", *SMALL, f"runs={folder}", "name=run"]
    code, err = train(*begin)
    if code != 0:
        return code if "Traceback" not in err else err[-500:], None
    only_json(run / "summary.json")
    return code, weights_of(run)


def _sample(folder: Path, disk: FailingDisk) -> tuple[int | str, Any]:
    import torch

    import hmcvi
    from hmcvi.kernels import HMC
    from hmcvi.sampling import draws

    folder.mkdir(exist_ok=True)
    kernel, found = HMC(hmcvi.Density(_normal), 0.3, 2), []
    before, draws.CHECKPOINT_SECONDS = draws.CHECKPOINT_SECONDS, 0.0

    def work() -> int:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            position = hmcvi.sample(
                kernel, torch.zeros(3, 2), 30, num_warmup=10, progress=False, check=False,
                checkpoint=folder / "draws.pt",
            ).position  # fmt: skip
        found.append(position.numpy().tobytes())
        return 0

    try:
        code, _ = quietly(work)
    finally:
        draws.CHECKPOINT_SECONDS = before
    return code, found[0] if found else None


def _evidence(folder: Path, disk: FailingDisk) -> tuple[int | str, Any]:
    from hmcvi.commands import main

    options = ["--method", "iwae", "--images", "10", "--batch", "2", "--samples", "20"]
    code, err = quietly(lambda: main(["evidence", str(folder / "run"), *options]))
    if code != 0:
        return code if "Traceback" not in err else err[-500:], None
    return code, only_json(folder / "run" / "evidence-iwae.json")["log_likelihood"]


def _normal(z: Any) -> Any:
    return -0.5 * z.square().sum(-1)
