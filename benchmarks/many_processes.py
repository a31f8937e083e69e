"""Images per second of training by several processes against one, a thread each.

MNIST-sized random images, 20 latents, three HMC transitions of four leapfrogs, batches of 500.  The processes
run the training step of `train.py` under torchrun.  One record: images per second of one and of N, and their
ratio.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from functools import partial

from benchmarks.measuring import Record, quickly, ratios, say, seconds, spread, take_turns
from benchmarks.workers import child

BATCHES_OF_DATA, PIXELS, STEPS = 10, 784, 6
LAUNCHER = ("-m", "torch.distributed.run", "--standalone")


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--repeats", type=int, default=5)
    quickly(parser)


def measure(batch: int) -> float | None:
    """Images per second, in the first of the processes."""
    import torch

    from benchmarks.training import make_trainer
    from hmcvi.internal.processes import processes
    from hmcvi.training import load_config

    config = load_config(overrides=["model.latent_dim=20", f"train.batch_size={batch}", "train.lr=1e-4"])
    with processes() as group:
        torch.manual_seed(0)
        trainer = make_trainer(config, 0.3 * torch.rand(BATCHES_OF_DATA * batch, PIXELS), group)

        def steps() -> None:
            for _ in range(STEPS):
                trainer.train_batch()
            group.wait()

        trainer.train_batch()
        group.wait()
        took = seconds(steps)
        return STEPS * batch / took if group.first else None


def run(args: argparse.Namespace) -> Iterator[Record]:
    batch = 20 if args.quick else 500
    works = {
        name: partial(child, "many_processes", batch, launcher=(*LAUNCHER, f"--nproc-per-node={count}"))
        for name, count in (("one", 1), ("many", args.processes))
    }
    speeds = take_turns(works, args.repeats)
    yield {
        "processes": args.processes,
        "repeats": args.repeats,
        "images_per_second": {name: spread(values, 0) for name, values in speeds.items()},
        "ratio": spread(ratios(speeds["many"], speeds["one"]), at_least=1.5),
    }


if __name__ == "__main__":
    if (speed := measure(int(sys.argv[1]))) is not None:
        say(speed)
