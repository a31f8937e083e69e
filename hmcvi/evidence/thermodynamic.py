"""Thermodynamic integration: log Z as the mean of log γ − log q along the path."""

from __future__ import annotations

import torch
from torch import Tensor

from hmcvi.adaptation.pilot import log_gap
from hmcvi.density import Density
from hmcvi.evidence.bases import Base, BaseDistribution
from hmcvi.evidence.path import MIXING, betas_of, make_kernel, pilot_of
from hmcvi.evidence.result import Evidence, PerItem, mean_acceptance
from hmcvi.internal.checks import whole
from hmcvi.kernels.mcmc.kernel import MakeKernel
from hmcvi.kernels.mcmc.retarget import tempered
from hmcvi.sampling.autocorrelation import mean_error
from hmcvi.sampling.progress import KernelProgress

DEFAULT_TEMPERATURES = 30


@torch.no_grad()
def thermodynamic_integration(
    base: Base,
    target: Density,
    num_temperatures: int | None = None,
    num_chains: int = 4,
    num_samples: int = 500,
    num_warmup: int = 100,
    kernel: MakeKernel | None = None,
    schedule: str | Tensor = "adaptive",
    seed: int = 0,
    progress: bool = True,
) -> Evidence:
    """log Z = ∫₀¹ E_β[log γ − log q] dβ, chains at all temperatures running side by side.

    With m_k and v_k the mean and variance of log γ − log q at β_k, and δ_k = β_{k+1} − β_k,

        log Z ≈ Σ_k δ_k (m_k + m_{k+1}) / 2 − δ_k² (v_{k+1} − v_k) / 12,

    because d m/dβ = v.  The error is that of the averages; it does not include that of the rule, O(δ⁴).
    num_samples: draws of a chain at each temperature.  kernel: as in `gibbs_tempering`, others as in `ais`.
    [Gelman & Meng 1998; Friel, Hurn & Wyse 2014]
    """
    num_chains, num_samples = whole("num_chains", num_chains, 1), whole("num_samples", num_samples, 4)
    q = BaseDistribution(base)
    moving, generator = make_kernel(kernel, q, target, MIXING), q.generator(seed)
    pilot = pilot_of(q, moving, generator, num_chains)
    betas = betas_of(schedule, num_temperatures, pilot, DEFAULT_TEMPERATURES)
    nearest = (betas[:, None] - pilot.betas).abs().argmin(-1)
    state = moving.init(pilot.position[nearest, :num_chains])  # [K + 1, chains, *items, d]
    beta = betas.reshape(-1, *[1] * (state.position.ndim - 2)).to(state.position)
    moving = tempered(pilot.step_sizes(moving, beta), beta)
    gaps, draws, rates = [], [], []
    with KernelProgress("integrating", num_warmup + num_samples, progress) as display:
        for index in range(whole("num_warmup", num_warmup, 0) + num_samples):
            state, info = moving.step(state, generator)
            if index >= num_warmup:
                gaps.append(log_gap(moving, state).transpose(0, 1))
                draws.append(state.position[-1])
                rates.append(mean_acceptance(info))
            display.advance(moving, info)
    gap = torch.stack(gaps)  # [draws, chains, K + 1, *items]
    mean, error = gap.mean((0, 1)), mean_error(gap)
    weight = torch.zeros_like(betas)
    weight[:-1] += betas.diff() / 2
    weight[1:] += betas.diff() / 2
    correction = betas.diff().square() / 12
    log_z = _dot(weight, mean) - _dot(correction, gap.flatten(0, 1).var(0).diff(dim=0))
    ess = num_samples * num_chains / error.time[-1]
    position = torch.cat(draws)
    per_item = PerItem(log_z, _dot(weight.square(), error.variance).sqrt(), ess)
    diagnostics = {"betas": betas, "mean": mean, "acceptance_rate": torch.stack(rates).mean()}
    return Evidence.of(per_item, diagnostics, position, torch.zeros(position.shape[:-1], dtype=gap.dtype))


def _dot(weight: Tensor, values: Tensor) -> Tensor:
    """Σ_k c_k y_k.  [k], [k, *items] -> [*items]"""
    return torch.tensordot(weight.to(values), values, 1)
