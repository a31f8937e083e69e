"""Programs with loops are kept on disk, each under the name of its own loop."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from hmcvi.internal.compile import Compiled, repeat, scan


def powers(factor: float) -> Callable[[Tensor, Tensor], Tensor]:
    """x · factorⁿ along rows of n, by a loop within a loop in which alone the factor occurs."""

    def one(
        parts: list[Tensor], inputs: tuple[Tensor, ...]
    ) -> tuple[list[Tensor], tuple[list[Tensor], dict]]:
        (count,) = inputs
        parts = repeat(lambda parts: [factor * parts[0]], parts, count)
        return [part.clone() for part in parts], ([part.clone() for part in parts], {})

    return lambda x, counts: scan(one, [x], (counts,))[0][0]


@pytest.mark.slow
def test_a_program_with_loops_is_found_again_and_not_mistaken_for_another() -> None:
    from torch._dynamo.utils import counters
    from torch._inductor.utils import fresh_cache

    x, counts = torch.arange(3.0), torch.tensor([1, 2, 1])
    with fresh_cache():
        for factor, known in ((2.0, 0), (3.0, 0), (2.0, 1)):
            counters.clear()
            program = Compiled(powers(factor), "a loop", loops=True)
            torch.testing.assert_close(program(x, counts), factor**4 * x)
            assert counters["inductor"]["fxgraph_cache_hit"] == known
            assert counters["inductor"]["fxgraph_cache_miss"] == 1 - known
