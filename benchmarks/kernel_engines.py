"""One engine of the kernel benchmark: ENGINE TARGET CHAINS.

Warms up, says how long the first call took, and answers every line by one timed run: seconds, transitions,
acceptance rate, cores that other processes used meanwhile.
"""

from __future__ import annotations

import platform
import sys
import warnings
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from typing import Any

from benchmarks.kernel_targets import LEAPFROGS, PROBLEMS, Problem, jax_log_prob, torch_log_prob
from benchmarks.measuring import Record, seconds, timed
from benchmarks.workers import serve

RUN_SECONDS = 0.7
CHUNK = 256  # transitions in one program, of the engines in chunks

# runs `count` transitions, continuing where the last run ended, and has every draw and its acceptance rate in
# memory when it returns their mean rate
Run = Callable[[int], float]


def hmcvi_kernel(name: str, problem: Problem, compile: bool, chunk: int = 1, force: str = "full") -> Any:
    import torch

    import hmcvi

    given = () if problem.per_chain is None else (torch.from_numpy(problem.per_chain),)
    density = hmcvi.Density(torch_log_prob(name, problem), *given)
    return hmcvi.kernels.HMC(density, problem.step_size, LEAPFROGS, compile=compile, chunk=chunk, force=force)


def hmcvi_steps(name: str, problem: Problem, chains: int, compile: bool, force: str = "full") -> Run:
    """`kernel.step` in a loop."""
    import torch

    kernel = hmcvi_kernel(name, problem, compile, force=force)
    state = kernel.init(torch.from_numpy(problem.start(chains)))
    generator = torch.Generator().manual_seed(0)

    def run(count: int) -> float:
        nonlocal state
        draws, rates = [], []
        for _ in range(count):
            state, info = kernel.step(state, generator)
            draws.append(state.position)
            rates.append(info["acceptance_rate"])
        return float(torch.stack(rates).mean())

    return run


