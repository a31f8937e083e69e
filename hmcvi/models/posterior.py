"""Posteriors of decoders, and cheap densities near them whose forces may stand in for theirs."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hmcvi.density import Density, LogProb, standard_log_prob
from hmcvi.networks import MLP, GaussianDecoder

DRAWS_PER_RANK = 4  # of the prior, by which the principal components of a decoder's outputs are found
SEED = 0


class DecoderPosterior(Density):
    """γ(z) = p(x|z) N(z; 0, I), which knows its decoder and what was observed.

    log_joint(z, x): log γ itself.  likelihood(decoder(z), x): log p(x|z), a sum over the entries of x.
    """

    def __init__(
        self, log_joint: LogProb, x: Tensor, base: Density, decoder: nn.Module, likelihood: LogProb
    ) -> None:
        super().__init__(log_joint, x, base=base)
        self.decoder, self._likelihood = decoder, likelihood

    @property
    def num_observed(self) -> int:
        """D, the number of entries of x."""
        return self._given[0].shape[-1]

    def subset(self, kept: Tensor) -> Density:
        """log N(z; 0, I) + D/k Σ_{i ∈ kept} log p(x_i|z), from the same base.  kept: indices [k]

        An MLP computes these outputs alone; other decoders compute all.
        """
        (x,) = self._given
        kept = kept.to(x.device)
        if not isinstance(self.decoder, MLP | GaussianDecoder):
            return Density(self._of_some_outputs, x[..., kept], kept, base=self.base)
        head = _head(self.decoder)
        groups = head.out_features // self.num_observed
        rows = torch.cat([kept + group * self.num_observed for group in range(groups)])
        return Density(self._of_rows, x[..., kept], head.weight[rows], head.bias[rows], base=self.base)

    def low_rank(self, rank: int) -> Density:
        """The posterior of a decoder whose last layer W h + b has its outputs in `rank` dimensions,

            W h̄ + b + Q QᵀW (h − h̄),

        where Q [outputs, rank] spans the principal components of the outputs at draws of the prior, always
        the same ones, and h̄ is the mean of their features.  Q follows the decoder as that is trained, but
        is a constant in derivatives.  Q is found by one subspace iteration.  [Halko et al. 2011]
        """
        if not isinstance(self.decoder, MLP | GaussianDecoder):
            raise ValueError(
                "the surrogate is the decoder with a last layer of low rank: it needs an MLP or a "
                f"GaussianDecoder, got a {type(self.decoder).__name__}"
            )
        head = _head(self.decoder)
        if not 1 <= rank <= (most := min(head.in_features, head.out_features)):
            raise ValueError(f"the rank of the surrogate must lie in 1, …, {most}, got {rank}")
        basis, mean = _principal(self.decoder, rank)
        right = basis.T @ head.weight
        bias = head.bias + head.weight @ mean - basis @ (right @ mean)
        return Density(self._of_low_rank, *self._given, basis, right, bias, base=self.base)

    def _of_some_outputs(self, z: Tensor, x: Tensor, kept: Tensor) -> Tensor:
        output = self.decoder(z)
        some = output[..., kept] if isinstance(output, Tensor) else [part[..., kept] for part in output]
        return self._scaled(some, x) + standard_log_prob(z)

    def _of_rows(self, z: Tensor, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        output = self.decoder(z, head=lambda hidden: F.linear(hidden, weight, bias))
        return self._scaled(output, x) + standard_log_prob(z)

    def _of_low_rank(self, z: Tensor, x: Tensor, left: Tensor, right: Tensor, bias: Tensor) -> Tensor:
        output = self.decoder(z, head=lambda hidden: F.linear(F.linear(hidden, right), left, bias))
        return self._likelihood(output, x) + standard_log_prob(z)

    def _scaled(self, output: Tensor | list[Tensor] | tuple[Tensor, ...], x: Tensor) -> Tensor:
        return self.num_observed / x.shape[-1] * self._likelihood(output, x)


def _head(decoder: MLP | GaussianDecoder) -> nn.Linear:
    return decoder.head if isinstance(decoder, MLP) else decoder.net.head


@torch.no_grad()
def _principal(decoder: MLP | GaussianDecoder, rank: int) -> tuple[Tensor, Tensor]:
    """Principal directions of the outputs of the last layer [outputs, rank], and mean features [hidden]."""
    net = decoder if isinstance(decoder, MLP) else decoder.net
    first = net[0]
    assert isinstance(first, nn.Linear)
    generator = torch.Generator().manual_seed(SEED)
    count = DRAWS_PER_RANK * rank
    z = torch.randn(count, first.in_features, generator=generator).to(first.weight)
    sketch = torch.randn(count, rank, generator=generator).to(z)
    hidden = net(z, nn.Identity())
    outputs = (hidden - hidden.mean(0)) @ net.head.weight.T
    start = torch.linalg.qr(outputs.T @ sketch).Q
    return torch.linalg.qr(outputs.T @ (outputs @ start)).Q, hidden.mean(0)
