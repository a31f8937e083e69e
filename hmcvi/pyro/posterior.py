"""The distribution of a refined guide, as Pyro's `get_posterior` gives it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from pyro.distributions import TorchDistribution
from torch import Tensor
from torch.distributions import constraints


class RefinedPosterior(TorchDistribution):
    """The refined distribution of all unconstrained latents.  sample(shape) -> [*shape, d]

    draw(n): n independent draws  [n, d]
    """

    arg_constraints: ClassVar[dict[str, Any]] = {}
    support = constraints.real_vector

    def __init__(self, draw: Callable[[int], Tensor], dim: int) -> None:
        super().__init__(event_shape=torch.Size([dim]), validate_args=False)
        self._draw = draw

    def sample(self, sample_shape: Any = ()) -> Tensor:
        shape = torch.Size(sample_shape)
        return self._draw(shape.numel()).reshape(shape + self.event_shape)

    def log_prob(self, value: Tensor) -> Tensor:
        raise NotImplementedError(
            "a refined guide has no density in closed form: its ELBO and `guide.log_weights` price the whole "
            "chain. The density of its base is guide.base.get_posterior().log_prob."
        )
