"""Topics of documents: weights on the simplex, by three transforms, labels summed out.

    python examples/mixture.py

A small model in the manner of latent Dirichlet allocation, sampled by HMC with stick-breaking (torch's own
choice), the additive log ratio and the augmented softmax.  The posterior is the same; what differs is how
many effective draws a gradient buys.
"""

from __future__ import annotations

import pyro
import torch
from pyro import distributions as dist
from pyro import poutine
from pyro.ops.stats import effective_sample_size
from torch import Tensor

from hmcvi.flows import AdditiveLogRatio
from hmcvi.kernels import HMC
from hmcvi.pyro import AugmentedSoftmax, vectorized_mcmc

TOPICS = torch.tensor(
    [
        [0.60, 0.30, 0.05, 0.03, 0.02],
        [0.05, 0.05, 0.60, 0.25, 0.05],
        [0.10, 0.10, 0.10, 0.10, 0.60],
    ]
)  # distributions of words, known here


def model(words: Tensor) -> None:
    """words: [positions, documents]"""
    share = pyro.sample("share", dist.Dirichlet(torch.ones(3)))
    with pyro.plate("documents", words.shape[1]):
        weights = pyro.sample("weights", dist.Dirichlet(1 + 5 * share))
        with pyro.plate("positions", len(words)):
            pyro.sample("words", dist.Categorical(weights @ TOPICS), obs=words)


def main(num_draws: int = 200) -> None:
    pyro.set_rng_seed(0)
    truth = dist.Dirichlet(torch.tensor([2.0, 0.5, 0.5])).sample((6,))
    words = dist.Categorical(truth @ TOPICS).sample((40,))
    sites = ("share", "weights")
    ways = {
        "stick-breaking": (model, {}),
        "additive log ratio": (model, {name: AdditiveLogRatio().inv for name in sites}),
        "augmented softmax": (poutine.reparam(model, {name: AugmentedSoftmax() for name in sites}), {}),
    }
    total = 20 * num_draws
    print(f"mean share of the topics, and effective draws of {total} of each of the weights (median)")
    for name, (way, transforms) in ways.items():
        samples = vectorized_mcmc(
            way,
            HMC,
            words,
            num_chains=20,
            num_samples=num_draws,
            warmup_steps=num_draws,
            transforms=transforms,
            settings={"num_steps": 8, "jitter": 0.5},
            group_by_chain=True,
        )
        share, weights = (_values(samples, site) for site in sites)
        effective = effective_sample_size(weights).median()
        shown = ", ".join(f"{float(value):.2f}" for value in share.mean((0, 1)))
        print(f"{name:<20}{shown:>18}{float(effective):8.0f}")


def _values(samples: dict[str, Tensor], site: str) -> Tensor:
    return samples[site] if site in samples else samples[f"{site}_augmented"].softmax(-1)


if __name__ == "__main__":
    main()
