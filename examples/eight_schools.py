"""Eight schools: a normal guide, AutoHMC in its place, and NUTS.

    python examples/eight_schools.py

Refinement closes nearly all of the gap between the bound of the normal guide and the log evidence, −31.31.
"""

from __future__ import annotations

import pyro
import torch
from pyro import distributions as dist
from pyro.infer import MCMC, NUTS, SVI, Trace_ELBO
from pyro.infer.autoguide import AutoMultivariateNormal
from torch import Tensor

from hmcvi.pyro import AutoHMC

EFFECT = torch.tensor([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
ERROR = torch.tensor([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])


def model(effect: Tensor) -> None:
    mu = pyro.sample("mu", dist.Normal(0.0, 5.0))
    tau = pyro.sample("tau", dist.HalfCauchy(5.0))
    with pyro.plate("schools", 8):
        eta = pyro.sample("eta", dist.Normal(0.0, 1.0))
        pyro.sample("effect", dist.Normal(mu + tau * eta, ERROR), obs=effect)


def train(guide: object, num_steps: int) -> None:
    svi = SVI(model, guide, pyro.optim.Adam({"lr": 0.01}), Trace_ELBO())
    for _ in range(num_steps):
        svi.step(EFFECT)


def report(name: str, guide: object, samples: dict[str, Tensor]) -> None:
    log_tau, bound = samples["tau"].log(), ""
    if guide is not None:
        with torch.no_grad():
            loss = Trace_ELBO(num_particles=1000, vectorize_particles=True).loss(model, guide, EFFECT)
        bound = f"{-loss:8.2f}"
    moments = (samples["mu"].mean(), samples["mu"].std(), log_tau.mean(), log_tau.std())
    print(f"{name:<20}{bound:>8}" + "".join(f"{float(value):9.2f}" for value in moments))


def main(num_steps: int = 3000, num_draws: int = 500) -> None:
    pyro.set_rng_seed(0)
    print(f"{'':<20}{'bound':>8}{'mu':>9}{'± sd':>9}{'log tau':>9}{'± sd':>9}")
    normal = AutoMultivariateNormal(model)
    train(normal, num_steps)
    with torch.no_grad(), pyro.plate("draws", 5000, dim=-2):
        samples = normal(EFFECT)
    report("normal", normal, samples)
    guide = AutoHMC(model)  # the line that changes
    train(guide, num_steps // 20)  # a step takes longer, and begins with a fit
    report("refined by HMC", guide, guide.sample_posterior(2000, EFFECT))
    nuts = NUTS(model, jit_compile=True, ignore_jit_warnings=True)
    mcmc = MCMC(nuts, num_draws, warmup_steps=num_draws, disable_progbar=True)
    mcmc.run(EFFECT)
    report("NUTS", None, mcmc.get_samples())


if __name__ == "__main__":
    main()
