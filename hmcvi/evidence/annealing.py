"""Annealed importance sampling, forwards, backwards, and both as a sandwich of log Z."""

from __future__ import annotations

import torch
from torch import Tensor

from hmcvi.adaptation.pilot import SetStep, steps_as_given
from hmcvi.adaptation.tunable import tuning
from hmcvi.chain import Chain, Context, Phase, Step, Transition, Weights, weigh
from hmcvi.density import Density
from hmcvi.evidence.bases import Base, BaseDistribution
from hmcvi.evidence.pareto import pareto_k
from hmcvi.evidence.path import betas_of, make_kernel, pilot_of
from hmcvi.evidence.result import Evidence, PerItem, from_weights, warn_if_few
from hmcvi.internal.checks import whole
from hmcvi.internal.context import Randomness
from hmcvi.kernels.mcmc.compose import Compose
from hmcvi.kernels.mcmc.gibbs import Gibbs
from hmcvi.kernels.mcmc.kernel import MakeKernel
from hmcvi.kernels.variational.annealing import Anneal
from hmcvi.sampling.progress import KernelProgress

DEFAULT_TEMPERATURES = 1000


def ais(
    base: Base,
    target: Density,
    num_temperatures: int | None = None,
    num_chains: int = 16,
    kernel: MakeKernel | None = None,
    schedule: str | Tensor = "sigmoidal",
    seed: int = 0,
    progress: bool = True,
    compile: bool = False,
) -> Evidence:
    """Annealed importance sampling: z_0 ~ q, z_k ~ T_k(· | z_{k−1}), T_k keeping γ_k = q^{1−β_k} γ^{β_k},

        log w = Σ_k (β_{k+1} − β_k) (log γ(z_k) − log q(z_k)),   E[w] = Z.

    base: q, a distribution over vectors, its batch shape that of the data items; all items and chains move at
        once.
    kernel: density -> Kernel; if None, HMC of one step with persistent momenta and the variances of the base
        as its mass.  A pilot run chooses its step size for each temperature (acceptance 0.72 with
        gradients), then nothing changes.
    schedule: "sigmoidal"; "adaptive", from the pilot run, with the same conditional ESS at every step; or
        β_0, …, β_K.  num_temperatures: K, 1000 if left out.  One temperature is importance sampling.
    compile: run transitions of that HMC as one compiled program, after some ten seconds of compilation; a
        kernel of your own has its own `compile`.
    [Neal 2001; Graham 2018, algorithm 13]

    >>> base = torch.distributions.MultivariateNormal(torch.zeros(2), 4 * torch.eye(2))
    >>> target = Density(lambda z: -0.5 * z.square().sum(-1))  # Z = 2π
    >>> evidence = ais(base, target, num_temperatures=20, num_chains=100)
    >>> bool((evidence.log_z - torch.tensor(2 * torch.pi).log()).abs() < 4 * evidence.std_error)
    True
    """
    num_chains = whole("num_chains", num_chains, 1)
    annealing = Annealing(base, target, num_temperatures, kernel, schedule, seed, compile)
    return annealing.forwards(num_chains, progress)


def reverse_ais(
    base: Base,
    target: Density,
    exact_sample: Tensor,
    num_temperatures: int | None = None,
    num_chains: int = 16,
    kernel: MakeKernel | None = None,
    schedule: str | Tensor = "sigmoidal",
    seed: int = 0,
    progress: bool = True,
    compile: bool = False,
) -> Evidence:
    """Annealing backwards from exact draws of the target: E[1/w] = 1/Z, a stochastic upper bound on log Z.

    exact_sample: the initial state of all chains [*items, d], or one for each [num_chains, *items, d].  With
        a shared one the error covers the annealing alone.
    Otherwise as `ais`; the kernel must be reversible.  [Grosse, Ghahramani & Adams 2015]
    """
    num_chains = whole("num_chains", num_chains, 1)
    annealing = Annealing(base, target, num_temperatures, kernel, schedule, seed, compile)
    return annealing.backwards(exact_sample, num_chains, progress)


def bidirectional(
    base: Base,
    target: Density,
    exact_sample: Tensor,
    num_temperatures: int | None = None,
    num_chains: int = 16,
    kernel: MakeKernel | None = None,
    schedule: str | Tensor = "sigmoidal",
    seed: int = 0,
    progress: bool = True,
    compile: bool = False,
) -> Evidence:
    """Bidirectional Monte Carlo: E[lower] ≤ log Z ≤ E[upper], by the same annealing in both directions.

    log_z is the middle; diagnostics has lower, upper and gap [*items], and their errors.  Expectations are
    those of the forward chains.  Arguments as in `reverse_ais`.  [Grosse, Ghahramani & Adams 2015]
    """
    num_chains = whole("num_chains", num_chains, 1)
    annealing = Annealing(base, target, num_temperatures, kernel, schedule, seed, compile)
    exact = annealing.exact(exact_sample, num_chains)
    forwards = annealing.forwards(num_chains, progress)
    backwards = annealing.backwards(exact, num_chains, progress)
    lower, upper = forwards.per_item, backwards.per_item
    diagnostics = {
        "lower": lower.log_z,
        "upper": upper.log_z,
        "gap": upper.log_z - lower.log_z,
        "lower_std_error": lower.std_error,
        "upper_std_error": upper.std_error,
        **forwards.diagnostics,
        "pareto_k": torch.maximum(forwards.diagnostics["pareto_k"], backwards.diagnostics["pareto_k"]),
        "num_gradients": forwards.diagnostics["num_gradients"] + backwards.diagnostics["num_gradients"],
    }
    middle = PerItem(
        (lower.log_z + upper.log_z) / 2,
        torch.hypot(lower.std_error, upper.std_error) / 2,
        torch.minimum(lower.ess, upper.ess),
    )
    return Evidence.of(middle, diagnostics, forwards.position, forwards.log_weight)


