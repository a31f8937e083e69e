"""One engine of the annealing benchmark: ENGINE TEMPERATURES CHAINS.

Warms up and answers every line by one annealing from new draws of the prior: seconds, log Z with its error,
the smallest effective sample size of an image, the acceptance rate, and for ours the speed of a matrix
product.

    log w = Σ_k (β_{k+1} − β_k) (log γ(z_k) − log q(z_k)),   z_k by HMC on (1 − β_k) log q + β_k log γ
"""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from typing import Any, NamedTuple

import numpy as np

from benchmarks.kernel_targets import LEAPFROGS, PROBLEMS, Problem, jax_log_prob, torch_log_prob
from benchmarks.measuring import Record, matmul_clock, timed
from benchmarks.workers import serve

IMAGES, STEP_SIZE, STEEPNESS, MATMUL_SECONDS = 10, 0.1, 4.0, 0.25


class Annealed(NamedTuple):
    log_weight: np.ndarray  # [chains of an image, images]
    acceptance: float


Anneal = Callable[[int], Annealed]  # from the seed


def schedule(temperatures: int) -> np.ndarray:
    """0 = β_0 < … < β_K = 1, sigmoidal, as `hmcvi.evidence.ais` has it by default.  [K + 1]"""
    raw = 1 / (1 + np.exp(-np.linspace(-STEEPNESS, STEEPNESS, temperatures + 1)))
    return (raw - raw[0]) / (raw[-1] - raw[0])


def hmcvi(problem: Problem, betas: np.ndarray, chains: int, compile: bool) -> Anneal:
    import torch
    from torch.distributions import Independent, Normal

    from hmcvi import Density
    from hmcvi.adaptation import Tuning, tuning
    from hmcvi.evidence import EvidenceWarning, ais
    from hmcvi.evidence.bases import density_of
    from hmcvi.kernels import HMC

    class Untuned(HMC):
        """HMC that needs no pilot run."""

    tuning.register(Untuned, lambda kernel: Tuning())
    assert problem.per_chain is not None
    warnings.simplefilter("ignore", EvidenceWarning)
    images = torch.from_numpy(problem.per_chain[:IMAGES])
    target = Density(torch_log_prob("decoder", problem), images)
    base = Independent(Normal(torch.zeros(IMAGES, problem.dim), 1.0), 1)
    # one kernel for all runs, because a compiled program belongs to its kernel
    density = target.with_base(density_of(base))
    fixed = Untuned(density, STEP_SIZE, LEAPFROGS, compile=compile)

    def anneal(seed: int) -> Annealed:
        found = ais(
            base,
            target,
            num_chains=chains // IMAGES,
            kernel=lambda density: fixed,
            schedule=torch.from_numpy(betas),
            seed=seed,
            progress=False,
        )
        assert found.log_weight is not None
        return Annealed(found.log_weight.numpy(), float(found.diagnostics["acceptance_rate"].mean()))

    return anneal


class Tempered(NamedTuple):
    """log γ_β, as a function of β, at a position of which log γ_b and its gradient are known for one b > 0.

    log q is known in closed form, so that log γ and its gradient follow without another force.
    """

    position: Any
    log_gamma: Any
    grad: Any

    @classmethod
    def at(cls, position: Any, value: Any, grad: Any, beta: Any) -> Tempered:
        log_gamma = (value - (1 - beta) * log_prior(position)) / beta
        return cls(position, log_gamma, (grad + (1 - beta) * position) / beta)

    def value(self, beta: Any) -> Any:
        return (1 - beta) * log_prior(self.position) + beta * self.log_gamma

    def gradient(self, beta: Any) -> Any:
        return -(1 - beta) * self.position + beta * self.grad

    def gap(self) -> Any:
        return self.log_gamma - log_prior(self.position)


def log_prior(z: Any) -> Any:
    """log N(z; 0, I)  [d] -> []"""
    return -0.5 * (z * z).sum() - 0.5 * z.shape[-1] * math.log(2 * math.pi)


# (key, log γ_β, Tempered, β) -> Tempered, acceptance rate
Move = Callable[[Any, Callable[[Any], Any], Tempered, Any], tuple[Tempered, Any]]


