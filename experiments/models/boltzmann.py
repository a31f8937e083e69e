"""Boltzmann machines, and their relaxations to mixtures of normal distributions whose moments are known."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import softplus

from experiments.models.semidefinite import least_diagonal
from hmcvi.density import Density

MAX_UNITS = 30  # of which all states are visited
BATCH = 256  # states of the first half of the units, each with all of the second
SWEEPS = 1000


class Moments(NamedTuple):
    """Moments of the density γ / Z."""

    log_z: Tensor  # [*items]
    mean: Tensor  # [*items, n]
    covariance: Tensor  # [*items, n, n]


class MeanField(NamedTuple):
    """Independent units with means m, and a bound on log Z."""

    mean: Tensor  # [..., *items, n]
    bound: Tensor  # [..., *items]


class BoltzmannMachine:
    """P(s) ∝ exp(½ sᵀWs + bᵀs), s ∈ {−1, 1}ⁿ.  W: [*items, n, n], symmetric; b: [*items, n]."""

    def __init__(self, weights: Tensor, biases: Tensor) -> None:
        if weights.shape != (*biases.shape, biases.shape[-1]):
            raise ValueError(
                f"weights must be [*items, n, n] for biases [*items, n], got {list(weights.shape)} and "
                f"{list(biases.shape)}"
            )
        if not torch.equal(weights, weights.mT):
            raise ValueError("weights must be symmetric: W_ij belongs to the pair of i and j")
        self.weights, self.biases = weights, biases

    @classmethod
    def random(
        cls, *shape: int, generator: torch.Generator, scale: float = 6.0, steepness: float = 2.0
    ) -> BoltzmannMachine:
        """Frustrated machines with many modes, shape = (*items, n).

        W = R diag(e) Rᵀ off the diagonal and 0 on it, R a random rotation, e_i = scale · tanh(steepness n_i),
        n_i ~ N(0, 1);  b_i ~ N(0, 0.1²).  [Graham 2018, §5.6.1]
        """

        def normal(*size: int) -> Tensor:
            return torch.randn(*size, dtype=torch.float64, generator=generator)

        q, r = torch.linalg.qr(normal(*shape, shape[-1]))
        rotation = q * r.diagonal(dim1=-2, dim2=-1).sign()[..., None, :]  # of Haar's measure
        spectrum = scale * torch.tanh(steepness * normal(*shape))
        weights = (rotation * spectrum[..., None, :]) @ rotation.mT
        weights = 0.5 * (weights + weights.mT)
        weights = weights - torch.diag_embed(weights.diagonal(dim1=-2, dim2=-1))
        return cls(weights, 0.1 * normal(*shape))

    @property
    def num_units(self) -> int:
        return self.biases.shape[-1]

    def log_prob(self, states: Tensor) -> Tensor:
        """½ sᵀWs + bᵀs  [..., *items, n] -> [..., *items]"""
        return (states * (0.5 * apply(self.weights, states) + self.biases)).sum(-1)

    def exact_moments(self) -> Moments:
        """Moments by a sum over all states, for no more than 30 units: half a minute for so many."""
        if self.num_units > MAX_UNITS:
            raise ValueError(f"exact moments take at most {MAX_UNITS} units, here are {self.num_units}")
        items, n = self.biases.shape[:-1], self.num_units
        pairs = zip(self.weights.reshape(-1, n, n), self.biases.reshape(-1, n), strict=True)
        found = [_sum_over_states(BoltzmannMachine(weights, biases)) for weights, biases in pairs]
        log_z, mean, second = (
            torch.stack(values).unflatten(0, items or (1,)) for values in zip(*found, strict=True)
        )
        if not items:
            log_z, mean, second = log_z[0], mean[0], second[0]
        return Moments(log_z, mean, second - mean[..., :, None] * mean[..., None, :])

    def mean_field(self, initial: Tensor) -> MeanField:
        """m_i = tanh(Σ_j W_ij m_j + b_i), unit after unit, from means `initial` [..., *items, n].

        Each update is the best of its unit, so that the bound ½ mᵀWm + bᵀm + H(m) ≤ log Z never falls.
        """
        mean = initial.clone()
        for _ in range(SWEEPS):
            before = mean.clone()
            for unit in range(self.num_units):
                field = (self.weights[..., unit, :] * mean).sum(-1) + self.biases[..., unit]
                mean[..., unit] = field.tanh()
            if (mean - before).abs().max() < 1e-8:
                break
        share = 0.5 * (1 + mean)
        entropy = torch.special.entr(share) + torch.special.entr(1 - share)
        return MeanField(mean, self.log_prob(mean) + entropy.sum(-1))


def _sum_over_states(machine: BoltzmannMachine) -> tuple[Tensor, Tensor, Tensor]:
    """log Z, E[s] and E[s sᵀ] of one machine.

    States are pairs (s, t) of those of half the units: log P(s, t) = log P_1(s) + sᵀ W_12 t + log P_2(t).
    """
    half = machine.num_units // 2
    weights, biases = machine.weights, machine.biases
    first, second = (_states(count).to(biases) for count in (half, machine.num_units - half))
    alone = [
        (states * (0.5 * states @ weights[part, part] + biases[part])).sum(-1)
        for part, states in ((slice(half), first), (slice(half, None), second))
    ]
    largest = biases.new_tensor(-torch.inf)
    columns, mean, same, cross = (
        biases.new_zeros(size) for size in (len(second), half, (half, half), weights[:half, half:].shape)
    )
    for rows, log_prob in zip(first.split(BATCH), alone[0].split(BATCH), strict=True):
        mass = log_prob[:, None] + (rows @ weights[:half, half:]) @ second.mT + alone[1]
        top = torch.maximum(largest, mass.max())
        scale, mass = (largest - top).exp(), mass.sub_(top).exp_()
        share = mass.sum(1)
        columns = scale * columns + mass.sum(0)
        mean = scale * mean + share @ rows
        same = scale * same + rows.mT @ (share[:, None] * rows)
        cross = scale * cross + rows.mT @ (mass @ second)
        largest = top
    total = columns.sum()
    last = second.mT @ (columns[:, None] * second)
    moment = torch.cat([torch.cat([same, cross], 1), torch.cat([cross.mT, last], 1)])
    return total.log() + largest, torch.cat([mean, columns @ second]) / total, moment / total


def _states(num_units: int) -> Tensor:
    """All of {−1, 1}ⁿ  [2ⁿ, n]"""
    index = torch.arange(2**num_units)[:, None]
    return 2 * ((index >> torch.arange(num_units)) & 1) - 1


class Relaxation(Density):
    """γ(x) = exp(−½ xᵀx) Π_i cosh(q_iᵀx + b_i): a mixture of 2ⁿ normals N(Qᵀs, I), weighted by P(s).

    q_iᵀ are the rows of Q, Q Qᵀ = W + D with a diagonal D.  root: Q [*items, n, r]; diagonal: D [*items, n].
    [Zhang et al. 2012; Graham 2018, appendix E]

    >>> machine = BoltzmannMachine.random(3, generator=torch.Generator().manual_seed(0))
    >>> relaxation = Relaxation.of(machine)
    >>> relaxation.log_prob(torch.zeros(2, 3, dtype=torch.float64)).shape
    torch.Size([2])
    """

    def __init__(self, machine: BoltzmannMachine, root: Tensor, diagonal: Tensor) -> None:
        error = root @ root.mT - machine.weights - torch.diag_embed(diagonal)
        if error.abs().max() > 1e-6 * (1 + machine.weights.abs().max()):
            raise ValueError(f"Q Qᵀ must be W + D, they differ by up to {error.abs().max():.2g}")
        self.machine, self.root, self.diagonal = machine, root, diagonal
        super().__init__(lambda x: self._value(x, self._fields(x)))

    @classmethod
    def of(cls, machine: BoltzmannMachine) -> Relaxation:
        """The relaxation with D = −λ I, λ the smallest eigenvalue of W: the least D of this form."""
        spectrum, axes = torch.linalg.eigh(machine.weights)
        shift = -spectrum[..., :1]
        root = axes * (spectrum + shift).clamp(min=0).sqrt()[..., None, :]
        return cls(machine, root, shift.expand_as(machine.biases))

    @classmethod
    def tightest(cls, machine: BoltzmannMachine) -> Relaxation:
        """The relaxation whose W + D has the least largest eigenvalue, its components the least far apart.

        [Graham 2018, appendix E]
        """
        size = machine.num_units
        diagonal = torch.stack(
            [least_diagonal(weights) for weights in machine.weights.reshape(-1, size, size)]
        )
        diagonal = diagonal.reshape(machine.biases.shape)
        spectrum, axes = torch.linalg.eigh(machine.weights + torch.diag_embed(diagonal))
        return cls(machine, axes * spectrum.clamp(min=0).sqrt()[..., None, :], diagonal)

    def rotated(self, axes: Tensor) -> Relaxation:
        """The density of Rᵀx, R orthogonal [*items, r, r]."""
        return Relaxation(self.machine, self.root @ axes, self.diagonal)

    def value_and_grad(self, position: Tensor) -> tuple[Tensor, Tensor]:
        """∇ log γ(x) = Qᵀ tanh(Q x + b) − x"""
        fields = self._fields(position)
        return self._value(position, fields), apply(self.root.mT, fields.tanh()) - position

    def sample(self, count: int, generator: torch.Generator) -> Tensor:
        """Independent draws x = Qᵀs + n of one system, s from a table of all its states.  [count, r]"""
        states = _states(self.machine.num_units).to(self.root)
        share = self.machine.log_prob(states).softmax(0)
        places = torch.rand(count, generator=generator, dtype=share.dtype)
        index = torch.searchsorted(share.cumsum(0), places).clamp(max=len(states) - 1)
        noise = torch.randn(count, self.root.shape[-1], generator=generator, dtype=share.dtype)
        return states[index] @ self.root + noise

    def moments(self, states: Moments) -> Moments:
        """Moments of x, from those of s  [Graham 2018, (E.9)–(E.11)]

        log Z = log Z_s + ½ tr D + ½ r log 2π − n log 2,  E[x] = Qᵀ E[s],  Cov[x] = Qᵀ Cov[s] Q + I
        """
        units, dim = self.root.shape[-2:]
        constant = 0.5 * dim * math.log(2 * math.pi) - units * math.log(2)
        identity = torch.eye(dim).to(self.root)
        return Moments(
            states.log_z + 0.5 * self.diagonal.sum(-1) + constant,
            apply(self.root.mT, states.mean),
            self.root.mT @ states.covariance @ self.root + identity,
        )

    def _fields(self, x: Tensor) -> Tensor:
        return apply(self.root, x) + self.machine.biases

    def _value(self, x: Tensor, fields: Tensor) -> Tensor:
        size = fields.abs()
        log_cosh = size + softplus(-2 * size) - math.log(2)
        return log_cosh.sum(-1) - 0.5 * x.square().sum(-1)


def apply(matrix: Tensor, vector: Tensor) -> Tensor:
    """A x, one product for all vectors with the same matrix.

    [*items, i, j], [..., *items, j] -> [..., *items, i]
    """
    return torch.einsum("...ij,...j->...i", matrix, vector)