def hmcvi_chunks(name: str, problem: Problem, chains: int) -> Run:
    """`kernel.steps` in a loop; runs end with a whole chunk, so they may be longer than asked."""
    import torch

    kernel = hmcvi_kernel(name, problem, compile=True, chunk=CHUNK)
    state = kernel.init(torch.from_numpy(problem.start(chains)))
    generator = torch.Generator().manual_seed(0)

    def run(count: int) -> float:
        nonlocal state
        draws, rates = [], []
        for _ in range(-(-count // CHUNK)):
            state, states, info = kernel.steps(state, generator)
            draws.append(states.position)
            rates.append(info["acceptance_rate"])
        return float(torch.stack(rates).mean())

    return run


def hmcvi_sample(name: str, problem: Problem, chains: int, chunk: int = 1) -> Run:
    """`hmcvi.sample` with its default records, every draw kept."""
    import torch

    import hmcvi

    kernel = hmcvi_kernel(name, problem, compile=True, chunk=chunk)
    position = torch.from_numpy(problem.start(chains))
    seed = 0

    def run(count: int) -> float:
        nonlocal position, seed
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", hmcvi.SamplingWarning)  # a short run need not have converged
            draws = hmcvi.sample(kernel, position, num_samples=count, seed=seed, progress=False)
        position, seed = draws.position[:, -1].clone(), seed + 1
        return float(draws.stats["acceptance_rate"].mean())

    return run


def _scan(
    step: Callable[[Any, Any, Any], Any], init: Callable[..., Any], problem: Problem, chains: int
) -> Run:
    """jit(vmap(scan)): all transitions of all chains in one program."""
    import jax
    import jax.numpy as jnp

    per_chain = None if problem.per_chain is None else jnp.array(problem.per_chain)
    axes = (0, 0, None if per_chain is None else 0)
    key = jax.random.PRNGKey(0)
    state = jax.jit(jax.vmap(init, in_axes=axes))(
        jax.random.split(key, chains), jnp.array(problem.start(chains)), per_chain
    )
    programs: dict[int, Any] = {}

    def program(count: int) -> Any:
        def chain(key: Any, state: Any, given: Any) -> Any:
            keys = jax.random.split(key, count)
            return jax.lax.scan(lambda state, key: step(key, state, given), state, keys)

        return jax.jit(jax.vmap(chain, in_axes=axes))

    def run(count: int) -> float:
        nonlocal key, state
        if count not in programs:
            programs[count] = program(count)
        key, now = jax.random.split(key)
        keys = jax.random.split(now, chains)
        state, (_, rates) = jax.block_until_ready(programs[count](keys, state, per_chain))
        return float(rates.mean())

    return run


def blackjax(name: str, problem: Problem, chains: int) -> Run:
    import blackjax
    import jax.numpy as jnp

    log_prob = jax_log_prob(name, problem)

    def kernel(given: Any) -> Any:
        return blackjax.hmc(
            lambda z: log_prob(z) if given is None else log_prob(z, given),
            step_size=problem.step_size,
            inverse_mass_matrix=jnp.ones(problem.dim),
            num_integration_steps=LEAPFROGS,
        )

    def step(key: Any, state: Any, given: Any) -> Any:
        state, info = kernel(given).step(key, state)
        return state, (state.position, info.acceptance_rate)

    return _scan(step, lambda key, position, given: kernel(given).init(position), problem, chains)


def numpyro(name: str, problem: Problem, chains: int) -> Run:
    """Its functional interface; the MCMC class compiles again at every run."""
    from numpyro.infer.hmc import hmc

    log_prob = jax_log_prob(name, problem)
    start, sample = hmc(potential_fn_gen=lambda *given: lambda z: -log_prob(z, *given), algo="HMC")

    def init(key: Any, position: Any, given: Any) -> Any:
        return start(
            position,
            num_warmup=0,
            step_size=problem.step_size,
            num_steps=LEAPFROGS,
            trajectory_length=problem.step_size * LEAPFROGS,
            adapt_step_size=False,
            adapt_mass_matrix=False,
            model_args=() if given is None else (given,),
            rng_key=key,
        )

    def step(key: Any, state: Any, given: Any) -> Any:
        state = sample(state, model_args=() if given is None else (given,), model_kwargs={})
        return state, (state.z, state.accept_prob)

    return _scan(step, init, problem, chains)


def pyro(name: str, problem: Problem, chains: int) -> Run:
    """One chain of Pyro's HMC with a potential function."""
    import torch
    from pyro.infer import HMC, MCMC

    log_prob = torch_log_prob(name, problem)
    position = torch.from_numpy(problem.start(chains))[0]

    def run(count: int) -> float:
        nonlocal position
        kernel = HMC(
            potential_fn=lambda variables: -log_prob(variables["z"]),
            step_size=problem.step_size,
            num_steps=LEAPFROGS,
            trajectory_length=None,
            adapt_step_size=False,
            adapt_mass_matrix=False,
        )
        mcmc = MCMC(kernel, count, warmup_steps=0, initial_params={"z": position}, disable_progbar=True)
        mcmc.run()
        position = mcmc.get_samples()["z"][-1]
        return float(mcmc.diagnostics()["acceptance rate"]["chain 0"])

    return run


ENGINES: dict[str, Callable[[str, Problem, int], Run]] = {
    "hmcvi_eager": partial(hmcvi_steps, compile=False),
    "hmcvi_compiled": partial(hmcvi_steps, compile=True),
    "hmcvi_bf16": partial(hmcvi_steps, compile=True, force="bf16"),
    "hmcvi_chunks": hmcvi_chunks,
    "hmcvi_sample": hmcvi_sample,
    "hmcvi_sample_chunks": partial(hmcvi_sample, chunk=CHUNK),
    "blackjax": blackjax,
    "numpyro": numpyro,
    "pyro": pyro,
}
PACKAGES = {
    "hmcvi": ("torch",),
    "blackjax": ("blackjax", "jax"),
    "numpyro": ("numpyro",),
    "pyro": ("pyro-ppl",),
}


def transitions(run: Run) -> int:
    """How many fill a timed run; every program it needs is compiled afterwards."""
    count = 10
    while (took := seconds(partial(run, count))) < RUN_SECONDS / 4:
        count *= 4
        run(count)
    count = max(count, round(count * RUN_SECONDS / took))
    count = -(-count // CHUNK) * CHUNK if count > CHUNK else count
    run(count)
    return count


def main(engine: str, target: str, chains: int) -> None:
    def started() -> Run:
        run = ENGINES[engine](target, PROBLEMS[target](), chains)
        run(10)
        return run

    run, first = timed(started)
    compiling = first["seconds"] - seconds(partial(run, 10))
    count = transitions(run)

    def answer(line: str) -> Record:
        acceptance, times = timed(partial(run, count))
        return {**times, "transitions": count, "acceptance": acceptance}

    versions = {name: version(name) for name in PACKAGES[engine.split("_")[0]]}
    serve(
        {"first_call_s": round(compiling, 2), "versions": {"python": platform.python_version()} | versions},
        answer,
    )


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
