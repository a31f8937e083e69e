"""Images per second of training by several processes against one, a thread each.

    python benchmarks/many_processes.py [--processes N] [--repeats R]

MNIST-sized random images, 20 latents, three HMC transitions of four leapfrogs, batches of 500.  The processes
run the training step of `train.py` under torchrun.  Prints one JSON line: images per second of one and of N,
the median ratio and its spread.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys

IMAGES, PIXELS, BATCH, STEPS = 5000, 784, 500, 6


def measure() -> float | None:
    """Images per second, in the first of the processes."""
    import time

    import torch

    from hmcvi.data import Images
    from hmcvi.distributed import processes
    from hmcvi.training.build import build_chain, build_model, build_objective
    from hmcvi.training.config import load_config
    from hmcvi.training.loop import Stage, Trainer

    config = load_config(overrides=["model.latent_dim=20", f"train.batch_size={BATCH}", "train.epochs=10"])
    with processes() as group:
        torch.manual_seed(0)
        train = 0.3 * torch.rand(IMAGES, PIXELS)
        model = build_model(config, PIXELS, build_chain(config.chain, 20, PIXELS))
        images = Images(train, train[:0], train[:0], None, (28, 28))
        trainer = Trainer(config, Stage("chain", 10, 1e-4, 0), model, build_objective(config), images, group)
        trainer.train_batch()
        group.wait()
        began = time.perf_counter()
        for _ in range(STEPS):
            trainer.train_batch()
        group.wait()
        return STEPS * BATCH / (time.perf_counter() - began) if group.first else None


def run(num_processes: int) -> float:
    launcher = ["torch.distributed.run", "--standalone", f"--nproc-per-node={num_processes}"]
    command = [sys.executable, "-m", *launcher, __file__, "--case"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return float(subprocess.run(command, check=True, capture_output=True, env=environment).stdout)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--case", action="store_true", help="be one of the processes")
    args = parser.parse_args()
    if args.case:
        if (speed := measure()) is not None:
            print(speed)
        return
    one, many = zip(*((run(1), run(args.processes)) for _ in range(args.repeats)), strict=True)
    ratios = [b / a for a, b in zip(one, many, strict=True)]
    result = {
        "benchmark": "many_processes",
        "processes": args.processes,
        "images_per_second": {"one": round(statistics.median(one)), "many": round(statistics.median(many))},
        "ratio": round(statistics.median(ratios), 2),
        "ratio_spread": [round(min(ratios), 2), round(max(ratios), 2)],
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
