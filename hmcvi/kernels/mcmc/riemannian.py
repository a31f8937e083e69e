"""Riemannian Hamiltonian Monte Carlo: a mass for each place."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
from torch import Tensor

from hmcvi.chain import Phase
from hmcvi.density import Density
from hmcvi.dynamics.energies import accept
from hmcvi.dynamics.riemannian import GaussNewtonMetric, GeneralisedLeapfrog
from hmcvi.internal.checks import positive, whole
from hmcvi.internal.random import uniform
from hmcvi.kernels.mcmc.kernel import Info, Kernel


@dataclass(frozen=True, eq=False)
class RiemannianHMC(Kernel):
    """p ~ N(0, G(z)), L generalised leapfrog steps, accept with probability min(1, e^{−ΔH}).

    metric: G.  `GaussNewtonMetric(generator.observed, epsilon)` is that of an ABC density in the space of a
        generator's inputs, whose ridge along {u : g(u) = y} has width ε: trajectories follow it instead of
        swinging across.  [Graham 2018, (4.52)]
    step_size: number, or one per chain [..., 1].
    max_iterations, tolerance: of the fixed-point equations of each step, see `GeneralisedLeapfrog`.  A
        trajectory that fails to solve one, or cannot be reversed, is rejected.
    Momenta across a ridge have size 1/ε.  Where the ridge is curved the equation of the first half kick has
    no solution for steps that are long compared to ε: these must shrink with ε, as those of HMC.
    info has `num_jacobians` [...] besides, of which there are some tens per step, and `solved`, whether all
    equations were.  [Girolami & Calderhead 2011; Graham 2018, §2.3.2]

    >>> def ring(z):
    ...     return z.square().sum(-1, keepdim=True)
    >>> density = Density(lambda z: -0.5 * z.square().sum(-1) - 0.5 * ((ring(z)[..., 0] - 1) / 0.1).square())
    >>> kernel = RiemannianHMC(density, GaussNewtonMetric(ring, 0.1), step_size=0.02, num_steps=4)
    >>> start = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
    >>> state, info = kernel.step(kernel.init(start), torch.Generator().manual_seed(0))
    >>> info["solved"].item(), info["num_gradients"].item()
    (1.0, 4)
    """

    density: Density
    metric: GaussNewtonMetric
    step_size: float | Tensor
    num_steps: int
    max_iterations: int = 50
    tolerance: float | None = None

    uses_gradient = True

    def __post_init__(self) -> None:
        settle = functools.partial(object.__setattr__, self)
        settle("step_size", positive(self.step_size, "step_size"))
        whole("num_steps", self.num_steps, 1), whole("max_iterations", self.max_iterations, 1)
        if self.tolerance is not None:
            positive(self.tolerance, "tolerance")

    @torch.no_grad()
    def init(self, position: Tensor) -> Phase:
        outputs = self.metric.function(position.detach())
        if outputs.ndim != position.ndim or outputs.shape[:-1] != position.shape[:-1]:
            raise ValueError(
                f"the function of the metric must return outputs [..., n] for positions "
                f"{list(position.shape)}, got {list(outputs.shape)}"
            )
        self.density.check(position.detach(), self.uses_gradient)
        return Phase(position.detach()).evaluate(self.density)

    @torch.no_grad()
    def step(self, state: Phase, generator: torch.Generator | None = None) -> tuple[Phase, Info]:
        integrator = GeneralisedLeapfrog(self.density, self.metric, self.max_iterations, self.tolerance)
        start = state.evaluate(self.density)
        assert start.log_prob is not None and start.grad is not None
        point = integrator.known(start.position, start.log_prob, start.grad)
        momentum = point.metric.sample(generator)
        number = uniform(start.log_prob, generator)
        old_energy = point.energy(momentum)
        solved = torch.ones_like(start.log_prob, dtype=torch.bool)
        count = solved.long()
        step_size = torch.as_tensor(self.step_size).to(momentum)
        for _ in range(self.num_steps):
            point, momentum, succeeded, jacobians = integrator.step(point, momentum, step_size)
            solved, count = solved & succeeded, count + jacobians
        new_energy = point.energy(momentum)
        info = accept(old_energy, new_energy, number)
        info["accepted"] &= solved
        info["acceptance_rate"] = info["acceptance_rate"].where(solved, 0.0)
        info["energy"] = new_energy.where(info["accepted"], old_energy)
        info["solved"] = solved.to(momentum)
        info["num_jacobians"] = count
        info["num_gradients"] = torch.full_like(count, self.num_steps + (state.grad is None))
        end = Phase(point.position, log_prob=point.log_prob, grad=point.grad)
        return end.where(info["accepted"], start._replace(momentum=None)), info
