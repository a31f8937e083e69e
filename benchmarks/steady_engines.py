"""One engine of the steady benchmark: ENGINE PROBLEM.  Tunes 64 chains, then answers lines by timed runs.

Chains start near the posterior, because steady speed is measured here, not survival.  A run continues where
the last one ended, has every draw in memory when it returns, and is compiled before it is timed.
"""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.measuring import Record
from benchmarks.sampler_problem import Problem
from benchmarks.sampler_problems import PROBLEMS, reference
from benchmarks.workers import serve

CHAINS, WARMUP, FIRST, RUN_SECONDS = 64, 1000, 200, 1.5

# runs `count` transitions -> draws [chains, count, d], gradients of all chains
Run = Callable[[int], tuple[np.ndarray, int]]


def starts(name: str, problem: Problem) -> np.ndarray:
    moments = reference(name, problem)
    noise = np.random.default_rng(0).normal(size=(CHAINS, problem.dim))
    return moments["mean"] + moments["sd"] * noise


def hmcvi(name: str, problem: Problem, compile: bool) -> Run:
    import torch

    import hmcvi

    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    warnings.simplefilter("ignore")
    kernel = hmcvi.kernels.HMC(hmcvi.Density(problem.make(torch)), 0.1, compile=compile)
    draws = hmcvi.sample(
        kernel, torch.from_numpy(starts(name, problem)), 1, WARMUP, progress=False, check=False
    )
    tuned, position, seed = draws.kernel, draws.position[:, -1], 0

    def run(count: int) -> tuple[np.ndarray, int]:
        nonlocal position, seed
        seed += 1
        assert tuned is not None
        found = hmcvi.sample(tuned, position, count, seed=seed, progress=False, check=False)
        position = found.position[:, -1].clone()
        return found.position.numpy(), int(found.stats["num_gradients"].sum())

    return run


def numpyro(name: str, problem: Problem) -> Run:
    """NUTS, by its functional interface: the MCMC class compiles again at every run."""
    import jax
    import jax.numpy as jnp
    from numpyro.infer.hmc import hmc

    log_prob = problem.make(jnp)
    start, sample = hmc(potential_fn=lambda z: -log_prob(z), algo="NUTS")

    def tuned(key: Any, position: Any) -> Any:
        state = start(position, num_warmup=WARMUP, rng_key=key)
        return jax.lax.fori_loop(0, WARMUP, lambda _, state: sample(state), state)

    def transition(state: Any, _: Any) -> Any:
        state = sample(state)
        return state, (state.z, state.num_steps)

    states = jax.jit(jax.vmap(tuned))(jax.random.split(jax.random.PRNGKey(0), CHAINS), starts(name, problem))
    return _scanned(transition, states)


def blackjax_nuts(name: str, problem: Problem) -> Run:
    """Each chain with its own step size and mass."""
    import blackjax
    import jax
    import jax.numpy as jnp

    log_prob = problem.make(jnp)
    adapt = blackjax.window_adaptation(blackjax.nuts, log_prob)

    def tuned(key: Any, position: Any) -> Any:
        (state, settings), _ = adapt.run(key, position, num_steps=WARMUP)
        return state, settings, key

    def transition(carry: Any, _: Any) -> Any:
        state, settings, key = carry
        key, now = jax.random.split(key)
        state, info = blackjax.nuts(log_prob, **settings).step(now, state)
        return (state, settings, key), (state.position, info.num_integration_steps)

    keys = jax.random.split(jax.random.PRNGKey(0), CHAINS)
    return _scanned(transition, jax.jit(jax.vmap(tuned))(keys, jnp.asarray(starts(name, problem))))


def blackjax_chees(name: str, problem: Problem) -> Run:
    """With the diagonal mass that its adaptation offers."""
    import blackjax
    import jax
    import jax.numpy as jnp
    import optax

    log_prob = problem.make(jnp)
    adapt = blackjax.chees_adaptation(log_prob, CHAINS, mass_matrix_estimation="diagonal")
    position = jnp.asarray(starts(name, problem))
    (states, settings), _ = adapt.run(jax.random.PRNGKey(0), position, 0.1, optax.adam(0.02), WARMUP)
    kernel = blackjax.dynamic_hmc(log_prob, **settings)

    def transition(carry: Any, _: Any) -> Any:
        state, key = carry
        key, now = jax.random.split(key)
        state, info = kernel.step(now, state)
        return (state, key), (state.position, info.num_integration_steps)

    return _scanned(transition, (states, jax.random.split(jax.random.PRNGKey(1), CHAINS)))


def _scanned(transition: Callable[[Any, Any], Any], carry: Any) -> Run:
    """jit(vmap(scan)): all transitions of all chains in one program."""
    import jax

    programs: dict[int, Any] = {}

    def run(count: int) -> tuple[np.ndarray, int]:
        nonlocal carry
        if count not in programs:
            programs[count] = jax.jit(jax.vmap(lambda carry: jax.lax.scan(transition, carry, None, count)))
        carry, (draws, steps) = jax.block_until_ready(programs[count](carry))
        return np.asarray(draws), int(steps.sum())

    return run


def hmcvi_eager(name: str, problem: Problem) -> Run:
    return hmcvi(name, problem, compile=False)


def hmcvi_compiled(name: str, problem: Problem) -> Run:
    return hmcvi(name, problem, compile=True)


ENGINES: dict[str, Callable[[str, Problem], Run]] = {
    engine.__name__: engine
    for engine in (hmcvi_compiled, hmcvi_eager, numpyro, blackjax_nuts, blackjax_chees)
}


def measured(run: Run, count: int) -> Record:
    """The least bulk ESS of a coordinate, per CPU second and per gradient."""
    import arviz

    began = time.process_time()
    draws, gradients = run(count)
    used = time.process_time() - began
    ess = min(float(arviz.ess(np.ascontiguousarray(draws[..., i]))) for i in range(draws.shape[-1]))
    return {"ess_per_s": ess / used, "ess_per_gradient": ess / gradients, "microseconds": 1e6 * used / count}


def main(engine: str, name: str) -> None:
    if not engine.startswith("hmcvi"):
        import jax

        jax.config.update("jax_enable_x64", True)
    run = ENGINES[engine](name, PROBLEMS[name]())
    run(FIRST)
    began = time.process_time()
    run(FIRST)
    count = max(FIRST, round(FIRST * RUN_SECONDS / (time.process_time() - began)))
    run(count)
    serve({"transitions": count}, lambda line: measured(run, count))


if __name__ == "__main__":
    main(*sys.argv[1:])
