"""Continuous tempering by Pyro's NUTS."""

from __future__ import annotations

import torch
from pyro.infer import MCMC, NUTS
from torch import Tensor

from hmcvi.density import Density
from hmcvi.evidence import Evidence, ExtendedDensity, Fit, tempered_evidence
from hmcvi.evidence.bases import Base, BaseDistribution
from hmcvi.evidence.ends import compared_with_base
from hmcvi.internal.checks import whole
from hmcvi.internal.random import uniform
from hmcvi.internal.seeds import seed_all

INITIAL = 0.02, 0.98  # range of β


def tempered_nuts(
    base: Base,
    target: Density,
    num_samples: int = 1000,
    num_chains: int = 4,
    num_warmup: int = 500,
    log_zeta: float | Tensor | None = None,
    seed: int = 0,
    progress: bool = True,
) -> Evidence:
    """log Z by NUTS on (z, u), β = σ(u): `tempered_hmc` with trajectories that choose their own length.

    Chains run one after another, from draws of the base and β uniform on (0, 1); step size and masses are
    tuned over num_warmup transitions, the scales of the base being the first guess of the masses.
    log_zeta: log ζ, a guess of log Z; None: that of the base, which must be a fit.
    diagnostics has β [draws, chains], the number of divergences [chains] and log ζ.
    [Hoffman & Gelman 2014; Graham 2018, §5.6.3]

    >>> base = Fit(torch.zeros(2), 2 * torch.eye(2), log_zeta=torch.tensor(2.0))
    >>> target = Density(lambda z: -0.5 * z.square().sum(-1))  # log Z = log 2π
    >>> evidence = tempered_nuts(base, target, num_samples=100, num_chains=2, num_warmup=50, progress=False)
    >>> bool((evidence.log_z - torch.tensor(2 * torch.pi).log()).abs() < 4 * evidence.std_error)
    True
    """
    num_samples, num_warmup = whole("num_samples", num_samples, 4), whole("num_warmup", num_warmup, 0)
    q, num_chains = BaseDistribution(base), whole("num_chains", num_chains, 1)
    if q.batch_shape:
        raise ValueError(
            f"NUTS moves on one density at a time, the base has {list(q.batch_shape)} items: run it for "
            "each of them, or all at once with hmcvi.evidence.tempered_hmc"
        )
    extended = ExtendedDensity(base, target, _log_zeta_of(base, log_zeta))
    scale = q.scale()
    units = 1.0 if scale is None else scale  # of z: the base has the same scale along all coordinates

    def potential_fn(parameters: dict[str, Tensor]) -> Tensor:
        return extended.potential_fn({"z": units * parameters["z"], "u": parameters["u"]})

    chains, divergences = [], []
    with torch.random.fork_rng():
        seed_all(whole("seed", seed, 0))
        first = q.draw(num_chains) / units  # [chains, d]
        for z, beta in zip(first, uniform(first[:, 0]).clamp(*INITIAL), strict=True):
            nuts = NUTS(potential_fn=potential_fn)
            initial = {"z": z, "u": beta.logit()}
            mcmc = MCMC(nuts, num_samples, num_warmup, initial, disable_progbar=not progress)
            mcmc.run()
            chains.append(mcmc.get_samples())
            divergences.append(len(mcmc.diagnostics()["divergences"]["chain 0"]))
    position, u = units * _gathered(chains, "z"), _gathered(chains, "u")
    diagnostics = {
        "beta": u.sigmoid(),
        "num_divergences": torch.tensor(divergences),
        "log_zeta": extended.tempered.log_zeta,
    }
    evidence = tempered_evidence(
        position, extended.tempered.delta(position), extended.tempered.log_zeta, diagnostics=diagnostics
    )
    return compared_with_base(evidence, q)


def _log_zeta_of(base: Base, given: float | Tensor | None) -> float | Tensor:
    if given is not None:
        return given
    if not isinstance(base, Fit):
        raise ValueError("give log_zeta, a guess of log Z: a base that is not a fit has none")
    return base.log_zeta


def _gathered(chains: list[dict[str, Tensor]], name: str) -> Tensor:
    """[draws, chains, ...]"""
    return torch.stack([chain[name] for chain in chains], 1)
