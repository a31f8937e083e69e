"""The generalised lambda distribution, given by its quantiles: easy to draw from, its density not closed."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from hmcvi.models.generator import Generator, Variables
from hmcvi.models.inputs import LOGISTIC_SCALE, Logistic, Normal, exponential

FLAT = 1e-3  # below this shape the series takes over: the closed form loses digits as 1/shape²


def generalised_lambda(num_observed: int) -> Generator:
    """N independent draws x_i = q(p_i | z) with the latent z₁, z₃, z₄ ~ N(0, 1) and z₂ ~ Exp(1).

    Of M = 4 + N inputs the first four make z, the others the p_i.  (4.63) with the sign of the second
    fraction corrected, (4.64) with σ = λ = 1.
    """

    def latent(v: Variables) -> Variables:
        return {"z1": v["z1"], "z2": exponential(v["z2"]), "z3": v["z3"], "z4": v["z4"]}

    def observe(v: Variables) -> Tensor:
        z = torch.stack(tuple(latent(v).values()), -1)
        return quantile(v["p"] / LOGISTIC_SCALE, z)

    inputs = {
        "z1": Normal(),
        "z2": Logistic(),
        "z3": Normal(),
        "z4": Normal(),
        "p": Logistic(num_observed),
    }
    return Generator(inputs, observe, latent, structure="elementwise")


def quantile(logit: Tensor, z: Tensor) -> Tensor:
    """q(p | z) = z₁ + ((p^{z₃} − 1)/z₃ − ((1−p)^{z₄} − 1)/z₄)/z₂, p = 1/(1 + e^{−logit}).

    logit: [..., N], z: [..., 4] -> [..., N]

    >>> median = quantile(torch.zeros(1, dtype=torch.float64), torch.tensor([5.0, 1.0, 0.0, 0.0]).double())
    >>> median.item()
    5.0
    """
    location, scale, lower, upper = z[..., None].unbind(-2)
    return location + (power(logsigmoid(logit), lower) - power(logsigmoid(-logit), upper)) / scale


def power(log: Tensor, shape: Tensor) -> Tensor:
    """(e^{shape · log} − 1) / shape, which is `log` where the shape is 0, to full precision near it."""
    flat = shape.detach().abs() < FLAT
    if not flat.any():
        return torch.expm1(shape * log) / shape
    steep = shape.where(~flat, 1.0)
    x = shape * log
    series = log * (1 + x / 2 * (1 + x / 3 * (1 + x / 4 * (1 + x / 5 * (1 + x / 6)))))
    return series.where(flat, torch.expm1(steep * log) / steep)
