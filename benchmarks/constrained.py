"""Constrained HMC of this library against mici's: effective draws per second, and how cost grows with data.

    python benchmarks/constrained.py [ITEM] [--chains N,N] [--rounds N] [--mici-python PATH] [--json FILE]

Items: lotka_volterra, generalised_lambda, structure, all.  mici runs one chain on each core, its functions
compiled by hand, we a batch of chains on each core, one thread each; the engines take turns, so that noise of
the machine hits all alike.  Model, data, step size, numbers of steps and starting law are the same.  ESS is
that of the slowest of the four parameters over all chains and turns, at most one per transition (of few draws
per chain it is not known better), per second of the wall clock and per second of the processor; the ratio is
of the second, which other processes disturb less.  Without `enough_draws` ESS and R-hat say little; dynamics
being the same, `ratios_of_transitions` needs neither, and an aim is reached if both ratios reach it.
`structure` times a transition at 100, 300 and 1000 observations: its exponent may not exceed 2.

mici comes with `pip install -c constraints.txt -e '.[bench]'`; another interpreter that has mici, jax and
numpy can be named by --mici-python.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
AIMS = {"lotka_volterra": 10.0, "generalised_lambda": 10.0}
PEERS = {"lotka_volterra": ("mici",), "generalised_lambda": ("mici", "mici_structured")}
SIZES = (100, 300, 1000)
ENOUGH = 50  # draws of a chain for its ESS and R-hat to mean something
COST = "ms_per_transition_of_a_chain"
STRUCTURE_CHAINS, STRUCTURE_STEPS, STRUCTURE_TRANSITIONS = 32, 1, 2


class Engine:
    """One worker of `constrained_engines.py` on each core."""

    def __init__(self, name: str, model: str, chains: int, python: str, stack: ExitStack) -> None:
        self.chains, self.answers, self.cores = chains, [], sorted(os.sched_getaffinity(0))
        threads = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
        settings = {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false"}
        self.workers = [
            stack.enter_context(
                subprocess.Popen(
                    [
                        python,
                        str(HERE / "constrained_engines.py"),
                        name,
                        model,
                        str(chains),
                        str(core),
                        str(core),
                    ],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                    env=os.environ | dict.fromkeys(threads, "1") | settings,
                )
            )
            for core in self.cores
        ]
        self.start = [self._read(worker) for worker in self.workers]

    @staticmethod
    def _read(worker: subprocess.Popen[str]) -> dict[str, Any]:
        assert worker.stdout is not None
        line = worker.stdout.readline()
        if not line:
            raise RuntimeError("an engine of the benchmark stopped; its error is above")
        return json.loads(line)

    def run(self, seconds: float) -> None:
        for worker in self.workers:
            assert worker.stdin is not None
            worker.stdin.write(f"{seconds}\n")
            worker.stdin.flush()
        self.answers.append([self._read(worker) for worker in self.workers])

    def draws(self) -> np.ndarray:
        """[chains of all cores, draws of all turns, 4], every chain cut to the shortest"""
        paths = []
        for answers in zip(*self.answers, strict=True):
            paths.append(np.concatenate([np.load(answer["draws"]) for answer in answers], 1))
        shortest = min(path.shape[1] for path in paths)
        return np.concatenate([path[:, :shortest] for path in paths])

    def report(self) -> dict[str, Any]:
        import arviz

        draws = self.draws()
        flat = [answer for answers in self.answers for answer in answers]
        wall = sum(max(answer["seconds"] for answer in answers) for answers in self.answers)
        used = sum(answer["cpu_seconds"] for answer in flat)
        columns = range(draws.shape[-1])
        ess = min(draws[..., 0].size, *(float(arviz.ess(draws[..., i])) for i in columns))
        return {
            "chains": draws.shape[0],
            "draws": draws.shape[1],
            "enough_draws": draws.shape[1] >= ENOUGH,
            "acceptance": round(float(np.mean([answer["acceptance"] for answer in flat])), 3),
            COST: round(1e3 * used / draws[..., 0].size, 3),
            "ess": round(ess, 1),
            "ess_per_second": round(ess / wall, 2),
            "ess_per_cpu_second": round(ess / used, 3),
            "r_hat": round(max(float(arviz.rhat(draws[..., i])) for i in columns), 4),
            "mean": [round(float(value), 4) for value in draws.mean((0, 1))],
            "sd": [round(float(value), 4) for value in draws.std((0, 1))],
            "first_call_s": self.start[0]["first_call_s"],
        }

    def close(self) -> None:
        for answer in (answer for answers in self.answers for answer in answers):
            os.unlink(answer["draws"])


def compare(model: str, args: argparse.Namespace) -> dict[str, Any]:
    """All engines, ours with every number of chains, one after the other, `rounds` times."""
    reports: dict[str, dict[str, Any]] = {}
    with ExitStack() as stack:
        engines = {}
        for name in PEERS[model]:
            engines[name] = Engine(name, model, 1, args.mici_python, stack)
        for chains in args.chains:
            engines[f"hmcvi, {chains} chains"] = Engine("hmcvi", model, chains, sys.executable, stack)
        for _ in range(args.rounds):
            for engine in engines.values():
                engine.run(args.seconds)
        for name, engine in engines.items():
            reports[name] = engine.report()
            engine.close()
            for worker in engine.workers:
                assert worker.stdin is not None
                worker.stdin.close()
    ours = {name: report for name, report in reports.items() if name not in PEERS[model]}
    best_name = max(ours, key=lambda name: ours[name]["ess_per_cpu_second"])
    best = ours[best_name]["ess_per_cpu_second"]
    ratios = {name: round(best / reports[name]["ess_per_cpu_second"], 1) for name in PEERS[model]}
    walls = {
        name: round(ours[best_name]["ess_per_second"] / reports[name]["ess_per_second"], 1)
        for name in PEERS[model]
    }
    steps = {name: round(reports[name][COST] / ours[best_name][COST], 1) for name in PEERS[model]}
    return {
        "benchmark": "constrained",
        "model": model,
        "engines": reports,
        "best": best_name,
        "ratios": ratios,
        "ratios_of_wall_clock": walls,
        "ratios_of_transitions": steps,
        "aim": AIMS[model],
        "reached": {name: min(ratios[name], steps[name]) >= AIMS[model] for name in PEERS[model]},
    }


def structure() -> dict[str, Any]:
    """Seconds of the processor per transition against the number of observations."""
    import torch

    from hmcvi.kernels import ConstrainedHMC
    from hmcvi.models import Generator, generalised_lambda, lotka_volterra
    from hmcvi.models.inputs import Normal

    torch.set_num_threads(1)

    def elementwise(size: int) -> Generator:
        return generalised_lambda(size)

    def conditional(size: int) -> Generator:
        return lotka_volterra(size // 2, time_step=50 / size)

    def autoregressive(size: int) -> Generator:
        """x_t = a x_{t−1} + n_t, simulated, the constraint that of the whole path"""

        def observe(v: Any) -> Any:
            a, path = 0.5 + 0.1 * torch.tanh(v["a"][..., 0]), [v["n"][..., 0]]
            for noise in v["n"].unbind(-1)[1:]:
                path.append(a * path[-1] + noise)
            return torch.stack(path, -1)

        return Generator({"a": Normal(1), "n": Normal(size)}, observe, structure="autoregressive")

    def seconds(make: Any, size: int) -> float:
        generator = make(size)
        inputs = torch.zeros(generator.dim, dtype=torch.float64)
        inputs[-size:] = torch.randn(size, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        chains = STRUCTURE_CHAINS if make is not autoregressive else 1
        if make is conditional:
            inputs[:4] = torch.tensor([0.4, 0.005, 0.05, 0.001]).double().log() + 2
        kernel = ConstrainedHMC(generator, generator.observed(inputs), 0.1, STRUCTURE_STEPS)
        state, random = kernel.init(inputs.expand(chains, -1).clone()), torch.Generator().manual_seed(0)
        state, _ = kernel.step(state, random)
        begin = time.process_time()
        for _ in range(STRUCTURE_TRANSITIONS):
            state, _ = kernel.step(state, random)
        return (time.process_time() - begin) / STRUCTURE_TRANSITIONS / chains

    models = {"elementwise": elementwise, "conditional": conditional, "autoregressive": autoregressive}
    table = {name: {str(size): seconds(make, size) for size in SIZES} for name, make in models.items()}
    growth = {
        name: math.log(row[str(SIZES[-1])] / row[str(SIZES[0])]) / math.log(SIZES[-1] / SIZES[0])
        for name, row in table.items()
    }
    return {
        "benchmark": "constrained",
        "model": "structure",
        "seconds_per_transition": table,
        "exponents": {name: round(value, 2) for name, value in growth.items()},
        "aim": 2.0,
        "reached": {name: value <= 2.0 for name, value in growth.items()},
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("item", nargs="?", default="all", choices=[*AIMS, "structure", "all"])
    parser.add_argument(
        "--chains", type=lambda text: [int(n) for n in text.split(",")], default=[64, 256, 1024]
    )
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=15.0, help="of each turn")
    parser.add_argument("--mici-python", default=sys.executable, metavar="PATH")
    parser.add_argument("--json", type=Path, metavar="FILE", help="append the lines to FILE as well")
    args = parser.parse_args()
    if args.item != "structure":
        probe = subprocess.run([args.mici_python, "-c", "import mici, jax"], capture_output=True, check=False)
        if probe.returncode:
            print("no mici here: pip install -c constraints.txt -e '.[bench]'", file=sys.stderr)
            return 1
    for name in [*AIMS, "structure"]:
        if args.item in (name, "all"):
            line = json.dumps(structure() if name == "structure" else compare(name, args))
            print(line, flush=True)
            if args.json is not None:
                with args.json.open("a") as file:
                    file.write(line + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
