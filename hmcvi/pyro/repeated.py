"""Log densities of models that are evaluated many times in one place: soon without the model's Python."""

from __future__ import annotations

from collections import Counter

import torch
from torch import Tensor

from hmcvi.density import LogProb
from hmcvi.internal.linalg import LinAlgError
from hmcvi.internal.recorded import Recorded
from hmcvi.internal.tracing import is_tracing

FIRST_CALLS = 5  # at positions of the same shape, after which it is recorded
MAX_PROGRAMS = 3
TOLERANCE = 1e-4  # of a program at another position


class Repeated:
    """log_prob, [..., d] -> [...], as a recorded list of tensor operations after a few calls.

    For functions that vmap can run, which do not branch on values, while model and data stay as they are.
    First derivatives only.  Failed linear algebra is left to log_prob, and so is all that cannot be recorded.
    """

    def __init__(self, log_prob: LogProb) -> None:
        self._log_prob = log_prob
        self._calls: Counter[torch.Size] = Counter()
        self._programs: dict[torch.Size, Recorded | None] = {}

    def __call__(self, position: Tensor) -> Tensor:
        if is_tracing() or torch._C._functorch.is_functorch_wrapped_tensor(position):
            return self._log_prob(position)
        shape = position.shape
        self._calls[shape] += 1
        if self._calls[shape] == FIRST_CALLS and len(self._programs) < MAX_PROGRAMS:
            self._programs[shape] = self._recorded(position.detach())
        program = self._programs.get(shape)
        found = None if program is None else program(position)
        return self._log_prob(position) if found is None else found[0]

    def _recorded(self, position: Tensor) -> Recorded | None:
        """The program, if there is one and it agrees with log_prob elsewhere."""
        example, other = position.clone().requires_grad_(), 0.9 * position + 0.01
        try:
            program = Recorded(lambda z: (self._log_prob(z),), [example])
            with torch.no_grad():
                expected, actual = self._log_prob(other), program(other)
        except (Exception, LinAlgError):  # whatever is more than a list of operations is run as it is
            return None
        if actual is None:
            return program
        agrees = torch.allclose(actual[0], expected, rtol=TOLERANCE, atol=TOLERANCE, equal_nan=True)
        return program if agrees else None
