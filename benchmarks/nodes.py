"""Training by up to 64 nodes, simulated from measured step times and a measured or assumed network.

The step of one of P nodes runs here with its share of the batch, all that it does for the whole batch
included, and its messages are counted instead of sent: seconds of the processor, one thread.  An exchange of
n bytes among P nodes takes 2 (P − 1) (α + n / (P B)), that of a ring; α and B are measured between two
processes of this machine (`loopback`, wall clock) or assumed (`ethernet`, 50 µs and 1 Gbit/s).  A step lasts
as long as its slowest node, drawn P times from the measured steps, and its exchanges, which wait for it.
Model of `many_processes`; batches of 512 and 4,096 in all, and of 512 for each node.  Writes result.json and
figure.png to the folder --out.  One record: milliseconds and speed-ups.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.many_processes import LAUNCHER, PIXELS
from benchmarks.measuring import Record, quickly, say, seconds, set_threads
from benchmarks.workers import child

NODES = (1, 2, 4, 8, 16, 32, 64)
SMALL, LARGE, EXCHANGES = 8, 2**22, 30  # bytes of messages, and how many
SIMULATED = 2000  # steps


class Network(NamedTuple):
    """Between any two nodes."""

    latency: float  # α, in seconds
    bandwidth: float  # B, in bytes per second

    def all_reduce(self, size: int, nodes: int) -> float:
        """Seconds of a ring: 2 (P − 1) messages of n / P bytes, one after another.

        >>> Network(latency=1.0, bandwidth=2.0).all_reduce(size=16, nodes=4)
        18.0
        """
        return 2 * (nodes - 1) * (self.latency + size / nodes / self.bandwidth)


ETHERNET = Network(5e-5, 1.25e8)


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", type=Path, required=True, help="folder for result.json and figure.png")
    parser.add_argument("--repeats", type=int, default=8, help="steps; default: %(default)s")
    quickly(parser)


def run(args: argparse.Namespace) -> Iterator[Record]:
    set_threads(1)
    unit = 64 if args.quick else 512
    networks = {"loopback": loopback(), "ethernet": ETHERNET}
    cases = {f"{unit} in all": (unit, 0), f"{8 * unit:,} in all": (8 * unit, 0), f"{unit} each": (0, unit)}
    result: Record = {
        "nodes": list(NODES),
        "repeats": args.repeats,
        "networks": {name: network._asdict() for name, network in networks.items()},
    }
    for case, (whole, each) in cases.items():
        result[case] = {"compute_ms": [], "bytes": [], "step_ms": {name: [] for name in networks}}
        for nodes in NODES:
            steps, messages = node_steps(whole + each * nodes, nodes, args.repeats)
            row = result[case]
            row["compute_ms"].append(round(1e3 * statistics.median(steps), 2))
            row["bytes"].append(sum(messages))
            for name, network in networks.items():
                took = simulated(steps, nodes, network, messages)
                row["step_ms"][name].append(round(1e3 * took, 2))
        row["speed_up"] = {name: speed_ups(values, grows=each > 0) for name, values in row["step_ms"].items()}
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "result.json").write_text(json.dumps(result, indent=1) + "\n")
    from benchmarks.nodes_figure import draw

    draw(result, args.out / "figure.png")
    yield result


def speed_ups(step_ms: list[float], grows: bool) -> list[float]:
    """Images per second over those of one node; the batch may grow with the number of nodes."""
    return [
        round(step_ms[0] / took * (nodes if grows else 1), 2)
        for nodes, took in zip(NODES, step_ms, strict=True)
    ]


def simulated(steps: list[float], nodes: int, network: Network, messages: list[int]) -> float:
    """Mean seconds of a step: the slowest of its nodes, then all exchanges."""
    generator = random.Random(0)
    slowest = statistics.fmean(max(generator.choices(steps, k=nodes)) for _ in range(SIMULATED))
    return slowest + sum(network.all_reduce(size, nodes) for size in messages)


def node_steps(batch: int, nodes: int, repeats: int) -> tuple[list[float], list[int]]:
    """Seconds of steps of the first node, and the bytes of each message of a step."""
    import torch

    from benchmarks.training import make_trainer
    from hmcvi.internal.processes import Processes
    from hmcvi.training import load_config

    @dataclass(frozen=True)
    class Unconnected(Processes):
        """One of several processes, whose messages are not sent."""

        messages: list[int] = field(default_factory=list)

        def _reduced(self, values: torch.Tensor, how: Any) -> torch.Tensor:
            if self.size > 1:
                self.messages.append(values.numel() * values.element_size())
            return values

    torch.set_num_threads(1)
    torch.manual_seed(0)
    config = load_config(overrides=["model.latent_dim=20", f"train.batch_size={batch}", "train.lr=1e-4"])
    group = Unconnected(0, nodes)
    trainer = make_trainer(config, 0.3 * torch.rand(batch, PIXELS), group)
    took = []
    for _ in range(repeats + 1):  # the first warms up
        trainer.batch = 0
        group.messages.clear()
        took.append(seconds(trainer.train_batch, clock=time.process_time))
    return took[1:], list(group.messages)


def loopback() -> Network:
    """Measured between two processes of this machine: an exchange of n bytes takes 2 α + n / B."""
    small, large = child("nodes", launcher=(*LAUNCHER, "--nproc-per-node=2"))
    return Network(small / 2, (LARGE - SMALL) / max(large - small, 1e-9))


def exchanges() -> list[float] | None:
    """Seconds of small and of large exchanges, in the first of two processes."""
    import torch

    from hmcvi.internal.processes import processes

    with processes() as group:
        took = []
        for size in (SMALL, LARGE):
            values = torch.zeros(size // 4)
            group.sum(values)
            took.append(statistics.median(seconds(lambda: group.sum(values)) for _ in range(EXCHANGES)))  # noqa: B023
        return took if group.first else None


if __name__ == "__main__":
    if (found := exchanges()) is not None:
        say(found)
    sys.exit(0)