class ForgetDensity(Step):
    """Stay, and drop log γ: the end of a path whose weight needs another density than its steps carried."""

    uses_force = False

    def forward(self, state: Phase, target: Density, context: Tensor | Context | None = None) -> Transition:
        return Transition.deterministic(Phase(state.position), torch.zeros_like(state.position[..., 0]))


class Annealing:
    """A path from base to target, with everything chosen: temperatures, kernel and step sizes."""

    def __init__(
        self,
        base: Base,
        target: Density,
        num_temperatures: int | None,
        kernel: MakeKernel | None,
        schedule: str | Tensor,
        seed: int,
        compile: bool = False,
    ) -> None:
        self.base = BaseDistribution(base)
        self.kernel = make_kernel(kernel, self.base, target, compile=compile)
        self.generator = self.base.generator(seed)
        self.betas = betas_of(schedule, num_temperatures, None, DEFAULT_TEMPERATURES)
        self.step_sizes: SetStep = steps_as_given
        adaptive = isinstance(schedule, str) and schedule == "adaptive"
        if len(self.betas) > 2 and (adaptive or tuning(self.kernel).step_size):
            pilot = pilot_of(self.base, self.kernel, self.generator)
            self.step_sizes = pilot.step_sizes
            self.betas = betas_of(schedule, num_temperatures, pilot, DEFAULT_TEMPERATURES)

    def forwards(self, num_chains: int, progress: bool) -> Evidence:
        """E[w] = Z from draws of the base."""
        start = self.kernel.init(self.base.draw(num_chains, self.generator))
        log_q0 = self.base.density.finite_log_prob(start.position)
        weights = self._weigh(start, log_q0, self.kernel.density, "annealing", self.betas[1:-1], progress)
        per_item = from_weights(weights.log_weight)
        warn_if_few(per_item.ess, num_chains)
        assert weights.transition is not None
        position = weights.transition.state.position
        return Evidence.of(per_item, self._diagnostics(weights), position, weights.log_weight)

    def backwards(self, exact_sample: Tensor, num_chains: int, progress: bool) -> Evidence:
        """E[w] = 1/Z from exact draws of the target, annealed to the base."""
        if isinstance(self.kernel, Compose | Gibbs):
            raise ValueError(
                f"{type(self.kernel).__name__} is not reversible, its parts come in one order: anneal "
                "backwards with one of its kernels alone"
            )
        start = self.kernel.init(self.exact(exact_sample, num_chains))
        if not (inside := start.log_prob.isfinite()).all():
            raise ValueError(
                f"{int((~inside).sum())} of the exact samples have density zero under the target: they "
                "cannot be draws of it; check that they belong to these data and to this parameterisation"
            )
        betas = self.betas[1:-1].flip(0)
        weights = self._weigh(start, start.log_prob, self.base.density, "annealing back", betas, progress)
        inverse = from_weights(weights.log_weight)
        warn_if_few(inverse.ess, num_chains)
        diagnostics = self._diagnostics(weights)
        diagnostics["acceptance_rate"] = diagnostics["acceptance_rate"].flip(0)
        return Evidence.of(inverse._replace(log_z=-inverse.log_z), diagnostics)

    def exact(self, sample: Tensor, num_chains: int) -> Tensor:
        """Exact draws, one for each chain.  [num_chains, *items, d]"""
        items = self.base.batch_shape
        shared = sample.ndim == len(items) + 1
        if sample.shape[:-1] != (items if shared else (num_chains, *items)):
            raise ValueError(
                f"exact_sample must be {[*items, 'd']} or {[num_chains, *items, 'd']}, got "
                f"{list(sample.shape)}"
            )
        return sample.expand(num_chains, *sample.shape) if shared else sample

    @torch.no_grad()
    def _weigh(
        self, start: Phase, log_q0: Tensor, target: Density, name: str, betas: Tensor, progress: bool
    ) -> Weights:
        """A chain of `Anneal` steps at `betas`, from `start` to where `target` is its density."""
        with KernelProgress(name, len(betas), progress) as display:
            steps: list[Step] = [
                Anneal(self.step_sizes(self.kernel, beta), beta, display.advance) for beta in betas
            ]
            context = Context(None, Randomness(self.generator))
            if target is self.base.density:
                steps.append(ForgetDensity())
            return weigh(Chain(steps), start, log_q0.double(), target, context)

    def _diagnostics(self, weights: Weights) -> dict[str, Tensor]:
        assert weights.transition is not None
        info = weights.transition.info
        nothing = torch.zeros(0)
        return {
            "betas": self.betas,
            "pareto_k": pareto_k(weights.log_weight),
            "acceptance_rate": info.get("acceptance_rate", nothing).cpu(),  # at β_1, …, β_{K−1}
            "num_gradients": info.get("num_gradients", nothing.long()).sum().cpu(),
        }
