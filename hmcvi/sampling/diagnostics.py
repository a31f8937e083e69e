"""Whether draws can be trusted, and what to try where they cannot."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hmcvi.kernels.mcmc.kernel import Kernel
from hmcvi.sampling.convergence import bfmi, bulk_ess, nested_rhat, rhat, tail_ess

MAX_RHAT, LOOSE_RHAT = 1.01, 1.05  # the latter for few draws, of which R-hat is uncertain
MIN_ESS, ENOUGH = 100, 400  # effective draws, wanted of a run with at least so many draws
MIN_BFMI = 0.3
MIN_AUXILIARY = 0.05  # acceptance of new auxiliary variables
CHANCE = 0.02  # of many chains, so many may have a low E-BFMI by chance
CHECKED = 50_000  # draws of a variable that the check at the end of a run looks at
CLOSELY = 100  # entries whose effective draws are counted, those with the largest R-hat
AT_ONCE = 2_000_000  # numbers in one batch of entries
STUCK = 50  # draws after which a chain that has not moved is not unlucky
GROUPS, MANY, SHORT, LEAST = 8, 64, 100, 2000  # nested R-hat: of many short chains, with so many draws

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
        warnings.filterwarnings("ignore", "More chains|Found chain dimension", UserWarning)
        return _from_dict({"posterior": posterior, "sample_stats": sample_stats})


def _from_dict(groups: Mapping[str, Mapping[str, np.ndarray]]) -> Any:
    """ArviZ's container of draws: InferenceData before version 1, then xarray's DataTree."""
    package = arviz()
    before_1 = int(package.__version__.split(".")[0]) < 1
    return package.from_dict(**groups) if before_1 else package.from_dict(groups)


def problems(
    variables: Mapping[str, Tensor],
    stats: Mapping[str, Tensor],
    persistent: bool = False,
    shared: Callable[[], bool] = lambda: True,
    starts: Mapping[str, Tensor] | None = None,
    max_rhat: float = MAX_RHAT,
) -> list[str]:
    """What speaks against trusting the draws, each with what to try.

    max_rhat: the largest R-hat that is no problem.
    persistent: momenta outlive transitions; energies are then correlated by design and E-BFMI says nothing.
    shared(): whether all chains have the same density; else they need not agree, and each is compared to
        itself.  Asked only where they do not.
    starts: where the chains began {name: [chains, *shape]}, for the nested R-hat of many short chains.
    """
    stuck = never_moved(variables)
    found, moving = [], ~stuck
    if stuck.any() and moving.any():
        chains = stuck.nonzero()[:, 0].tolist()
        shown = ", ".join(map(str, chains[:10])) + (", …" if len(chains) > 10 else "")
        found.append(
            f"{'chains' if len(chains) > 1 else 'chain'} {shown} of {len(stuck)} never moved: take smaller "
            "steps, or start elsewhere"
        )
        variables = _of_chains(variables, moving)  # the others may agree
        starts = None if starts is None else _of_chains(starts, moving)
    mixing = _about_mixing(variables, shared, starts, max_rhat)
    return found + mixing + _about_transitions(stats, persistent)


def is_persistent(kernel: Kernel | None) -> bool:
    """Whether momenta of a kernel, or of a part of it, outlive transitions."""
    parts = getattr(kernel, "kernels", (kernel,))
    return any(getattr(part, "persistence", 0.0) != 0 for part in parts)


def never_moved(variables: Mapping[str, Tensor]) -> Tensor:
    """The chains whose continuous variables are the same in all of at least STUCK draws.  [chains]"""
    continuous = [value.flatten(2) if value.ndim > 2 else value[..., None] for value in variables.values()]
    continuous = [value for value in continuous if value.is_floating_point() and value.shape[-1]]
    chains, draws = next(iter(variables.values())).shape[:2]
    if draws < STUCK or not continuous:
        return torch.zeros(chains, dtype=torch.bool)
    still = [(value == value[:, :1]).flatten(1).all(1).cpu() for value in continuous]
    return torch.stack(still).all(0)


def _of_chains(values: Mapping[str, Tensor], chosen: Tensor) -> dict[str, Tensor]:
    """{name: [chains, ...]} of some chains alone.  chosen: [chains]"""
    return {name: value[chosen.to(value.device)] for name, value in values.items()}


def _about_mixing(
    variables: Mapping[str, Tensor],
    shared: Callable[[], bool],
    starts: Mapping[str, Tensor] | None,
    max_rhat: float,
) -> list[str]:
    """Whether chains agree, and whether their draws are enough."""
    chains, draws = next(iter(variables.values())).shape[:2]
    if starts is not None and chains >= MANY and draws < SHORT and chains * draws >= LEAST and shared():
        worst, where = worst_nested_rhat(variables, starts)
        advice = "what chains began with is not forgotten; warm up longer"
        return [f"nested R-hat is {worst:.4g} for {where}: {advice}"] if worst > max_rhat else []
    found = _all_rhat(variables)
    worst, where = _largest(found, variables)
    if worst > max_rhat and not shared():
        worst, where = worst_rhat(variables, shared=False)
        found = {}
    if worst == math.inf:
        return [f"{where} never moved: take smaller steps, or start elsewhere"]
    if worst > max_rhat:
        return [f"R-hat is {worst:.4g} for {where}: warm up and draw longer, or check for several modes"]
    if chains * draws < ENOUGH or draws < 20:
        return []
    return _about_ess(variables, found)


def _about_ess(variables: Mapping[str, Tensor], rhats: Mapping[tuple[str, int], float]) -> list[str]:
    """Whether few draws are effective, of the entries that mix worst."""
    closely = sorted(rhats, key=lambda entry: rhats[entry], reverse=True)[:CLOSELY]
    bulk: dict[tuple[str, int], float] = {}
    tail: dict[tuple[str, int], float] = {}
    for name in {name for name, _ in closely}:
        columns = [index for own, index in closely if own == name]
        for indices, entries in _entries(variables[name], columns):
            bulk |= {(name, i): float(ess) for i, ess in zip(indices, bulk_ess(entries), strict=True)}
            tail |= {(name, i): float(ess) for i, ess in zip(indices, tail_ess(entries), strict=True)}
    for kind, found, advice in (
        ("bulk", bulk, "draw longer, or warm up longer for a better step size and mass"),
        ("tail", tail, "its quantiles are uncertain; draw longer, or reparameterise heavy tails"),
    ):
        if found and (least := min(found.values())) < MIN_ESS:
            name, index = min(found, key=lambda entry: found[entry])
            return [f"{kind} ESS is {least:.0f} for {_place(name, index, variables[name])}: {advice}"]
    return []


def _about_transitions(stats: Mapping[str, Tensor], persistent: bool) -> list[str]:
    """Divergences, auxiliary variables that are hardly renewed, energies that momenta cannot cover."""
    found = []
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
        low = bfmi(stats["energy"])
        count = int((low < MIN_BFMI).sum())
        if count > CHANCE * len(low):
            least = low[~low.isnan()].min()
            found.append(
                f"E-BFMI is {least:.2f}, below {MIN_BFMI} in {count} of {len(low)} chains: "
                "reparameterise heavy tails and funnels, whose range of energies momenta cannot cover"
            )
    return found


def worst_rhat(variables: Mapping[str, Tensor], shared: bool = True) -> tuple[float, str]:
    """The largest rank-normalised split R-hat and its variable; of long runs, from evenly spaced draws.

    Infinite for a variable that is the same in all draws of all chains.
    """
    return _largest(_all_rhat(variables, shared), variables)


def worst_entries(variables: Mapping[str, Tensor], count: int) -> list[tuple[str, Tensor]]:
    """The entries with the largest R-hat, by name, in double precision.  [(name, [chains, draws]), …]

    The first ones where there are too few draws for R-hat.
    """
    found = _all_rhat(variables) or {
        (name, index): 0.0 for name, value in variables.items() for index in range(value[0, 0].numel())
    }
    worst = sorted(found, key=lambda entry: found[entry], reverse=True)[:count]
    return [
        (
            _place(name, index, variables[name]),
            variables[name].flatten(2)[..., index].detach().double().cpu()
            if variables[name].ndim > 2
            else variables[name].detach().double().cpu(),
        )
        for name, index in worst
    ]


def worst_nested_rhat(variables: Mapping[str, Tensor], starts: Mapping[str, Tensor]) -> tuple[float, str]:
    """The largest nested R-hat and its variable, over groups of chains that began near each other.

    Chains are ordered by where they began, for every entry by itself; those that began at the same point
    are then one group, if there are as many of them as a group has.
    """
    found: dict[tuple[str, int], float] = {}
    for name, value in variables.items():
        first = starts[name].reshape(len(starts[name]), -1)
        for indices, entries in _entries(value):
            kept = len(entries) // GROUPS * GROUPS
            order = first[:, indices].argsort(dim=0, stable=True)[:kept].to(entries.device)
            grouped = torch.take_along_dim(entries, order[:, None], 0)
            for index, worst in zip(indices, nested_rhat(grouped, GROUPS).tolist(), strict=True):
                found[name, index] = 0.0 if math.isnan(worst) else worst
    return _largest(found, variables)


def _all_rhat(variables: Mapping[str, Tensor], shared: bool = True) -> dict[tuple[str, int], float]:
    """R-hat of every entry of every variable, by name and index."""
    found = {}
    for name, value in variables.items():
        chains, draws = value.shape[:2]
        if draws < 4 or chains * draws < 8:
            continue
        for indices, entries in _entries(value):
            if chains == 1:  # its two halves are chains that should agree
                half = entries.shape[1] // 2
                entries = torch.stack([entries[0, :half], entries[0, half : 2 * half]])
            elif not shared:  # what is left to differ are the halves of a chain
                spread = entries.std(1, correction=0, keepdim=True)
                entries = (entries - entries.mean(1, keepdim=True)) / spread.where(spread > 0, 1.0)
            for index, worst in zip(indices, rhat(entries).tolist(), strict=True):
                if math.isnan(worst):  # it never moves, which only integers may do
                    worst = math.inf if value.is_floating_point() else 0.0
                found[name, index] = worst
    return found


def _entries(value: Tensor, columns: list[int] | None = None) -> Iterator[tuple[list[int], Tensor]]:
    """Entries of a variable [chains, draws, *shape] some at a time: their indices, [chains, draws, k].

    In double precision; of long runs, evenly spaced draws.
    """
    chains, draws = value.shape[:2]
    every = max(1, min(chains * draws // CHECKED, draws // 100))
    flat = value[:, ::every].reshape(chains, len(range(0, draws, every)), -1)
    columns = list(range(flat.shape[-1])) if columns is None else columns
    size = max(1, AT_ONCE // (flat.shape[0] * flat.shape[1]))
    for begin in range(0, len(columns), size):
        some = columns[begin : begin + size]
        yield some, flat[..., some].detach().double()


def _largest(found: Mapping[tuple[str, int], float], variables: Mapping[str, Tensor]) -> tuple[float, str]:
    """The largest value and the entry it belongs to."""
    if not found or max(found.values()) <= 0:
        return 0.0, ""
    name, index = max(found, key=lambda entry: found[entry])
    return found[name, index], _place(name, index, variables[name])


def _place(name: str, index: int, value: Tensor) -> str:
    """z[3], or theta[0,2]"""
    place = ",".join(str(int(i)) for i in np.unravel_index(index, value.shape[2:]))
    return f"{name}[{place}]" if place else name


def _array(value: Tensor) -> np.ndarray:
    """For ArviZ, which knows no bfloat16 and loses digits in float16."""
    value = value.detach().cpu()
    is_half = value.is_floating_point() and value.element_size() < 4
    array: np.ndarray = (value.double() if is_half else value).numpy()
    return array
