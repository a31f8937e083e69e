"""The estimators by name: one vocabulary for Python, for Pyro models and for the command line."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from difflib import get_close_matches

from hmcvi.evidence.annealing import ais, bidirectional
from hmcvi.evidence.importance_sampling import importance, iwae
from hmcvi.evidence.result import Evidence
from hmcvi.evidence.sequential import smc
from hmcvi.evidence.tempered import gibbs_tempering, simulated_tempering, tempered_hmc
from hmcvi.evidence.thermodynamic import thermodynamic_integration

METHODS: Mapping[str, Callable[..., Evidence]] = {
    method.__name__: method
    for method in (
        ais,
        bidirectional,
        smc,
        importance,
        iwae,
        thermodynamic_integration,
        simulated_tempering,
        gibbs_tempering,
        tempered_hmc,
    )
}
NEED_EXACT_DRAWS = ("bidirectional",)  # of the normalised target, beside the base
# names that the command line had in the first release
SHORT_NAMES: Mapping[str, str] = {
    "bdmc": "bidirectional",
    "ct-hmc": "tempered_hmc",
    "gibbs-ct": "gibbs_tempering",
    "is": "importance",
    "st": "simulated_tempering",
}


def method_name(name: str, without: Container[str] = ()) -> str:
    """The name of an estimator in METHODS, given that or a short one.

    without: methods that cannot be used here.

    >>> method_name("bdmc")
    'bidirectional'
    >>> method_name("aiss")
    Traceback (most recent call last):
    ValueError: method must be one of ais, bidirectional, smc, importance, iwae, thermodynamic_integration, \
simulated_tempering, gibbs_tempering, tempered_hmc, got 'aiss'; did you mean ais?
    """
    full = SHORT_NAMES.get(name, name)
    known = [method for method in METHODS if method not in without]
    if full in known:
        return full
    near = get_close_matches(name, [*known, *SHORT_NAMES], 1)
    hint = f"; did you mean {SHORT_NAMES.get(near[0], near[0])}?" if near else ""
    raise ValueError(f"method must be one of {', '.join(known)}, got {name!r}{hint}")
