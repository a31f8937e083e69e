"""Processor time of estimates, which does not depend on what else the machine does."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from hmcvi.evidence import EvidenceWarning

P = ParamSpec("P")
Result = TypeVar("Result")


def timed(work: Callable[P, Result], *args: P.args, **kwargs: P.kwargs) -> tuple[Result, float]:
    """work(*args, **kwargs) and the seconds it took, without warnings: the results say how good they are."""
    begin = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", EvidenceWarning)
        result = work(*args, **kwargs)
    return result, time.process_time() - begin
