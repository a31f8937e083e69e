"""When did the accidents become fewer?  A discrete latent moved by discontinuous HMC.

    python examples/change_point.py

Disasters in British coal mines, by year; the year in which their rate changes is an integer among the
latents.  [Jarrett 1979]
"""

from __future__ import annotations

import pyro
import torch
from pyro import distributions as dist
from pyro.infer import MCMC
from pyro.infer.autoguide.initialization import init_to_value
from torch import Tensor

from hmcvi.kernels import DiscontinuousHMC
from hmcvi.pyro import KernelAdapter, vectorized_mcmc

FIRST_YEAR = 1851
DISASTERS = """
4 5 4 1 0 4 3 4 0 6 3 3 4 0 2 6 3 3 5 4 5 3 1 4 4 1 5 5 3 4 2 5 2 2 3 4 2 1 3 2
2 1 1 1 1 3 0 0 1 0 1 1 0 0 3 1 0 3 2 2 0 1 1 1 0 1 0 1 0 0 0 2 1 0 0 0 1 1 0 2
3 3 1 1 2 1 1 1 1 2 4 2 0 0 0 1 4 0 0 0 1 0 0 0 0 0 1 0 0 1 0 1
"""


def model(counts: Tensor) -> None:
    early = pyro.sample("early", dist.Gamma(2.0, 1.0))
    late = pyro.sample("late", dist.Gamma(2.0, 1.0))
    change = pyro.sample("change", dist.Categorical(torch.ones(len(counts))))
    with pyro.plate("years", len(counts)) as year:
        pyro.sample("counts", dist.Poisson(torch.where(year < change, early, late)), obs=counts)


def main(num_draws: int = 100) -> None:
    pyro.set_rng_seed(0)
    counts = torch.tensor([float(count) for count in DISASTERS.split()])

    middle = init_to_value(values={"change": torch.tensor(len(counts) // 2)})

    kernel = KernelAdapter(model, DiscontinuousHMC, num_steps=5, init_strategy=middle)
    mcmc = MCMC(kernel, num_samples=num_draws, warmup_steps=num_draws, disable_progbar=True)
    mcmc.run(counts)
    mcmc.summary()

    samples = vectorized_mcmc(
        model,
        DiscontinuousHMC,
        counts,
        num_samples=3 * num_draws,
        warmup_steps=2 * num_draws,
        settings={"num_steps": 5, "jitter": 0.5},
        init_strategy=middle,
    )
    years, shares = samples["change"].unique(return_counts=True)
    print("\n100 chains at once; the rate changed before")
    for index in shares.argsort(descending=True)[:5].sort().values:
        print(f"  {FIRST_YEAR + int(years[index])} with probability {shares[index] / shares.sum():.2f}")
    print(f"disasters a year: {samples['early'].mean():.2f} before, {samples['late'].mean():.2f} after")


if __name__ == "__main__":
    main()
