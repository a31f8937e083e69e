"""Files with flipped bits, cut, swapped or edited: refused by one line, or used as they were written."""

from __future__ import annotations

import os
import random
import shutil
import warnings
from pathlib import Path
from typing import Any

from benchmarks.attack_parts import SMALL, Clock, Count, quietly, train, weights_of

TRAP = "executed"  # a file that a pickle would make, were it run


class Evil:
    """Whose pickle makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.path}",)


def attack(rng: random.Random, folder: Path, clock: Clock) -> Count:
    """Checkpoints, weights, scores, summaries, draws and evidence of a small run."""
    count, run = Count(), folder / "run"
    code, err = train("--config", "hmcvi", *SMALL, f"runs={folder}", "name=run")
    assert code == 0, (code, err)
    uses = {
        "checkpoint.pt": _resume, "chain.pt": _open, "vae.pt": _resume_scores, "chain-scores.pt": _compare,
        "summary.json": _compare, "config.yaml": _resume, "evidence-iwae.pt": _evidence, "draws.pt": _draws,
    }  # fmt: skip
    _evidence(run)
    _draws(run)
    kept = folder / "kept"
    shutil.copytree(run, kept)
    expected = {name: use(kept) for name, use in uses.items()}
    while clock():
        shutil.rmtree(run)
        shutil.copytree(kept, run)
        name = rng.choice(list(uses))
        how = _damage(rng, run / name, kept, folder / TRAP)
        if name == "checkpoint.pt" and rng.random() < 0.7:
            (run / "checkpoint-before.pt").unlink(missing_ok=True)
        found = uses[name](run)
        failure = None
        if isinstance(found[0], str):
            failure = f"{name} {how}: {found[0]}"
        elif found[0] == 0 and found[1] != expected[name][1] and how != "edited" and name != "config.yaml":
            failure = f"{name} {how}: accepted, with another result"
        elif (folder / TRAP).exists():
            failure = f"{name} {how}: executed"
            (folder / TRAP).unlink()
        count.add("used" if found[0] == 0 else "refused", failure)
    return count


def _damage(rng: random.Random, path: Path, kept: Path, trap: Path) -> str:
    """Change a file in one of many ways; which one."""
    import torch

    content = bytearray(path.read_bytes())
    how = rng.choice(
        ("flipped", "flipped", "cut", "longer", "noise", "empty", "other", "edited", "pickle", "hole")
    )
    match how:
        case "flipped":
            content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
        case "cut":
            del content[rng.randrange(len(content)) :]
        case "longer":
            content += rng.randbytes(rng.randrange(1, 100))
        case "noise":
            content = bytearray(rng.randbytes(rng.randrange(1, 5000)))
        case "empty":
            content = bytearray()
        case "hole":
            begin = rng.randrange(len(content))
            content[begin : begin + 4096] = bytes(len(content[begin : begin + 4096]))
        case "other":
            content = bytearray((kept / rng.choice(os.listdir(kept))).read_bytes())
    if how == "edited" and path.suffix == ".pt" and content[:2] == b"PK":
        state = torch.load(path, weights_only=True)
        torch.save(_edited(rng, state), path)
    elif how == "pickle":
        torch.save({"model": Evil(trap), "trainer": Evil(trap)}, path)
    else:
        path.write_bytes(content)
    return how


def _edited(rng: random.Random, state: Any) -> Any:
    """The same with one field, at any depth, replaced by something else or gone."""
    import torch

    if isinstance(state, dict) and state:
        key, state = rng.choice(list(state)), dict(state)
        if rng.random() < 0.15:
            del state[key]
        else:
            state[key] = _edited(rng, state[key]) if rng.random() < 0.7 else _anything(rng)
        return state
    if isinstance(state, list) and state and rng.random() < 0.7:
        place, state = rng.randrange(len(state)), list(state)
        state[place] = _edited(rng, state[place])
        return state
    if isinstance(state, torch.Tensor) and state.ndim and rng.random() < 0.3:
        return state[..., :-1]
    return _anything(rng)


def _anything(rng: random.Random) -> Any:
    import torch

    return rng.choice(
        [None, "text", -1, 10**30, float("nan"), float("inf"), [], {}, [1, "a"], {"a": None}, True, b"bytes",
         torch.zeros(0), torch.zeros(3), torch.zeros(2, 2, dtype=torch.int8), torch.tensor(1j)]
    )  # fmt: skip


def _resume(run: Path) -> tuple[int | str, Any]:
    code, _ = train("--resume", str(run))
    return code, weights_of(run) if code == 0 else None


def _resume_scores(run: Path) -> tuple[int | str, Any]:
    code, _ = train("--resume", str(run), "evaluate.max_images=19")
    return code, None


def _open(run: Path) -> tuple[int | str, Any]:
    from hmcvi.commands.endings import exit_code
    from hmcvi.training import load_run

    found: list[Any] = []

    def work() -> int:
        found.append(
            {name: value.numpy().tobytes() for name, value in load_run(run).model.state_dict().items()}
        )
        return 0

    code, _ = quietly(lambda: exit_code(work))
    return code, found[0] if found else None


def _compare(run: Path) -> tuple[int | str, Any]:
    from hmcvi.commands.endings import exit_code
    from hmcvi.training.compare_runs import compare_runs, comparison_table

    found: list[str] = []

    def work() -> int:
        found.append(
            comparison_table(compare_runs([run, run.parent / "kept"] if run.name == "run" else [run]))
        )
        return 0

    code, _ = quietly(lambda: exit_code(work))
    return code, None


def _evidence(run: Path) -> tuple[int | str, Any]:
    from hmcvi.commands import main

    code, _ = quietly(
        lambda: main(
            ["evidence", str(run), "--method", "iwae", "--images", "10", "--batch", "5", "--samples", "20"]
        )
    )
    from hmcvi.internal.storage import load_json

    path = run / "evidence-iwae.json"
    return code, load_json(path)["log_likelihood"] if code == 0 and path.exists() else None


def _draws(run: Path) -> tuple[int | str, Any]:
    import torch

    import hmcvi
    from hmcvi.commands.endings import exit_code
    from hmcvi.kernels import HMC

    kernel = HMC(hmcvi.Density(_normal), 0.3, 2)
    found: list[bytes] = []

    def work() -> int:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            draws = hmcvi.sample(
                kernel, torch.zeros(3, 2), 20, num_warmup=10, progress=False, check=False,
                checkpoint=run / "draws.pt",
            )  # fmt: skip
        found.append(draws.position.numpy().tobytes())
        return 0

    def refusing() -> int:
        try:
            return exit_code(work)
        except ValueError as error:
            if "belongs to a run" in str(error) or "already, more than" in str(error):
                return 2
            raise

    code, _ = quietly(refusing)
    return code, found[0] if found else None


def _normal(z: Any) -> Any:
    return -0.5 * z.square().sum(-1)
