"""One run of a sampler as a user starts it: ENGINE PROBLEM SEED.  Prints one JSON line.

16 chains from uniform(−2, 2), 500 transitions of warm-up and 500 draws, all settings left at their defaults.
CPU time is that of the run alone: imports are not counted, compilation is.
"""

from __future__ import annotations

import os
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"
os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"

import numpy as np

from benchmarks.measuring import Record, say
from benchmarks.sampler_problem import Problem
from benchmarks.sampler_problems import PROBLEMS, reference

CHAINS, WARMUP, DRAWS = 16, 500, 500
LARGEST_ERROR = 4.0  # in Monte Carlo errors, of the worst of all means and standard deviations

# -> draws [chains, draws, d], gradients of all draws of all chains, CPU seconds, what the sampler said
Run = tuple[np.ndarray, int, float, str]


def hmcvi(problem: Problem, seed: int) -> Run:
    import torch

    import hmcvi

    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    log_prob = problem.make(torch)
    began = time.process_time()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", hmcvi.SamplingWarning)
        kernel = hmcvi.kernels.HMC(hmcvi.Density(log_prob, dim=problem.dim), 0.1)
        draws = hmcvi.sample(
            kernel, num_chains=CHAINS, num_samples=DRAWS, num_warmup=WARMUP, seed=seed, progress=False
        )
    used = time.process_time() - began
    said = "; ".join(str(warning.message) for warning in caught)
    return draws.position.numpy(), int(draws.stats["num_gradients"].sum()), used, said


def starts(problem: Problem, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).uniform(-2, 2, size=(CHAINS, problem.dim))


def numpyro(problem: Problem, seed: int) -> Run:
    import jax
    import jax.numpy as jnp
    from numpyro.infer import MCMC, NUTS

    jax.config.update("jax_enable_x64", True)
    log_prob = problem.make(jnp)
    began = time.process_time()
    mcmc = MCMC(
        NUTS(potential_fn=lambda z: -log_prob(z)),
        num_warmup=WARMUP,
        num_samples=DRAWS,
        num_chains=CHAINS,
        chain_method="vectorized",
        progress_bar=False,
    )
    key = jax.random.PRNGKey(seed)
    mcmc.run(key, init_params=jnp.asarray(starts(problem, seed)), extra_fields=("num_steps", "diverging"))
    draws = np.asarray(mcmc.get_samples(group_by_chain=True))
    used = time.process_time() - began
    fields = mcmc.get_extra_fields()
    return draws, int(fields["num_steps"].sum()), used, f"{int(fields['diverging'].sum())} diverged"


def blackjax(problem: Problem, seed: int) -> Run:
    import blackjax
    import jax
    import jax.numpy as jnp

    jax.config.update("jax_enable_x64", True)
    log_prob = problem.make(jnp)
    began = time.process_time()
    adapt = blackjax.window_adaptation(blackjax.nuts, log_prob)

    @jax.jit
    @jax.vmap
    def chain(key: Any, position: Any) -> Any:
        warm, main = jax.random.split(key)
        (state, settings), _ = adapt.run(warm, position, num_steps=WARMUP)
        step = blackjax.nuts(log_prob, **settings).step

        def transition(state: Any, key: Any) -> Any:
            state, info = step(key, state)
            return state, (state.position, info.num_integration_steps, info.is_divergent)

        return jax.lax.scan(transition, state, jax.random.split(main, DRAWS))[1]

    keys = jax.random.split(jax.random.PRNGKey(seed), CHAINS)
    draws, steps, diverged = jax.block_until_ready(chain(keys, jnp.asarray(starts(problem, seed))))
    used = time.process_time() - began
    return np.asarray(draws), int(steps.sum()), used, f"{int(diverged.sum())} diverged"


def blackjax_chees(problem: Problem, seed: int) -> Run:
    """With the diagonal mass that its adaptation offers."""
    import blackjax
    import jax
    import jax.numpy as jnp
    import optax

    jax.config.update("jax_enable_x64", True)
    log_prob = problem.make(jnp)
    began = time.process_time()
    adapt = blackjax.chees_adaptation(log_prob, CHAINS, mass_matrix_estimation="diagonal")
    warm, main = jax.random.split(jax.random.PRNGKey(seed))
    first = jnp.asarray(starts(problem, seed))
    (states, settings), _ = adapt.run(warm, first, 0.1, optax.adam(0.02), WARMUP)
    kernel = blackjax.dynamic_hmc(log_prob, **settings)

    @jax.jit
    @jax.vmap
    def chain(key: Any, state: Any) -> Any:
        def transition(state: Any, key: Any) -> Any:
            state, info = kernel.step(key, state)
            return state, (state.position, info.num_integration_steps, info.is_divergent)

        return jax.lax.scan(transition, state, jax.random.split(key, DRAWS))[1]

    draws, steps, diverged = jax.block_until_ready(chain(jax.random.split(main, CHAINS), states))
    used = time.process_time() - began
    return np.asarray(draws), int(steps.sum()), used, f"{int(diverged.sum())} diverged"


ENGINES: dict[str, Callable[[Problem, int], Run]] = {
    engine.__name__: engine for engine in (hmcvi, numpyro, blackjax, blackjax_chees)
}


def judged(name: str, problem: Problem, run: Run) -> Record:
    """R-hat, ESS and errors of the worst coordinate, and whether the run has converged."""
    import arviz

    draws, gradients, used, said = run
    columns = [np.ascontiguousarray(draws[..., i]) for i in range(problem.dim)]
    exact = reference(name, problem)
    errors = []
    for i in range(problem.dim)[problem.compared]:
        for kind, value in (("mean", columns[i].mean()), ("sd", columns[i].std())):
            error = np.hypot(float(arviz.mcse(columns[i], method=kind)), exact[f"{kind}_error"][i])
            errors.append(abs(value - exact[kind][i]) / error)
    rhat, ess = max(float(arviz.rhat(c)) for c in columns), min(float(arviz.ess(c)) for c in columns)
    converged = bool(rhat < 1.01 and max(errors) < LARGEST_ERROR)
    return {
        "converged": converged,
        "rhat": round(rhat, 4),
        "largest_error": round(float(max(errors)), 2),
        "ess": round(ess),
        "gradients": gradients,
        "cpu_seconds": round(used, 2),
        "cpu_seconds_to_1000": round(used * max(1.0, 1000 / ess), 2),
        "said": said,
    }


def main(engine: str, name: str, seed: str) -> None:
    warnings.simplefilter("ignore")
    import arviz  # noqa: F401  as all imports before the clock starts

    problem = PROBLEMS[name]()
    say(judged(name, problem, ENGINES[engine](problem, int(seed))))


if __name__ == "__main__":
    main(*sys.argv[1:])
