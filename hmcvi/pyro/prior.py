"""The prior of a Pyro model as a distribution over unconstrained vectors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from pyro import poutine
from torch import Tensor
from torch.distributions import Distribution

if TYPE_CHECKING:
    from hmcvi.pyro.density import PyroDensity

SCALE_DRAWS = 400


class Prior(Distribution):
    """The prior p(z) of the latents of a model in its unconstrained coordinates, a base for evidence.

    run: runs the model once; each draw is a run.
    """

    arg_constraints: ClassVar[dict[str, Any]] = {}

    def __init__(self, density: PyroDensity, run: Callable[[], Any]) -> None:
        assert density.layout is not None and density.base is not None
        super().__init__(event_shape=torch.Size([density.layout.dim]), validate_args=False)
        self._density, self._log_prob, self._run = density, density.base.finite_log_prob, run
        nodes = self._nodes()
        weighed = [n for n in density.latents.sites if nodes[n]["mask"] is not None or nodes[n]["scale"] != 1]
        if weighed:
            raise ValueError(
                f"the prior of {', '.join(map(repr, weighed))} is scaled or masked and not normalised: give "
                "a base, such as a trained AutoDiagonalNormal"
            )

    def _nodes(self) -> Any:
        with poutine.block():
            return poutine.trace(self._run).get_trace().nodes

    def log_prob(self, value: Tensor) -> Tensor:
        """log p(z)  [..., d] -> [...]"""
        return self._log_prob(value)

    @torch.no_grad()
    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """[*sample_shape, d]"""
        shape = torch.Size(sample_shape)
        runs = [self._nodes() for _ in range(shape.numel())]
        values = {name: torch.stack([r[name]["value"] for r in runs]) for name in self._density.latents.sites}
        return self._density.unconstrain(values).reshape(shape + self.event_shape)

    @property
    def stddev(self) -> Tensor:
        """The scale of each coordinate, by the middle 68 % of draws: variances may be infinite.  [d]"""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            draws = self.sample([SCALE_DRAWS])
        low, high = draws.quantile(torch.tensor([0.16, 0.84]).to(draws), dim=0)
        return (high - low) / 2
