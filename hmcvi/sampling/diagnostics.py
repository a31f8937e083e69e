"""Whether draws can be trusted, by ArviZ's diagnostics."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from torch import Tensor

MAX_RHAT = 1.01
MIN_BFMI = 0.3
MIN_AUXILIARY = 0.05  # acceptance of new auxiliary variables
CHANCE = 0.02  # of many chains, so many may have a low E-BFMI by chance
CHECKED = 50_000  # draws of a variable that the check at the end of a run looks at

ARVIZ_NAMES = {"diverged": "diverging", "log_prob": "lp"}


class SamplingWarning(UserWarning):
    """The draws may not represent their density."""


def arviz() -> Any:
    """ArviZ, imported when it is first needed and without its announcement."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        import arviz

    return arviz


def inference_data(variables: Mapping[str, Tensor], stats: Mapping[str, Tensor]) -> Any:
    """variables: {name: [chains, draws, *shape]}; stats: {name: [chains, draws]}"""
    posterior = {name: _array(value) for name, value in variables.items()}
    sample_stats = {ARVIZ_NAMES.get(name, name): _array(value) for name, value in stats.items()}
    if "diverging" in sample_stats:
        sample_stats["diverging"] = sample_stats["diverging"] > 0
    with warnings.catch_warnings():  # many short chains are no mistake
        warnings.filterwarnings("ignore", "More chains", UserWarning)
        return arviz().from_dict(posterior=posterior, sample_stats=sample_stats)


def problems(
    variables: Mapping[str, Tensor],
    stats: Mapping[str, Tensor],
    persistent: bool = False,
    shared: Callable[[], bool] = lambda: True,
) -> list[str]:
    """What speaks against trusting the draws, each with what to try.

    persistent: momenta outlive transitions; energies are then correlated by design and E-BFMI says nothing.
    shared(): whether all chains have the same density; else they need not agree, and each is compared to
        itself.  Asked only where they do not.
    """
    found = []
    rhat, where = worst_rhat(variables)
    if rhat > MAX_RHAT and not shared():
        rhat, where = worst_rhat(variables, shared=False)
    if rhat == math.inf:
        found.append(f"{where} never moved: take smaller steps, or start elsewhere")
    elif rhat > MAX_RHAT:
        found.append(f"R-hat is {rhat:.4g} for {where}: warm up and draw longer, or check for several modes")
    if "diverged" in stats and (count := int(stats["diverged"].sum())):
        transitions = "transitions" if count > 1 else "transition"
        found.append(
            f"{count} {transitions} diverged: raise Warmup(target_acceptance=...), take smaller steps, or "
            "reparameterise"
        )
    if "acceptance_rate_auxiliary" in stats:
        rate = float(stats["acceptance_rate_auxiliary"].double().mean())
        if rate < MIN_AUXILIARY:
            found.append(
                f"new auxiliary variables are accepted at a rate of {rate:.2g} only: make better estimates "
                "(more importance samples, a better proposal), or move them by slices (apm_ss_mh, apm_ss_ss)"
            )
    if "energy" in stats and not persistent and stats["energy"].shape[1] > 2:
        with np.errstate(divide="ignore", invalid="ignore"):  # energies that never change
            low = arviz().bfmi(_array(stats["energy"]))
        count = int((low < MIN_BFMI).sum())
        if count > CHANCE * len(low):
            found.append(
                f"E-BFMI is {low.min():.2f}, below {MIN_BFMI} in {count} of {len(low)} chains: "
                "reparameterise heavy tails and funnels, whose range of energies momenta cannot cover"
            )
    return found


def worst_rhat(variables: Mapping[str, Tensor], shared: bool = True) -> tuple[float, str]:
    """The largest rank-normalised split R-hat and its variable; of long runs, from evenly spaced draws.

    Infinite for a variable that is the same in all draws of all chains.
    """
    worst, where = 0.0, ""
    for name, value in variables.items():
        chains, draws = value.shape[:2]
        if draws < 4 or chains * draws < 8:
            continue
        every = max(1, min(chains * draws // CHECKED, draws // 100))
        entries = _array(value[:, ::every]).reshape(chains, len(range(0, draws, every)), -1)
        if chains == 1:  # its two halves are chains that should agree
            half = entries.shape[1] // 2
            entries = np.stack([entries[0, :half], entries[0, half : 2 * half]])
        elif not shared:  # what is left to differ are the halves of a chain
            spread = entries.std(1, keepdims=True)
            entries = (entries - entries.mean(1, keepdims=True)) / np.where(spread > 0, spread, 1)
        for index in range(entries.shape[-1]):
            with np.errstate(divide="ignore", invalid="ignore"):
                rhat = float(arviz().rhat(entries[..., index]))
            if math.isnan(rhat):  # a variable that never moves, which only integers may do
                rhat = math.inf if value.is_floating_point() else 0.0
            if rhat > worst:
                place = ",".join(map(str, np.unravel_index(index, value.shape[2:])))
                worst, where = rhat, f"{name}[{place}]" if place else name
    return worst, where


def _array(value: Tensor) -> np.ndarray:
    """In numpy; half precision, which numpy lacks or overflows, as double."""
    value = value.detach().cpu()
    return (value.double() if value.is_floating_point() and value.itemsize < 4 else value).numpy()