def in_jax(problem: Problem, betas: np.ndarray, chains: int, move: Move) -> Anneal:
    """jit(vmap(scan)): all temperatures of all chains in one program."""
    import jax
    import jax.numpy as jnp

    assert problem.per_chain is not None
    log_prob = jax_log_prob("decoder", problem)
    images = jnp.array(np.tile(problem.per_chain[:IMAGES], (chains // IMAGES, 1)))
    steps = jnp.array(np.diff(betas), dtype=jnp.float32)
    temperatures = jnp.array(betas[1:-1], dtype=jnp.float32)

    def chain(key: Any, image: Any) -> Any:
        start, *keys = jax.random.split(key, len(betas) - 1)
        position = jax.random.normal(start, (problem.dim,))
        state = Tempered(position, *jax.value_and_grad(log_prob)(position, image))

        def transition(carry: Any, given: Any) -> Any:
            state, log_weight = carry
            key, beta, step = given

            def tempered(z: Any) -> Any:
                return (1 - beta) * log_prior(z) + beta * log_prob(z, image)

            state, rate = move(key, tempered, state, beta)
            return (state, log_weight + step * state.gap()), rate

        given = jnp.stack(keys), temperatures, steps[1:]
        (_, log_weight), rates = jax.lax.scan(transition, (state, steps[0] * state.gap()), given)
        return log_weight, rates.mean()

    program = jax.jit(jax.vmap(chain))

    def anneal(seed: int) -> Annealed:
        keys = jax.random.split(jax.random.PRNGKey(seed), chains)
        log_weight, rates = jax.block_until_ready(program(keys, images))
        return Annealed(np.asarray(log_weight, dtype=np.float64).reshape(-1, IMAGES), float(rates.mean()))

    return anneal


def blackjax(problem: Problem, betas: np.ndarray, chains: int) -> Anneal:
    import blackjax
    import jax.numpy as jnp
    from blackjax.mcmc.hmc import HMCState

    def move(key: Any, log_prob: Any, state: Tempered, beta: Any) -> tuple[Tempered, Any]:
        kernel = blackjax.hmc(log_prob, STEP_SIZE, jnp.ones(problem.dim), LEAPFROGS)
        start = HMCState(state.position, state.value(beta), state.gradient(beta))
        end, info = kernel.step(key, start)
        return Tempered.at(end.position, end.logdensity, end.logdensity_grad, beta), info.acceptance_rate

    return in_jax(problem, betas, chains, move)


def numpyro(problem: Problem, betas: np.ndarray, chains: int) -> Anneal:
    """Its functional interface; a state is told the potential energy and gradient of the next temperature."""
    from numpyro.infer.hmc import hmc

    def move(key: Any, log_prob: Any, state: Tempered, beta: Any) -> tuple[Tempered, Any]:
        start, sample = hmc(potential_fn=lambda z: -log_prob(z), algo="HMC")
        first = start(
            state.position,
            num_warmup=0,
            step_size=STEP_SIZE,
            num_steps=LEAPFROGS,
            trajectory_length=STEP_SIZE * LEAPFROGS,
            adapt_step_size=False,
            adapt_mass_matrix=False,
            rng_key=key,
        )
        first = first._replace(potential_energy=-state.value(beta), z_grad=-state.gradient(beta))
        end = sample(first, model_args=(), model_kwargs={})
        return Tempered.at(end.z, -end.potential_energy, -end.z_grad, beta), end.accept_prob

    return in_jax(problem, betas, chains, move)


ENGINES: dict[str, Callable[[Problem, np.ndarray, int], Anneal]] = {
    "eager": partial(hmcvi, compile=False),
    "compiled": partial(hmcvi, compile=True),
    "blackjax": blackjax,
    "numpyro": numpyro,
}
PACKAGES = {"blackjax": ("blackjax", "jax"), "numpyro": ("numpyro",)}


def evidence(log_weight: np.ndarray) -> dict[str, float]:
    """log Z of all images together and its error by the delta method, as `hmcvi.evidence` has them."""
    count = len(log_weight)
    weight = np.exp(log_weight - log_weight.max(0))
    ess = weight.sum(0) ** 2 / (weight**2).sum(0)
    log_z = log_weight.max(0) + np.log(weight.mean(0))
    variance = (count / ess - 1) / max(1, count - 1)
    return {"log_z": float(log_z.sum()), "std_error": math.sqrt(variance.sum()), "ess": float(ess.min())}


def main(engine: str, temperatures: int, chains: int) -> None:
    def started() -> Anneal:
        anneal = ENGINES[engine](PROBLEMS["decoder"](), schedule(temperatures), chains)
        anneal(0)
        return anneal

    anneal, first = timed(started)
    again = timed(lambda: anneal(1))[1]["seconds"]
    ours = engine in ("eager", "compiled")
    clock = matmul_clock(MATMUL_SECONDS) if ours else None
    seed = 2

    def answer(line: str) -> Record:
        nonlocal seed
        before = clock() if clock else math.nan
        (log_weight, acceptance), times = timed(lambda: anneal(seed))
        speed = {"multiply_add_seconds": (before + clock()) / 2} if clock else {}
        seed += 1
        return {**times, **speed, **evidence(log_weight), "acceptance": acceptance}

    versions = {name: version(name) for name in PACKAGES.get(engine, ("torch",))}
    serve({"first_call_s": round(first["seconds"] - again, 2), "versions": versions}, answer)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
