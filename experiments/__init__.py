"""The papers' experiments: `python -m experiments NAME --out DIR` writes a result file and a figure.

An experiment is a module with a docstring, `configure(parser)` and `run(args) -> int`, the exit code.
"""

from __future__ import annotations

from collections.abc import Mapping

EXPERIMENTS: Mapping[str, str] = {
    "boltzmann": "experiments.tempering.boltzmann",
    "cheap-forces": "experiments.refinement.cheap_forces",
    "dhmc": "experiments.dhmc",
    "fits-picture": "experiments.pictures.fits",
    "flagship": "experiments.refinement.flagship",
    "gaussian-latent": "experiments.pseudo_marginal.gaussian_latent",
    "generalised-lambda": "experiments.generators.generalised_lambda",
    "gp-probit": "experiments.pseudo_marginal.gp_probit",
    "hmc-picture": "experiments.pictures.hmc",
    "informed": "experiments.refinement.informed",
    "informed-pyro": "experiments.refinement.pyro_model",
    "inpainting": "experiments.inpainting",
    "iwae-evidence": "experiments.tempering.iwae",
    "iwae-images": "experiments.tempering.iwae_images",
    "jump-picture": "experiments.pictures.jumps",
    "langevin": "experiments.langevin",
    "lotka-volterra": "experiments.generators.lotka_volterra",
    "lotka-volterra-abc": "experiments.generators.lotka_volterra_abc",
    "manifold-picture": "experiments.pictures.manifolds",
    "methods": "experiments.refinement.methods",
    "pose": "experiments.pose",
    "processor-time": "experiments.processor_time",
    "radon": "experiments.tempering.radon",
    "radon-tails": "experiments.tempering.radon_tails",
    "ridge-picture": "experiments.pictures.ridge",
    "simplex": "experiments.simplex",
    "slice-picture": "experiments.pictures.slices",
    "table1": "experiments.table1",
    "vae-globals": "experiments.pseudo_marginal.vae_globals",
}
