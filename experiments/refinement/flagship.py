"""The best likelihood of MNIST by one layer of 50 latents and networks of 200–200 units.

python -m experiments flagship --data ROOT     train it, or go on; then the likelihood of the test images
python -m experiments flagship --report        the table

`configs/flagship.yaml` trains on the grey images, binarised anew at each visit, as Burda et al. (2016) did
for the models it is compared with.  It is tested on the fixed binarisation of Salakhutdinov & Murray (2008).
The likelihood is by annealed importance sampling from a Gaussian with the moments of refined samples, and by
importance sampling with 5000 draws of the same Gaussian.  Weights and estimates that exist are left alone.
"""

from __future__ import annotations

import argparse
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from experiments.table1.rows import ROOT, portable
from hmcvi.commands.endings import exit_code
from hmcvi.data import load_images
from hmcvi.evidence import EvidenceWarning, importance
from hmcvi.internal.storage import load_json, save, save_json
from hmcvi.models import VAE
from hmcvi.training import Config, ConfigError, InterruptGuard, Run, load_config
from hmcvi.training.build import build_chain, build_model
from hmcvi.training.checkpoint import load, load_weights
from hmcvi.training.evaluation import TEST_BATCH, TEST_SEED, evaluate, seed_batch
from hmcvi.training.likelihood import refined_base
from hmcvi.training.scores import Estimate

CONFIG = ROOT / "configs" / "flagship.yaml"
STATIC = ("data.name=mnist_binarized", "data.binarize=none", "evaluate.num_draws=1", "evaluate.nll_samples=1")
KEPT = (
    "bound", "bound_se", "bound_without_chain", "nll", "nll_se", "nll_sampling_se", "nll_ess", "nll_num_few",
    "num_images", "settings",
)  # fmt: skip
NUM_DRAWS = 5000
ANCHORS = {
    "VAE [Burda et al. 2016]": 86.76,
    "IWAE, K = 50 [Burda et al. 2016]": 84.78,
}


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data", metavar="ROOT", help="folder of the folders mnist and mnist_binarized")
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "flagship", help="run folder, results")
    parser.add_argument("--budget", metavar="MINUTES", type=float, help="stop after so long and save")
    parser.add_argument(
        "--set", metavar="KEY=VALUE", action="append", default=[], help="replace a setting of the training"
    )
    parser.add_argument("--chains", type=int, default=8, help="of annealing, for each image")
    parser.add_argument("--temperatures", type=int, default=300, help="of annealing")
    parser.add_argument("--images", type=int, help="of the test set, the first; all if left out")
    parser.add_argument("--report", action="store_true", help="print the table, train nothing")


def run(args: argparse.Namespace) -> int:
    return exit_code(lambda: _run(args))


def _run(args: argparse.Namespace) -> int:
    if not args.report:
        with InterruptGuard(60 * args.budget if args.budget is not None else None) as guard:
            train(args, guard)
            estimate(args, guard)
    print(markdown(_read(args.out, "annealing"), _read(args.out, "importance")))
    return 0


def train(args: argparse.Namespace, guard: InterruptGuard) -> None:
    """Train the model unless its weights are there."""
    if (args.out / "chain.pt").exists():
        return
    if (args.out / "checkpoint.pt").exists():
        Run.resume(args.out, args.set).train(guard)
    else:
        Run.create(configuration(args)).train(guard)


def configuration(args: argparse.Namespace) -> Config:
    """That of the training, its run folder --out."""
    root = [f"data.root={args.data}"] if args.data else []
    place = [f"runs={args.out.parent}", f"name={args.out.name}"]
    return load_config(CONFIG, ["train.compile=true", *args.set, *root, *place])


def estimate(args: argparse.Namespace, guard: InterruptGuard) -> None:
    """Write annealing.json and importance.json, likelihoods of the test images that were binarised once."""
    torch.set_num_threads(1)
    trained = configuration(args)
    model = stored_model(trained, args.out / "chain.pt")
    x = load_images("mnist_binarized", args.data).test[: args.images]
    if not (args.out / "annealing.json").exists():
        ais = [f"evaluate.ais_chains={args.chains}", f"evaluate.ais_temperatures={args.temperatures}"]
        config = load_config(CONFIG, [*args.set, *STATIC, "evaluate.nll=ais", *ais])
        scores = evaluate(model, x, config, guard, args.out / "annealing-unfinished.pt")
        scores.save(args.out / "annealing.pt")
        found = {key: scores.summary[key] for key in KEPT} | load(args.out / "chain.pt").get("cost", {})
        save_json({**found, "config": portable(trained)}, args.out / "annealing.json")
    if not (args.out / "importance.json").exists():
        figures = importance_figures(model, x, args.out / "importance.pt", guard)
        save_json(figures, args.out / "importance.json")


def stored_model(config: Config, path: Path) -> VAE:
    """The model with these weights."""
    state = load(path)["model"]
    data_dim = state["encoder.net.0.weight"].shape[1]
    model = build_model(config, data_dim, build_chain(config.chain, config.model.latent_dim, data_dim))
    load_weights(model, state, path)
    return model.eval().requires_grad_(False)


def importance_figures(model: VAE, x: Tensor, store: Path, guard: InterruptGuard) -> dict[str, Any]:
    """The NLL from 5000 draws of a Gaussian with the moments of refined samples.  x: [N, D]

    Of each image in the file `store`, from which an interrupted estimate goes on.
    """
    kept = load(store) if store.exists() else {"nll": torch.empty(0), "ess": torch.empty(0)}
    for place, batch in enumerate(x.split(TEST_BATCH)):
        if place * TEST_BATCH < len(kept["nll"]):
            continue
        seed_batch(TEST_SEED, place)
        with warnings.catch_warnings():  # of few effective draws, whose number is reported
            warnings.simplefilter("ignore", EvidenceWarning)
            evidence = importance(refined_base(model, batch), model.posterior(batch), NUM_DRAWS, seed=place)
        new = {"nll": -evidence.per_item.log_z.float(), "ess": evidence.per_item.ess.float()}
        kept = {name: torch.cat([kept[name], new[name]]) for name in new}
        save(kept, store)
        guard.check()
    nll = Estimate.of(kept["nll"].double())
    return {
        "nll": nll.mean,
        "nll_se": nll.std_error,
        "nll_ess": kept["ess"].median().item(),
        "nll_samples": NUM_DRAWS,
        "num_images": len(x),
    }


def _read(out: Path, name: str) -> dict[str, Any]:
    path = out / f"{name}.json"
    if not path.exists():
        raise ConfigError(f"there is no {path}: `python -m experiments flagship --data ROOT` makes it")
    return load_json(path)


def markdown(annealed: dict[str, Any], sampled: dict[str, Any]) -> str:
    """Ours beside the models of the same size."""
    lines = ["| model | −bound | NLL, 5000 samples | NLL, AIS |", "|---|---|---|---|"]
    lines += [f"| {name} | | {nll:.2f} | |" for name, nll in ANCHORS.items()]
    ours = [
        f"{-annealed['bound']:.2f} ± {annealed['bound_se']:.2f}",
        *(f"{found['nll']:.2f} ± {found['nll_se']:.2f}" for found in (sampled, annealed)),
    ]
    return "\n".join([*lines, f"| annealed chain, informed reversal | {' | '.join(ours)} |"])
