"""Sequential Monte Carlo along temperatures: particles that are weighted, resampled and moved."""

from __future__ import annotations

import torch
from torch import Tensor

from hmcvi.adaptation.pilot import log_gap
from hmcvi.adaptation.schedule import checked
from hmcvi.chain import Phase
from hmcvi.density import Density
from hmcvi.evidence.bases import Base, BaseDistribution
from hmcvi.evidence.cloud import Cloud, CloudTuning
from hmcvi.evidence.pareto import pareto_k
from hmcvi.evidence.resampling import next_step
from hmcvi.evidence.result import Evidence, effective_samples, from_weights, mean_acceptance, warn_if_few
from hmcvi.internal.checks import whole
from hmcvi.kernels.mcmc.hmc import HMC
from hmcvi.kernels.mcmc.kernel import Kernel, MakeKernel
from hmcvi.kernels.mcmc.retarget import tempered
from hmcvi.sampling.progress import KernelProgress

MOST_TEMPERATURES = 1000  # after which an adaptive schedule goes to the target at once
STEP_SIZE = 1.6  # d^{1/4} ε at which HMC accepts about 0.8 of its moves of a cloud of unit scale


@torch.no_grad()
def smc(
    base: Base,
    target: Density,
    num_particles: int = 512,
    num_islands: int = 8,
    num_moves: int = 7,
    waste_free: bool = True,
    kernel: MakeKernel | None = None,
    schedule: str | Tensor = "adaptive",
    conditional_ess: float = 0.8,
    resample_below: float = 0.5,
    mass: str | None = None,
    tune: bool = True,
    seed: int = 0,
    progress: bool = True,
) -> Evidence:
    """Sequential Monte Carlo along γ_β = q^{1−β} γ^β: from draws of q, at each temperature

        weigh     log w ← log w + (β_{k+1} − β_k) (log γ − log q)
        resample  particles in proportion to w, systematically
        move      by a kernel that leaves γ_{β_{k+1}} invariant

    and Z is the product of the mean weights.  Draws of the target come out equally weighted.

    base: q, a distribution over vectors, its batch shape that of the data items.  All items move at once,
        each with its own temperatures, mass and step size.
    num_particles: of each item, on `num_islands` islands that are resampled by themselves.  log Z is that of
        the mean of their estimates, and their spread is its error; a single island leaves it unknown.
    num_moves: transitions at each temperature.  waste_free: keep the states after each of them as particles
        and resample only as many as that needs, instead of moving all and keeping the last.
    kernel: density -> Kernel; if None, HMC.  Its mass is that of the particles of the other islands (see
        `mass` of `Warmup`), its step size follows the acceptance, and HMC without num_steps makes
        trajectories of fixed length.
    schedule: "adaptive", every step leaving a share `conditional_ess` of the particles effective; or
        β_0, …, β_K.
    resample_below: unless waste_free, only islands with a smaller share of effective particles are resampled.
    tune: False leaves the kernel as it is.  With that and a schedule given, E[Ẑ] = Z exactly; what is learned
        on the way makes a bias of the order of 1/N.

    diagnostics: betas [K + 1, *items], islands: log Z of each [num_islands, *items], pareto_k: the largest of
        the weights at all temperatures [*items], acceptance_rate [K], num_gradients [] (of kernels without
        gradients, evaluations).
    [Del Moral, Doucet & Jasra 2006; Zhou, Johansen & Aston 2016; Dau & Chopin 2022]

    >>> base = torch.distributions.MultivariateNormal(torch.zeros(2), 4 * torch.eye(2))
    >>> target = Density(lambda z: -0.5 * z.square().sum(-1))  # Z = 2π
    >>> evidence = smc(base, target, progress=False)
    >>> bool((evidence.log_z - torch.tensor(2 * torch.pi).log()).abs() < 4 * evidence.std_error)
    True
    >>> evidence.position.shape
    torch.Size([512, 2])
    """
    for name, share in (("conditional_ess", conditional_ess), ("resample_below", resample_below)):
        if not 0 < share < 1:
            raise ValueError(f"{name} is a share of the particles and must lie in (0, 1), got {share}")
    num_islands = whole("num_islands", num_islands, 1)
    size = whole("num_particles", num_particles, 2 * num_islands) // num_islands
    q = BaseDistribution(base)
    generator = q.generator(seed)
    position = q.draw(num_islands * size, generator).unflatten(0, (num_islands, size))
    moving = _hmc(q.target(target), position) if kernel is None else kernel(q.target(target))
    tuning = CloudTuning(moving, mass) if tune else None
    below = None if waste_free else resample_below
    moves = Moves(moving, tuning, whole("num_moves", num_moves, 1), below, generator)
    betas = _betas(schedule)
    moving.init(position[:1, :1])  # refuses densities that the kernel cannot use
    state = Phase(position, log_prob=moving.density.finite_log_prob(position))
    zero = torch.zeros(position.shape[:-1], dtype=torch.float64, device=position.device)
    cloud, path, k = Cloud(state, zero, zero[:, 0]), [zero[0, 0]], zero[0, 0] * torch.nan
    with KernelProgress("smc", 100, progress) as display:
        while (path[-1] < 1).any():
            if len(path) > 1:
                cloud = moves(cloud, path[-1])
                display.advance(moves.now, moves.info, _percent(path[-1]) - _percent(path[-2]))
            gap = log_gap(moving, cloud.state)
            path.append(_next_beta(betas, cloud, gap, path, conditional_ess))
            cloud = cloud.weighted(path[-1] - path[-2], gap)
            k = torch.fmax(k, pareto_k(cloud.total().flatten(0, 1)))
        draws = moves(cloud.pooled(), path[-1], last=True)
        display.advance(moves.now, moves.info, 100 - _percent(path[-2]))
    ess = effective_samples(cloud.total().flatten(0, 1))
    warn_if_few(ess, num_islands * size)
    per_item = from_weights(cloud.estimates())._replace(ess=ess)
    diagnostics = {"betas": torch.stack(path), "islands": cloud.estimates(), "pareto_k": k}
    diagnostics |= moves.diagnostics()
    return Evidence.of(per_item, diagnostics, draws.state.position[0], draws.log_weight[0])


