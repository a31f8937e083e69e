"""Memory and time of a training step through long chains, by how they remember.

    python benchmarks/chain_memory.py [--repeats R] [--threads N]

Batch 500, 784 pixels, 20 latents, networks of 200–200; T transitions of four leapfrogs with learned reverse
models.  Each case is a process of its own that takes a few training steps.  Peak memory is what the process
takes beyond what it had before its first step.  Prints one JSON line: MiB and seconds per step for each T and
mode, the memory of 64 transitions against that of 4, and the time against that of the stored graph, worst
over repeats.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time

BATCH, PIXELS, LATENT, NUM_LEAPFROG, STEPS = 500, 784, 20, 4, 3
SHORT, LONG = 4, 64
MEMORY = ("store", "checkpoint", "reversible")


def peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measure(num_hmc: int, memory: str) -> dict[str, float]:
    import torch

    from hmcvi.flows import set_memory
    from hmcvi.kernels import hamiltonian_chain
    from hmcvi.models import VAE

    torch.manual_seed(0)
    x = torch.bernoulli(0.3 * torch.rand(BATCH, PIXELS))
    chain = hamiltonian_chain(LATENT, PIXELS, num_hmc, NUM_LEAPFROG, partial=True, initial_step_size=0.01)
    model = VAE(PIXELS, LATENT, set_memory(chain, memory))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    before, times = peak_mib(), []
    for _ in range(STEPS):
        began = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        (-model.bound(x).mean()).backward()
        optimizer.step()
        times.append(time.perf_counter() - began)
    return {"mib": peak_mib() - before, "seconds": min(times)}


def compare(repeats: int) -> dict[str, object]:
    cases = [(num_hmc, memory) for memory in MEMORY for num_hmc in (SHORT, LONG)]
    runs = []
    for _ in range(repeats):
        found = {}
        for num_hmc, memory in cases:
            command = [sys.executable, __file__, "--case", str(num_hmc), memory]
            output = subprocess.run(command, check=True, capture_output=True).stdout
            found[num_hmc, memory] = json.loads(output)
        runs.append(found)
    return {
        "benchmark": "chain_memory",
        "repeats": repeats,
        **{
            memory: {
                "mib": {t: round(max(run[t, memory]["mib"] for run in runs), 1) for t in (SHORT, LONG)},
                "seconds": {
                    t: round(min(run[t, memory]["seconds"] for run in runs), 2) for t in (SHORT, LONG)
                },
                "memory_64_against_4": round(
                    max(run[LONG, memory]["mib"] / run[SHORT, memory]["mib"] for run in runs), 2
                ),
                "time_against_store": round(
                    max(run[LONG, memory]["seconds"] / run[LONG, "store"]["seconds"] for run in runs), 2
                ),
            }
            for memory in MEMORY
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--case", nargs=2, metavar=("T", "MEMORY"), help="one case, in this process")
    args = parser.parse_args()
    if args.case:
        print(json.dumps(measure(int(args.case[0]), args.case[1])))
        return
    os.environ["OMP_NUM_THREADS"] = str(args.threads)
    print(json.dumps(compare(args.repeats)))


if __name__ == "__main__":
    main()
