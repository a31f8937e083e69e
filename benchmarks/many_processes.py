"""Images per second of training by 1, 2, 4 processes against one, a thread each.

MNIST-sized random images, 20 latents, three HMC transitions of four leapfrogs, batches of 500.  The processes
run the training step of `train.py` under torchrun.  More processes than cores share them.  One record: images
per second by the number of processes, and their ratios to one.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from functools import partial

from benchmarks.measuring import Record, quickly, ratios, say, seconds, spread, take_turns
from benchmarks.workers import child

BATCHES_OF_DATA, PIXELS, STEPS, AIM = 10, 784, 6, 1.5
LAUNCHER = ("-m", "torch.distributed.run", "--standalone")


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--processes", type=lambda text: [int(n) for n in text.split(",")], default=[2, 4], metavar="N,N"
    )
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
        str(count): partial(child, "many_processes", batch, launcher=(*LAUNCHER, f"--nproc-per-node={count}"))
        for count in (1, *args.processes)
    }
    speeds = take_turns(works, args.repeats)
    cores = len(os.sched_getaffinity(0))
    yield {
        "cores": cores,
        "repeats": args.repeats,
        "images_per_second": {count: spread(values, 0) for count, values in speeds.items()},
        "over_one_process": {
            str(count): spread(
                ratios(speeds[str(count)], speeds["1"]), at_least=AIM if count <= cores else None
            )
            for count in args.processes
        },
    }


if __name__ == "__main__":
    if (speed := measure(int(sys.argv[1]))) is not None:
        say(speed)
