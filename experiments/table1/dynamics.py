"""What a trained model's Hamiltonian dynamics do to one particle and to many (figures 1–3 of the paper)."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from experiments.report import BLUE, ORANGE, canvas
from experiments.table1.plane import contours, square
from hmcvi.chain import Context, Phase
from hmcvi.density import Density
from hmcvi.dynamics.integrators import trajectory
from hmcvi.flows import Leapfrog
from hmcvi.kernels import IdentityMass, Metric, StepSize
from hmcvi.models import VAE

NUM_PARTICLES = 1000
LONG = 40  # leapfrog steps of the trajectory without resampling


class Dynamics(NamedTuple):
    """The dynamics that a trained chain uses for one image."""

    target: Density
    metric: Metric
    step_size: Tensor

    @classmethod
    def of(cls, model: VAE, x: Tensor) -> Dynamics:
        """The dynamics of the chain; unit mass and a step of 0.05 if it has none.  x: [1, D]"""
        moves = [step for step in model.chain.modules() if isinstance(step, Leapfrog)]
        move = moves[0] if moves else Leapfrog(IdentityMass(), StepSize(0.05), 1)
        metric = move.mass(Context(x))
        assert isinstance(metric, Metric)
        return cls(model.posterior(x), metric, move.step_size(Context(x)))

    def step(self, state: Phase) -> Phase:
        """Take one leapfrog step."""
        return trajectory(self.target, self.metric, state, self.step_size, 1)[0]

    def resample(self, state: Phase) -> Phase:
        """Draw a new momentum."""
        return state._replace(momentum=self.metric.sample(state.position))

    def run(self, position: Tensor, num_hmc: int, num_leapfrog: int) -> list[Phase]:
        """All states of a chain, with the state before and after each resampling.  position: [N, d]"""
        states, state = [], Phase(position).evaluate(self.target)
        for _ in range(num_hmc):
            state = self.resample(state)
            states.append(state)
            for _ in range(num_leapfrog):
                state = self.step(state)
                states.append(state)
        return states


@torch.no_grad()
def particle(model: VAE, x: Tensor, num_hmc: int, num_leapfrog: int) -> Figure:
    """Draw position, momentum and energies of one particle, from a draw of the encoder."""
    dynamics = Dynamics.of(model, x)
    loc, scale = model.encoder(x)
    states = dynamics.run(loc + scale * torch.randn_like(loc), num_hmc, num_leapfrog)
    positions = torch.cat([state.position for state in states])
    momenta = torch.cat([state.momentum for state in states if state.momentum is not None])
    potential = -dynamics.target.log_prob(positions)
    potential = potential - potential.min()
    kinetic = dynamics.metric.energy(momenta)
    figure, ((left, centre, right),) = canvas(1, 3, (13, 4))
    resampled = [(num_leapfrog + 1) * t for t in range(num_hmc)]
    for axes, points, energy in (
        (left, positions, lambda z: -dynamics.target.log_prob(z)),
        (centre, momenta, dynamics.metric.energy),
    ):
        contours(axes, energy, *square(points))
        axes.plot(*points.T.numpy(), color="grey", lw=0.8)
        sizes = [60 if index in resampled else 14 for index in range(len(points))]
        dots = axes.scatter(*points.T.numpy(), c=range(len(points)), cmap="plasma", s=sizes, zorder=3)
    figure.colorbar(dots, ax=centre, label="state; large: new momentum")
    left.set(title="position", xlabel="$z_1$", ylabel="$z_2$")
    centre.set(title="momentum", xlabel="$v_1$", ylabel="$v_2$")
    time = range(len(states))
    energies = torch.stack([potential, kinetic]).numpy()
    right.stackplot(time, energies, labels=["potential", "kinetic"], colors=[BLUE, ORANGE])
    right.set(title="energy above the lowest potential", xlabel="state", ylabel="nats")
    right.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False)
    return figure


@torch.no_grad()
def ensemble(model: VAE, x: Tensor, num_hmc: int, num_leapfrog: int) -> Figure:
    """Draw particles from the encoder, before and after the chain: positions, momenta, potential energies."""
    dynamics = Dynamics.of(model, x)
    loc, scale = model.encoder(x)
    states = dynamics.run(loc + scale * torch.randn(NUM_PARTICLES, loc.shape[-1]), num_hmc, num_leapfrog)
    figure, rows = canvas(2, 3, (12, 8))
    ends = states[0], states[-1]
    potentials = [-state.log_density(dynamics.target) for state in ends]
    limits = square(torch.cat([state.position for state in ends]))
    momenta = square(torch.cat([state.momentum for state in ends if state.momentum is not None]))
    low, high = torch.cat(potentials).quantile(torch.tensor([0.0, 0.995])).tolist()
    bins = torch.linspace(low, high, 40).tolist()
    for axes, state, potential, when in zip(rows, ends, potentials, ("before", "after"), strict=True):
        assert state.momentum is not None
        _cloud(axes[0], lambda z: -dynamics.target.log_prob(z), state.position, limits, f"position {when}")
        _cloud(axes[1], dynamics.metric.energy, state.momentum, momenta, f"momentum {when}")
        axes[2].hist(potential.tolist(), bins=bins, color=BLUE)
        axes[2].set(
            title=f"potential energy {when}, mean {potential.mean():.1f}", xlabel="nats", ylabel="particles"
        )
        axes[0].set(xlabel="$z_1$", ylabel="$z_2$")
        axes[1].set(xlabel="$v_1$", ylabel="$v_2$")
    top = max(axes[2].get_ylim()[1] for axes in rows)
    for axes in rows:
        axes[2].set_ylim(0, top)
    return figure


def _cloud(
    axes: Axes, energy: Callable[[Tensor], Tensor], points: Tensor, limits: tuple[Tensor, float], title: str
) -> None:
    contours(axes, energy, *limits)
    axes.plot(*points.T.numpy(), ".", markersize=2, color="black", alpha=0.4)
    axes.set(title=title)
