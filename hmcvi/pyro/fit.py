"""Whether a chain that was made elsewhere fits the latents of a model."""

from __future__ import annotations

import torch
from torch import Tensor

from hmcvi.chain import Phase, Step, weigh
from hmcvi.density import Density, NormalDensity, standard_log_prob
from hmcvi.kernels.variational.mass import Mass


@torch.no_grad()
def check_chain(chain: Step, dim: int, context_dim: int, like: Tensor) -> None:
    """Refuse a chain that cannot move `dim` latents, by a trial on N(0, I).  like: their dtype and device."""
    position = like.new_zeros(1, dim)
    context = like.new_zeros(1, context_dim) if context_dim else None
    target = Density(standard_log_prob, base=NormalDensity())
    try:
        end = weigh(chain, Phase(position), standard_log_prob(position), target, context).transition
    except RuntimeError as error:
        raise _misfit(dim, context_dim) from error
    masses = (dict(part.named_parameters()) for part in chain.modules() if isinstance(part, Mass))
    sizes = [len(mass["log_scale"]) for mass in masses if "log_scale" in mass]  # 1 would be broadcast
    if end is None or end.state.position.shape != position.shape or any(size != dim for size in sizes):
        raise _misfit(dim, context_dim)


def _misfit(dim: int, context_dim: int) -> ValueError:
    return ValueError(
        f"the chain does not fit the model, whose latents fill {dim} dimensions: build it with dim={dim} and "
        f"context_dim={context_dim}, and in the dtype and on the device of the model"
    )
