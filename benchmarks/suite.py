"""All comparisons of RESULTS.md in one go: what is run, how long it takes, and where its records go.

python -m benchmarks all --peer-python peers/bin/python   run everything, then write RESULTS.md
python -m benchmarks all --list                           what that is
python -m benchmarks all train_step kernels               some of it

Each file of records is replaced when its part has finished, so that none mixes two sittings.  A part that
fails leaves its file as it was.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.measuring import processor

ROOT = Path(__file__).parents[1]
RECORDS = Path("results/benchmarks")
SITTING = RECORDS / "sitting.json"
PEERS = "peers/bin/python"
ONE_THREAD = "OMP_NUM_THREADS=1"


class Part(NamedTuple):
    """Runs of one benchmark, whose records share a file."""

    what: str  # is measured
    runs: tuple[str, ...]  # arguments of `python -m benchmarks`
    minutes: int  # roughly, on two cores
    has_peers: bool = False  # takes --peer-python
    one_thread: bool = False  # because CPU seconds count

    @property
    def file(self) -> Path:
        return RECORDS / f"{self.runs[0].split()[0]}.jsonl"

    def commands(self, peer_python: str | None = PEERS, file: Path | None = None) -> list[str]:
        """What a reader types; `file`: for the records, in place of that of the part."""
        start = f"{ONE_THREAD} python" if self.one_thread else "python"
        peers = f" --peer-python {shlex.quote(peer_python)}" if self.has_peers and peer_python else ""
        end = f"{peers} --json {shlex.quote(str(file or self.file))}"
        return [f"{start} -m benchmarks {run}{end}" for run in self.runs]


SUITE: dict[str, Part] = {
    "train_step": Part("a training step, against pythae", ("train_step --threads 2 --repeats 5",), 6, True),
    "kernels": Part(
        "HMC against BlackJAX, NumPyro and Pyro, and the memory of `hmcvi.sample`",
        (
            *(f"kernels {item} --repeats 3" for item in ("decoder", "logistic", "normal10", "normal100")),
            "kernels pyro",
            "kernels memory",
        ),
        40,
        True,
    ),
    "annealing": Part("annealed importance sampling", ("annealing --threads 2 --repeats 3",), 4, True),
    "likelihoods": Part(
        "likelihoods of images by annealed importance sampling, and minutes of 10,000", ("likelihoods",), 4
    ),
    "steady": Part("tuned samplers on cheap posteriors", ("steady --repeats 3",), 15, True),
    "constrained": Part("constrained HMC against mici", ("constrained",), 15, True),
    "samplers": Part(
        "whole runs from bad starts",
        ("samplers --peers numpyro blackjax blackjax_chees",),
        40,
        True,
        one_thread=True,
    ),
    "chain_memory": Part("memory of long chains", ("chain_memory",), 5),
    "startup": Part("start-up", ("startup",), 1),
    "scaling": Part("how cost grows", ("scaling --out results/scaling",), 20),
    "many_processes": Part("training by several processes against one", ("many_processes",), 5),
    "nodes": Part("training by up to 64 nodes, simulated", ("nodes --out results/nodes",), 3),
    "gp_estimate": Part(
        "a density estimate of a Gaussian process against what it cannot do without", ("gp_estimate",), 2
    ),
    "pyro_models": Part(
        "refined guides of Pyro models, their cost, and `vectorized_mcmc` against Pyro's HMC",
        ("pyro_models bounds", "pyro_models overhead chains"),
        8,
        one_thread=True,
    ),
    "guides": Part("AutoHMC against the guides of Pyro", ("guides",), 25, True, one_thread=True),
    "guide_steps": Part("a step of AutoHMC in steps of another guide", ("guide_steps",), 2, one_thread=True),
    "mcmc_kernels": Part("our HMC and Pyro's NUTS in Pyro's MCMC", ("mcmc_kernels",), 5, one_thread=True),
    "minibatches": Part("minibatches of a hierarchical model", ("minibatches",), 4, one_thread=True),
    "smc": Part("sequential Monte Carlo against annealing", ("smc",), 15, one_thread=True),
    "default_run": Part("what the default run gains by its chain", ("default_run",), 8),
}
# those that measure no speed, or parts of others
APART = ("attack", "funnels", "profiling", "sampler_moments")


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks all",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(SUITE)} (default: all)")
    parser.add_argument("--peer-python", metavar="PATH", help="interpreter that has the peers")
    parser.add_argument("--list", action="store_true", help="say what would run, and run nothing")
    args = parser.parse_args(arguments)
    if unknown := [name for name in args.names if name not in SUITE]:
        parser.error(f"there is no {unknown[0]!r}; there are {', '.join(SUITE)}")
    chosen = {name: part for name, part in SUITE.items() if not args.names or name in args.names}
    print(listing(chosen, args.peer_python))
    if args.list:
        return 0
    failed = [name for name, part in chosen.items() if not run_part(part, args.peer_python)]
    if not args.names and not failed:
        (ROOT / SITTING).write_text(json.dumps(sitting(), indent=1) + "\n")
    from benchmarks.report import write

    write()
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return bool(failed)


def listing(parts: dict[str, Part], peer_python: str | None) -> str:
    lines = [f"{len(parts)} parts, about {sum(part.minutes for part in parts.values())} minutes"]
    for name, part in parts.items():
        alone = "; without peers" if part.has_peers and peer_python is None else ""
        lines.append(f"  {name:<16}{part.minutes:>4} min  {part.what}{alone}")
    return "\n".join(lines)


def run_part(part: Part, peer_python: str | None) -> bool:
    """Whether all its runs succeeded; their records are then those of its file."""
    fresh = ROOT / part.file.with_suffix(".new")
    fresh.unlink(missing_ok=True)
    began = time.perf_counter()
    for command in part.commands(peer_python, fresh):
        print(f"$ {command}", flush=True)
        words = shlex.split(command.removeprefix(ONE_THREAD))
        threads = {"OMP_NUM_THREADS": "1"} if part.one_thread else {}
        done = subprocess.run([sys.executable, *words[1:]], cwd=ROOT, env=os.environ | threads)
        if done.returncode:
            fresh.unlink(missing_ok=True)
            return False
    fresh.replace(ROOT / part.file)
    print(f"{(time.perf_counter() - began) / 60:.1f} minutes", flush=True)
    return True


def sitting() -> dict[str, str | int]:
    """Where and when all records were made."""
    import torch

    return {
        "date": datetime.date.today().isoformat(),
        "processor": processor(),
        "cores": len(os.sched_getaffinity(0)),
        "torch": torch.__version__,
    }
