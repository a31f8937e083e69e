"""Relaxed Boltzmann machines of which everything is known, and what methods are given of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Independent, Normal

from experiments.models.boltzmann import BoltzmannMachine, Moments, Relaxation, apply
from hmcvi.data import DataError
from hmcvi.evidence import Fit, moment_matched_mixture

ALL_SYSTEMS = 10  # with those of the files
NUM_FITS = 500  # by mean fields


class Problem(NamedTuple):
    """Systems in the axes of their bases, where these have independent coordinates."""

    target: Relaxation
    base: Independent
    log_zeta: Tensor  # [systems]
    truth: Moments
    guess: Moments  # of the base

    def runs(self, count: int) -> Independent:
        """The base for `count` independent runs on every system."""
        return self.base.expand(torch.Size([count, *self.base.batch_shape]))


def read(folder: Path) -> tuple[Relaxation, Moments]:
    """Relaxations and exact moments of s, of all systems in the folder."""
    paths = sorted(folder.glob("exact_recomputed_*.npz"))
    if not paths:
        raise DataError(f"there are no exact_recomputed_*.npz in {folder}: --data names the folder with them")
    exact = [np.load(path, allow_pickle=False) for path in paths]
    names = [path.with_name(path.name.replace("exact_recomputed", "params_and_moms")) for path in paths]
    if missing := [name for name in names if not name.exists()]:
        raise DataError(f"there is no {missing[0]}: it has the weights and biases of its system")
    given = [np.load(name, allow_pickle=False) for name in names]

    def stacked(files: list[Any], key: str) -> Tensor:
        return torch.stack([torch.from_numpy(file[key]) for file in files])

    weights = stacked(given, "weights")
    machine = BoltzmannMachine((weights + weights.mT) / 2, stacked(given, "biases"))
    mean, second = stacked(exact, "expc_s"), stacked(exact, "expc_ss")
    covariance = second - mean[..., :, None] * mean[..., None, :]
    states = Moments(stacked(exact, "log_norm_const_s"), mean, covariance)
    return Relaxation(machine, stacked(exact, "Q"), stacked(exact, "D")), states


def completed(relaxation: Relaxation, states: Moments, seed: int) -> tuple[Relaxation, Moments]:
    """The given systems and as many random ones as make ten."""
    missing = ALL_SYSTEMS - len(relaxation.diagonal)
    if missing <= 0:
        return relaxation, states
    rng, given = torch.Generator().manual_seed(seed), relaxation.machine
    made = BoltzmannMachine.random(missing, given.num_units, generator=rng)
    more, found = Relaxation.tightest(made), made.exact_moments()
    machine = BoltzmannMachine(
        torch.cat([given.weights, made.weights]), torch.cat([given.biases, made.biases])
    )
    root, diagonal = torch.cat([relaxation.root, more.root]), torch.cat([relaxation.diagonal, more.diagonal])
    moments = Moments(*(torch.cat(pair) for pair in zip(states, found, strict=True)))
    return Relaxation(machine, root, diagonal), moments


def problem(relaxation: Relaxation, states: Moments, seed: int) -> Problem:
    """Pose the problem, with a base from mean-field fits.  [Graham 2018, (5.50)]"""
    machine = relaxation.machine
    rng = torch.Generator().manual_seed(seed)
    initial = 2 * torch.rand(NUM_FITS, *machine.biases.shape, dtype=torch.float64, generator=rng) - 1
    field = machine.mean_field(initial)
    independent = Moments(field.bound, field.mean, torch.diag_embed(1 - field.mean.square()))
    local = relaxation.moments(independent)  # [fits, systems, …]
    fits = Fit(local.mean, torch.linalg.cholesky(local.covariance), local.log_z)
    matched = [
        moment_matched_mixture(Fit(fits.mean[:, i], fits.root[:, i], fits.log_zeta[:, i]))
        for i in range(len(machine.biases))
    ]
    log_zeta = torch.stack([fit.log_zeta for fit in matched])
    variances, axes = torch.linalg.eigh(torch.stack([fit.covariance for fit in matched]))
    mean = apply(axes.mT, torch.stack([fit.mean for fit in matched]))
    target, base = relaxation.rotated(axes), Independent(Normal(mean, variances.sqrt()), 1)
    guess = Moments(log_zeta, mean, torch.diag_embed(variances))
    return Problem(target, base, log_zeta, target.moments(states), guess)
