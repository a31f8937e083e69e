"""Memory and time of a training step through long chains, by how they remember.

Batch 500, 784 pixels, 20 latents, networks of 200–200; T transitions of four leapfrogs with learned reverse
models.  Each case is a process of its own that takes a few training steps.  Peak memory is what the process
takes beyond what it had before its first step.  One record: MiB and seconds per step for each T and mode, the
memory of 64 transitions against that of 4, and the time against that of the stored graph.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from functools import partial

from benchmarks.measuring import (
    Record,
    peak_mib,
    quickly,
    ratios,
    repeatable,
    say,
    seconds,
    spread,
    take_turns,
)
from benchmarks.workers import child

PIXELS, LATENT, NUM_LEAPFROG, STEPS = 784, 20, 4, 3
MEMORY = ("store", "checkpoint", "reversible")


def configure(parser: argparse.ArgumentParser) -> None:
    repeatable(parser, 3)
    quickly(parser)


def measure(num_hmc: int, memory: str, batch: int) -> dict[str, float]:
    import torch

    from hmcvi.flows import set_memory
    from hmcvi.kernels import hamiltonian_chain
    from hmcvi.models import VAE

    torch.manual_seed(0)
    x = torch.bernoulli(0.3 * torch.rand(batch, PIXELS))
    chain = hamiltonian_chain(LATENT, PIXELS, num_hmc, NUM_LEAPFROG, partial=True, initial_step_size=0.01)
    model = VAE(PIXELS, LATENT, set_memory(chain, memory))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        (-model.bound(x).mean()).backward()
        optimizer.step()

    before = peak_mib()
    fastest = min(seconds(step) for _ in range(STEPS))
    return {"mib": peak_mib() - before, "seconds": fastest}


def run(args: argparse.Namespace) -> Iterator[Record]:
    short, long, batch = (1, 3, 20) if args.quick else (4, 64, 500)
    cases = {f"{memory}, T = {t}": (t, memory) for memory in MEMORY for t in (short, long)}
    works = {
        name: partial(child, "chain_memory", *case, batch, threads=args.threads)
        for name, case in cases.items()
    }
    runs = take_turns(works, args.repeats)
    mib = {name: [run["mib"] for run in rows] for name, rows in runs.items()}
    times = {name: [run["seconds"] for run in rows] for name, rows in runs.items()}
    aims = {"reversible": (1.5, 1.8)}
    record: Record = {"threads": args.threads, "repeats": args.repeats}
    for memory in MEMORY:
        few, many = f"{memory}, T = {short}", f"{memory}, T = {long}"
        growth, slower = aims.get(memory, (None, None))
        record[memory] = {
            "mib": {name: spread(mib[name], 1) for name in (few, many)},
            "seconds": {name: spread(times[name]) for name in (few, many)},
            "memory_long_against_short": spread(ratios(mib[many], mib[few]), at_most=growth),
            "time_against_store": spread(ratios(times[many], times[f"store, T = {long}"]), at_most=slower),
        }
    yield record


if __name__ == "__main__":
    say(measure(int(sys.argv[1]), sys.argv[2], int(sys.argv[3])))
