"""The likelihood of rows from their stored weights: by annealing, or exactly for two latents.

The paper's estimate rests on a dozen effective samples of 5000 in 20 dimensions, is too high, and the more so
the further the posterior is from the Gaussian it samples from, which flatters refinement.  In two dimensions
it misses modes, and so does annealing, but an integral on a grid does not.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from experiments.table1.weights import load_row, score_row, stored_config
from hmcvi.data import load_images
from hmcvi.internal.processes import Processes
from hmcvi.internal.storage import save, save_json
from hmcvi.models import VAE
from hmcvi.training import Config, InterruptGuard
from hmcvi.training.evaluation import TEST_BATCH, TEST_SEED, prepare, seed_batch
from hmcvi.training.likelihood import NUM_REFINED
from hmcvi.training.posterior_grid import grid_posterior
from hmcvi.training.scores import Estimate

FOLDER = "ais"
SETTINGS = ("evaluate.nll=ais", "evaluate.num_draws=1", "evaluate.nll_draws=1", "evaluate.nll_samples=1")
KEPT = ("nll", "nll_se", "nll_ess", "num_images", "bound", "bound_se")


def anneal_rows(
    rows: Sequence[str],
    out: Path,
    guard: InterruptGuard,
    overrides: Sequence[str],
    processes: Processes,
) -> None:
    """Write out/ais/row.json, and row.pt with the figures of each image, for every row that has none."""
    for row in rows:
        path = out / FOLDER / f"{row}.json"
        if path.exists():
            continue
        path.parent.mkdir(exist_ok=True)
        config = stored_config(row, out, [*SETTINGS, *overrides])
        if config.model.latent_dim == 2:
            if processes.first:
                save_json({"row": row, **integrate_row(row, out, config, guard)}, path)
            continue
        scores = score_row(row, out, guard, [*SETTINGS, *overrides], processes)
        if processes.first:
            scores.save(path.with_suffix(".pt"))
            save_json({"row": row, "method": "ais", **{key: scores.summary[key] for key in KEPT}}, path)


def integrate_row(row: str, out: Path, config: Config, guard: InterruptGuard) -> dict[str, Any]:
    """The NLL of a row with two latents on grids, and its bound, of the binarisations that rows share."""
    torch.set_num_threads(1)
    model, data = load_row(row, out).requires_grad_(False), config.data
    images = load_images(data.name, data.root, data.validation, data.download)
    nll, bound = [], []
    for place, batch in enumerate(images.test[: config.evaluate.max_images].split(TEST_BATCH)):
        seed_batch(TEST_SEED, place)
        x = prepare(batch, data.binarize)
        bound.append(model.bound(x).detach())
        for image in x:
            nll.append(exact_nll(model, image))
            guard.check()
    found = {"nll": torch.tensor(nll), "bound": torch.cat(bound)}
    settings = f"{len(nll)} images of {data.name}, {data.binarize}, exact, seed {TEST_SEED} split"
    save({"settings": settings, **found}, out / FOLDER / f"{row}.pt")
    figures: dict[str, Any] = {"method": "grid", "num_images": len(nll)}
    for name, values in found.items():
        mean, std_error, _ = Estimate.of(values.double())
        figures |= {name: mean, f"{name}_se": std_error}
    return figures


def exact_nll(model: VAE, x: Tensor) -> float:
    """−log p(x) of one image by an integral over its two latents.  x: [D]"""
    near = model.refine(x[None], NUM_REFINED)[:, 0]
    return -grid_posterior(lambda z: model.log_joint(z, x), near).log_evidence
