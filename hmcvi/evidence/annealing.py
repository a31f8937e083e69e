"""Annealed importance sampling, forwards, backwards, and both as a sandwich of log Z."""

from __future__ import annotations

import torch
from torch import Tensor

from hmcvi.chain import Phase
from hmcvi.density import Density
from hmcvi.evidence.bases import Base, Start
from hmcvi.evidence.pilot import (
    MakeKernel,
    SetStep,
    betas_of,
    log_gap,
    make,
    run_pilot,
    steps_as_given,
)
from hmcvi.evidence.result import Evidence, PerItem, from_weights, mean_acceptance, warn_if_few
from hmcvi.kernels.mcmc.compose import Compose, Gibbs
from hmcvi.kernels.mcmc.kernel import Info
from hmcvi.sampling.progress import Bar
from hmcvi.sampling.run import whole

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

    exact_sample: [*items, d], from which all chains start, or one for each chain [num_chains, *items, d].  A
        shared start is common to all chains: the error then covers the annealing alone.
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
        "num_gradients": forwards.diagnostics["num_gradients"] + backwards.diagnostics["num_gradients"],
    }
    middle = PerItem(
        (lower.log_z + upper.log_z) / 2,
        torch.hypot(lower.std_error, upper.std_error) / 2,
        torch.minimum(lower.ess, upper.ess),
    )
    return Evidence.of(middle, diagnostics, forwards.position, forwards.log_weight)


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
        self.start = Start(base)
        self.kernel = make(kernel, self.start, target, compile=compile)
        self.generator = self.start.generator(seed)
        self.betas = betas_of(schedule, num_temperatures, None, DEFAULT_TEMPERATURES)
        self.step_sizes: SetStep = steps_as_given
        adaptive = isinstance(schedule, str) and schedule == "adaptive"
        if len(self.betas) > 2 and (adaptive or "step_size" in self.kernel.tuned):
            pilot = run_pilot(self.start, self.kernel, self.generator)
            self.step_sizes = pilot.step_sizes
            self.betas = betas_of(schedule, num_temperatures, pilot, DEFAULT_TEMPERATURES)

    def forwards(self, num_chains: int, progress: bool) -> Evidence:
        state = self.kernel.init(self.start.draw(num_chains, self.generator))
        state, log_weight, diagnostics = self._anneal(state, range(1, len(self.betas) - 1), progress)
        per_item = from_weights(log_weight)
        warn_if_few(per_item.ess, num_chains)
        return Evidence.of(per_item, diagnostics, state.position, log_weight)

    def backwards(self, exact_sample: Tensor, num_chains: int, progress: bool) -> Evidence:
        if isinstance(self.kernel, Compose | Gibbs):
            raise ValueError(
                f"{type(self.kernel).__name__} is not reversible, its parts come in one order: anneal "
                "backwards with one of its kernels alone"
            )
        state = self.kernel.init(self.exact(exact_sample, num_chains))
        if not (inside := state.log_prob.isfinite()).all():
            raise ValueError(
                f"{int((~inside).sum())} of the exact samples have density zero under the target: they "
                "cannot be draws of it; check that they belong to these data and to this parameterisation"
            )
        _, log_weight, diagnostics = self._anneal(state, range(len(self.betas) - 2, 0, -1), progress)
        inverse = from_weights(-log_weight)
        warn_if_few(inverse.ess, num_chains)
        return Evidence.of(inverse._replace(log_z=-inverse.log_z), diagnostics)

    def exact(self, sample: Tensor, num_chains: int) -> Tensor:
        """Exact draws, one for each chain.  [num_chains, *items, d]"""
        items = self.start.batch_shape
        shared = sample.ndim == len(items) + 1
        if sample.shape[:-1] != (items if shared else (num_chains, *items)):
            raise ValueError(
                f"exact_sample must be {[*items, 'd']} or {[num_chains, *items, 'd']}, got "
                f"{list(sample.shape)}"
            )
        return sample.expand(num_chains, *sample.shape) if shared else sample

    @torch.no_grad()
    def _anneal(
        self, state: Phase, indices: range, progress: bool
    ) -> tuple[Phase, Tensor, dict[str, Tensor]]:
        """Σ_k (β_{k+1} − β_k)(log γ − log q)(z_k) along the temperatures β_k of `indices`, in their order."""
        steps = self.betas.diff().tolist()
        backwards = indices.step < 0
        log_weight = steps[-1 if backwards else 0] * log_gap(self.start, self.kernel, state)
        acceptance, num_gradients = [], torch.zeros((), dtype=torch.int64)
        with Bar("annealing back" if backwards else "annealing", len(indices), progress) as bar:
            for k in indices:
                kernel = self.step_sizes(self.kernel, self.betas[k])
                state, info = kernel.tempered_step(state, self.betas[k], self.generator)
                # β_k is left for the next one: upwards from k, downwards from k − 1
                log_weight += steps[k - 1 if backwards else k] * log_gap(self.start, self.kernel, state)
                acceptance.append(mean_acceptance(info))
                num_gradients = num_gradients + _count(info)
                bar.advance(kernel, info)
        rates = torch.stack(acceptance).cpu() if acceptance else torch.zeros(0)
        return (
            state,
            log_weight,
            {
                "betas": self.betas,
                "acceptance_rate": rates.flip(0) if backwards else rates,  # at β_1, …, β_{K−1}
                "num_gradients": num_gradients.cpu(),
            },
        )


def _count(info: Info) -> Tensor:
    """Gradients, or evaluations where a kernel needs none."""
    return info.get("num_gradients", info.get("num_evaluations", torch.zeros((), dtype=torch.int64))).sum()
