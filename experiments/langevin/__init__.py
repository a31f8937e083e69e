"""Langevin and annealed chains on Bayesian logistic regression: 351 radar returns, 35 coefficients.

--data names the folder with ionosphere.npz: X [351, 34] and y in {−1, 1} [351].  A Gaussian base is fitted by
plain variational inference, then the base and a chain of K bridges together, each with as many samples as
Geffner & Domke 2023 use.  Written are result.json, with the ELBO of every method from fresh samples and the
evidence by its weights, which agree where their effective sample size is not small, and figure.png.
[Thin et al. 2021; Geffner & Domke 2021, 2023; Doucet et al. 2022; Vargas et al. 2024]
"""

from __future__ import annotations

import argparse
import copy
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from experiments.langevin.figure import draw
from experiments.langevin.fitting import GaussianBase, Training, evaluate, fit
from experiments.langevin.methods import AUTHORS_CODE, METHODS
from experiments.models import LogisticRegression
from experiments.report import configure_with_quick, timed, write
from hmcvi.chain import Chain
from hmcvi.data import DataError

FILE = "ionosphere.npz"
NUM_STEPS, NUM_SAMPLES = 3750, 40_000  # 75,000 samples in batches of 20; of every estimate
QUICK_STEPS, QUICK_SAMPLES = 50, 2000


def configure(parser: argparse.ArgumentParser) -> None:
    configure_with_quick(parser)
    parser.add_argument("--data", type=Path, required=True, help=f"folder with {FILE}")


def read(folder: Path) -> LogisticRegression:
    path = folder.expanduser() / FILE
    if not path.exists():
        raise DataError(f"there is no {FILE} in {folder}: --data names the folder with it")
    with np.load(path, allow_pickle=False) as file:
        return LogisticRegression(torch.from_numpy(file["X"]).float(), torch.from_numpy(file["y"]).float())


def run(args: argparse.Namespace) -> int:
    target = read(args.data)
    training = Training(QUICK_STEPS if args.quick else NUM_STEPS)
    num_samples = QUICK_SAMPLES if args.quick else NUM_SAMPLES
    bases: dict[bool, GaussianBase] = {}
    records: list[dict[str, Any]] = []
    for full in (False, True):
        torch.manual_seed(args.seed)
        bases[full] = GaussianBase(target.dim, full)
        fit(bases[full], Chain(), target, training)
        name = "full Gaussian" if full else "diagonal Gaussian"
        records.append({"method": name, "bridges": 0, **evaluate(bases[full], Chain(), target, num_samples)})
        report(records[-1])
    for num_bridges in AUTHORS_CODE:
        for name, method in METHODS.items():
            torch.manual_seed(args.seed)
            base, chain = copy.deepcopy(bases[method.full_base]), method.chain(target.dim, num_bridges)
            _, seconds = timed(fit, base, chain, target, training)
            record = {"method": name, "bridges": num_bridges, **evaluate(base, chain, target, num_samples)}
            record |= {"authors_code": AUTHORS_CODE[num_bridges].get(name), "seconds": seconds}
            records.append(record)
            report(records[-1])
    settings = {**asdict(training), "num_samples": num_samples, "seed": args.seed}
    draw(records, write(args.out, {"settings": settings, "runs": records}))
    return 0


def report(record: dict[str, Any]) -> None:
    print(
        f"{record['method']}, {record['bridges']} bridges: ELBO {record['elbo']:.2f} "
        f"± {record['standard_error']:.2f}, log evidence {record['log_evidence']:.2f} "
        f"± {record['log_evidence_error']:.2f}",
        flush=True,
    )