def _betas(schedule: str | Tensor) -> Tensor | None:
    """A schedule that was given, None if it is adaptive."""
    if not isinstance(schedule, str):
        return checked(schedule)
    if schedule != "adaptive":
        raise ValueError(f"schedule must be 'adaptive' or a tensor, got {schedule!r}")
    return None


def _percent(beta: Tensor) -> int:
    """How much of its path the slowest item has behind it."""
    return int(100 * beta.min())


def _hmc(density: Density, position: Tensor) -> Kernel:
    return HMC(density, STEP_SIZE * position.shape[-1] ** -0.25, jitter=0.0)


def _next_beta(
    betas: Tensor | None, cloud: Cloud, gap: Tensor, path: list[Tensor], conditional_ess: float
) -> Tensor:
    """The temperature after those of the path, that of the schedule if there is one.  [*items]"""
    left = 1 - path[-1]
    if betas is not None:
        return betas[len(path)].to(left).expand_as(left)
    if len(path) == MOST_TEMPERATURES:
        return torch.ones_like(left)
    step = next_step(cloud.shares(), gap, left, conditional_ess)
    return (path[-1] + step).where(step < left, 1.0)


class Moves:
    """Resample a cloud and move it by a kernel that learns its settings from it, unless tuning is None."""

    def __init__(
        self,
        kernel: Kernel,
        tuning: CloudTuning | None,
        count: int,
        resample_below: float | None,
        generator: torch.Generator,
    ) -> None:
        """resample_below: None to resample always and keep what every move finds."""
        self._kernel, self._tuning, self._count = kernel, tuning, count
        self._resample_below, self._generator = resample_below, generator
        self._rates: list[Tensor] = []
        self._num_gradients = torch.zeros((), dtype=torch.int64)

    def __call__(self, cloud: Cloud, beta: Tensor, last: bool = False) -> Cloud:
        """The cloud after moves that leave γ_β invariant, β: [*items]; if last, equally weighted."""
        if self._tuning is not None:
            self._tuning.observe(cloud)
        size, waste_free = cloud.log_weight.shape[1], self._resample_below is None
        if self._resample_below is None:
            cloud = cloud.resampled(max(1, size // (self._count + 1)), self._generator)
        elif last:
            cloud = cloud.resampled(size, self._generator)
        else:
            cloud = cloud.resampled_below(self._resample_below, self._generator)
        states = [cloud.state]
        for _ in range(self._count):
            states.append(self._step(states[-1], beta))
        if not waste_free:
            return cloud._replace(state=states[-1])
        log_weight = torch.cat([cloud.log_weight] * len(states), 1)
        return Cloud(_joined(states), log_weight, cloud.log_z)

    def _step(self, state: Phase, beta: Tensor) -> Phase:
        self.now = self._kernel if self._tuning is None else self._tuning.kernel()
        state, self.info = tempered(self.now, beta).step(state, self._generator)
        if self._tuning is not None:
            self._tuning.update(self.info)
        self._rates.append(mean_acceptance(self.info))
        nothing = torch.zeros((), dtype=torch.int64)
        count = self.info.get("num_gradients", self.info.get("num_evaluations", nothing))
        self._num_gradients += count.sum().cpu()
        return state

    def diagnostics(self) -> dict[str, Tensor]:
        rates = torch.stack(self._rates).view(-1, self._count).mean(-1).cpu()
        return {"acceptance_rate": rates, "num_gradients": self._num_gradients}


def _joined(states: list[Phase]) -> Phase:
    """Particles of all states, with what is known of each of them."""
    parts = zip(*states, strict=True)
    return Phase(*(None if None in part else torch.cat(part, 1) for part in parts))  # type: ignore[arg-type]
