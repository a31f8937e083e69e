"""Reference moments of the posteriors without exact ones: long runs of NumPyro's NUTS, from many starts.

Writes sampler_references.json.  Options: names of problems, else all.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator

import numpy as np

from benchmarks.measuring import Record
from benchmarks.sampler_problems import PROBLEMS, REFERENCES

CHAINS, WARMUP, DRAWS = 8, 2000, 5000


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("names", nargs="*", metavar="PROBLEM", help="default: all")


def run(args: argparse.Namespace) -> Iterator[Record]:
    import arviz
    import jax
    import jax.numpy as jnp
    from numpyro.infer import MCMC, NUTS

    jax.config.update("jax_enable_x64", True)
    stored = json.loads(REFERENCES.read_text()) if REFERENCES.exists() else {}
    for name in args.names or PROBLEMS:
        problem = PROBLEMS[name]()
        if problem.exact is not None:
            continue
        log_prob = problem.make(jnp)
        kernel = NUTS(
            potential_fn=lambda z, log_prob=log_prob: -log_prob(z), dense_mass=True, target_accept_prob=0.95
        )
        mcmc = MCMC(
            kernel, num_warmup=WARMUP, num_samples=DRAWS, num_chains=CHAINS,
            chain_method="vectorized", progress_bar=False,
        )  # fmt: skip
        start = np.random.default_rng(0).uniform(-1, 1, size=(CHAINS, problem.dim))
        mcmc.run(jax.random.PRNGKey(1), init_params=jnp.asarray(start))
        draws = np.asarray(mcmc.get_samples(group_by_chain=True))
        columns = [draws[..., i] for i in range(problem.dim)]
        stored[name] = {
            "mean": draws.mean((0, 1)).tolist(),
            "sd": draws.std((0, 1)).tolist(),
            "mean_error": [float(arviz.mcse(column, method="mean")) for column in columns],
            "sd_error": [float(arviz.mcse(column, method="sd")) for column in columns],
        }
        REFERENCES.write_text(json.dumps(stored, indent=1) + "\n")
        yield {"problem": name, "rhat": max(float(arviz.rhat(column)) for column in columns)}
