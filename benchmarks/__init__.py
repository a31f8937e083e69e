"""Measurements of speed and memory, side by side with peers: `python -m benchmarks NAME [options]`.

A benchmark is a module with a docstring, `configure(parser)` and `run(args)`, which yields one record for
each comparison.  Torch is imported by `run`, when the number of threads is known.
"""

BENCHMARKS = (
    "annealing",
    "attack",
    "chain_memory",
    "constrained",
    "default_run",
    "funnels",
    "gp_estimate",
    "guide_steps",
    "guides",
    "kernels",
    "likelihoods",
    "many_processes",
    "mcmc_kernels",
    "minibatches",
    "nodes",
    "profiling",
    "pyro_models",
    "sampler_moments",
    "samplers",
    "scaling",
    "smc",
    "startup",
    "steady",
    "train_step",
)
