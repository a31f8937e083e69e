"""Hamiltonian dynamics solved from wall to wall, for densities that jump at known walls."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from hmcvi.chain import Phase
from hmcvi.density import Density
from hmcvi.dynamics.energies import accept
from hmcvi.internal.checks import positive, whole
from hmcvi.internal.random import standard_normal, uniform
from hmcvi.kernels.mcmc.kernel import Info, Kernel


@dataclass(frozen=True, eq=False)
class EventDrivenHMC(Kernel):
    """Reflection and refraction of Hamiltonian trajectories at walls {z : nᵀz = c}, where log γ jumps:

        log γ(z) = −½ |x|² − h(z),   z = loc + L x,   h constant between walls.

    Between walls dynamics are solved: x(t) = x cos t + v sin t, v ~ N(0, I), or x + v t if `loc` is None and
    γ itself constant.  At a wall with unit normal ν only v_ν = νᵀv changes, by what h jumps:

        ½ v_ν² > Δh:  v_ν ← sign(v_ν) √(v_ν² − 2 Δh),    else:  v_ν ← −v_ν.

    H is conserved, so that nothing is rejected.  For any other γ the dynamics are reversible and keep volume
    all the same, and accepting with min(1, e^{−ΔH}) keeps γ.

    normals: n [k, d]; offsets: c [k].
    scale: L, a number, [d] for a diagonal, or a lower triangular matrix [d, d].
    time: of a trajectory; 2π is the period between walls.  jitter: each chain draws its own from
        U[(1−jitter) time, (1+jitter) time].
    max_events: chains that would meet more walls in one trajectory are rejected.
    A transition costs two evaluations for each wall that is met, and one.
    [Afshar & Domke 2015; Nishimura, Dunson & Lu 2020, §2.2; Pakman & Paninski 2014]

    >>> half = Density(lambda z: -0.5 * z.square().sum(-1) + 2.0 * (z[..., 0] > 1))  # e² as likely beyond 1
    >>> kernel = EventDrivenHMC(half, torch.tensor([[1.0, 0.0]]), torch.tensor([1.0]), time=1.5, loc=0.0)
    >>> state, info = kernel.step(kernel.init(torch.zeros(5, 2)), torch.Generator().manual_seed(0))
    >>> info["accepted"].all().item(), info["num_events"].tolist()
    (True, [1, 0, 0, 0, 0])
    """

    density: Density
    normals: Tensor
    offsets: Tensor
    time: float | Tensor
    loc: float | Tensor | None = None
    scale: float | Tensor = 1.0
    jitter: float = 0.2
    max_events: int = 1000

    def __post_init__(self) -> None:
        settle = functools.partial(object.__setattr__, self)
        if self.normals.ndim != 2 or self.offsets.shape != self.normals.shape[:1]:
            raise ValueError(
                f"walls are normals [k, d] and offsets [k], got {list(self.normals.shape)} and "
                f"{list(self.offsets.shape)}"
            )
        if not (self.normals.norm(dim=-1) > 0).all():
            raise ValueError("a wall has no normal: all its entries are zero")
        if not 0 <= self.jitter < 1:
            raise ValueError(f"jitter must lie in [0, 1), got {self.jitter}")
        settle("time", positive(self.time, "time"))
        scale = torch.as_tensor(self.scale)
        positive(scale.diagonal() if scale.ndim == 2 else scale, "scale")
        whole("max_events", self.max_events, 1)

    @torch.no_grad()
    def init(self, position: Tensor) -> Phase:
        if position.shape[-1] != self.normals.shape[-1]:
            raise ValueError(
                f"walls are in {self.normals.shape[-1]} dimensions, positions in {position.shape[-1]}"
            )
        state: Phase = super().init(position)
        return state

    @torch.no_grad()
    def step(self, state: Phase, generator: torch.Generator | None = None) -> tuple[Phase, Info]:
        velocity = standard_normal(state.position, generator)
        stretch = 1 + self.jitter * (2 * uniform(state.position[..., 0], generator) - 1)
        number = uniform(state.position[..., 0], generator)
        old, walls = state.log_density(self.density), self.walls(state.position)
        time = stretch * torch.as_tensor(self.time).to(velocity)
        end = walls.fly(walls.whiten(state.position), velocity, time, self.max_events)
        position = walls.color(end.position)
        new = self.density.finite_log_prob(position)
        kinetic, kinetic_end = (0.5 * v.square().sum(-1) for v in (velocity, end.velocity))
        arrived = new.where(end.time <= 0, -torch.inf)
        info = accept(kinetic - old, kinetic_end - arrived, number)
        info["num_events"] = end.num_events
        info["num_evaluations"] = 2 * end.num_events + 1
        return Phase(position, log_prob=new).where(
            info["accepted"], Phase(state.position, log_prob=old)
        ), info

    def walls(self, like: Tensor) -> Walls:
        """The walls in the coordinates x, with the dynamics between them."""
        scale, loc = (
            torch.as_tensor(value).to(like) for value in (self.scale, 0.0 if self.loc is None else self.loc)
        )
        root = scale if scale.ndim == 2 else torch.diag_embed(scale.expand(like.shape[-1]))
        normals = self.normals.to(like) @ root
        size = normals.norm(dim=-1)
        offsets = (self.offsets.to(like) - (self.normals.to(like) * loc).sum(-1)) / size
        return Walls(self.density, loc, root, normals / size[:, None], offsets, self.loc is not None)


class Flight(NamedTuple):
    """Chains on their way, in the coordinates x."""

    position: Tensor  # [..., d]
    velocity: Tensor
    time: Tensor  # that is left  [...]
    last: Tensor  # the wall they are at, −1 for none
    num_events: Tensor


class Walls(NamedTuple):
    """Walls {x : νᵀx = b} with unit normals, and how chains get from one to the next."""

    density: Density
    loc: Tensor
    root: Tensor  # L  [d, d]
    normals: Tensor  # ν  [k, d]
    offsets: Tensor  # b  [k]
    curved: bool  # harmonic motion, else straight lines

    def whiten(self, position: Tensor) -> Tensor:
        return torch.linalg.solve_triangular(self.root, (position - self.loc)[..., None], upper=False)[..., 0]

    def color(self, position: Tensor) -> Tensor:
        return self.loc + position @ self.root.mT

    def fly(self, position: Tensor, velocity: Tensor, time: Tensor, max_events: int) -> Flight:
        """Chains after their time [...], or after so many walls with time left over."""
        none = torch.full_like(time, -1, dtype=torch.int64)
        flight = Flight(position, velocity, time, none, torch.zeros_like(none))
        for _ in range(max_events):
            flight, meets = self.to_next(flight)
            if not meets.any():
                break
            flight = self.turn(flight, meets)
        return flight

    def to_next(self, flight: Flight) -> tuple[Flight, Tensor]:
        """Chains at the next wall that they meet in time, else where their time ends; which ones meet one."""
        first, wall = self.times(flight).min(-1)
        meets = first < flight.time
        time = torch.where(meets, first, flight.time)
        position, velocity = self.move(flight.position, flight.velocity, time[..., None])
        wall = wall.where(meets, flight.last)
        return flight._replace(
            position=position, velocity=velocity, time=flight.time - time, last=wall
        ), meets

    def times(self, flight: Flight) -> Tensor:
        """When each wall is met, +inf if never; the wall that a chain is at, when it comes back.  [..., k]"""
        height, speed = flight.position @ self.normals.T, flight.velocity @ self.normals.T
        is_here = flight.last[..., None] == torch.arange(len(self.offsets), device=height.device)
        if not self.curved:
            time = (self.offsets - height) / speed
            return time.where((time > 0) & ~is_here, torch.inf)
        phase, size = torch.atan2(speed, height), torch.hypot(height, speed)
        ratio = self.offsets / size
        angle = ratio.clamp(-1, 1).acos()
        soonest = torch.minimum((phase - angle) % (2 * math.pi), (phase + angle) % (2 * math.pi))
        again = (2 * phase) % (2 * math.pi)
        return torch.where(is_here, again, soonest.where(ratio.abs() < 1, torch.inf))

    def move(self, position: Tensor, velocity: Tensor, time: Tensor) -> tuple[Tensor, Tensor]:
        """The dynamics between walls.  time: [..., 1]"""
        if not self.curved:
            return position + time * velocity, velocity
        cos, sin = time.cos(), time.sin()
        return position * cos + velocity * sin, velocity * cos - position * sin

    def turn(self, flight: Flight, meets: Tensor) -> Flight:
        """Chains refracted or reflected at the wall they are at, where `meets`."""
        wall = flight.last.clamp(min=0)
        normal = self.normals[wall]
        height = (flight.position * normal).sum(-1, keepdim=True)
        at_wall = flight.position + (self.offsets[wall][..., None] - height) * normal
        speed = (flight.velocity * normal).sum(-1)
        near = torch.finfo(speed.dtype).eps ** 0.5 * speed.sign()[..., None] * normal
        jump = self.potential(at_wall + near) - self.potential(at_wall - near)
        crosses = (0.5 * speed.square() > jump) & (jump > -torch.inf)
        beyond = speed.sign() * (speed.square() - 2 * jump.where(crosses, 0.0)).clamp(min=0).sqrt()
        change = torch.where(crosses, beyond, -speed) - speed
        chosen = meets[..., None]
        return flight._replace(
            position=at_wall.where(chosen, flight.position),
            velocity=(flight.velocity + change[..., None] * normal).where(chosen, flight.velocity),
            num_events=flight.num_events + meets.long(),
        )

    def potential(self, position: Tensor) -> Tensor:
        """h(x)  [...]"""
        smooth = 0.5 * position.square().sum(-1) if self.curved else 0.0
        return -self.density.finite_log_prob(self.color(position)) - smooth
