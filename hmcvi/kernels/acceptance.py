"""The Metropolis choice between the ends of a trajectory."""

from __future__ import annotations

from torch import Tensor

from hmcvi.flows.integrators import diverged
from hmcvi.kernels.kernel import Info


def accept(old_energy: Tensor, new_energy: Tensor, coin: Tensor) -> Info:
    """Accepted with probability min(1, e^{−ΔH}), ΔH = H(new) − H(old); never where that has diverged.

    coin ~ U(0, 1).  All [...]; `energy` is that of the state chosen.
    """
    energy_change = new_energy - old_energy
    failed = diverged(energy_change)
    accepted = ~failed & (coin.log() < -energy_change)
    return {
        "accepted": accepted,
        "acceptance_rate": (-energy_change).clamp(max=0).exp().where(~failed, 0.0),
        "energy": new_energy.where(accepted, old_energy),
        "energy_change": energy_change,
        "diverged": failed,
    }
