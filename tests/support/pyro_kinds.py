"""Small models of the kinds that Pyro's users write: hierarchies, labels, time series, networks, matrices."""

from __future__ import annotations

from typing import Any, NamedTuple

import pyro
import torch
from pyro import distributions as dist
from pyro import poutine
from pyro.infer import config_enumerate
from pyro.nn import PyroModule, PyroSample
from torch import Tensor, nn

_generator = torch.Generator().manual_seed(0)


def _normals(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=_generator)


def _coins(*shape: int) -> Tensor:
    return torch.bernoulli(torch.full(shape, 0.4), generator=_generator)


def pooled(trials: Tensor, successes: Tensor) -> None:
    """Success rates of several players, from a common beta distribution."""
    mean = pyro.sample("mean", dist.Uniform(0.0, 1.0))
    strength = pyro.sample("strength", dist.Pareto(1.0, 1.5))
    with pyro.plate("players", len(trials)):
        rate = pyro.sample("rate", dist.Beta(mean * strength, (1 - mean) * strength))
        pyro.sample("successes", dist.Binomial(trials, rate), obs=successes)


class Regression(PyroModule):
    """A linear layer whose weights are random."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = PyroModule[nn.Linear](3, 1)
        self.linear.weight = PyroSample(dist.Normal(0.0, 1.0).expand([1, 3]).to_event(2))
        self.linear.bias = PyroSample(dist.Normal(0.0, 5.0).expand([1]).to_event(1))

    def forward(self, inputs: Tensor, outputs: Tensor | None = None) -> Tensor:
        scale = pyro.sample("scale", dist.Uniform(0.0, 10.0))
        mean = self.linear(inputs).squeeze(-1)
        with pyro.plate("data", len(inputs)):
            pyro.sample("outputs", dist.Normal(mean, scale), obs=outputs)
        return mean


def correlations(data: Tensor) -> None:
    size = data.shape[-1]
    scale = pyro.sample("scale", dist.HalfCauchy(torch.ones(size)).to_event(1))
    root = pyro.sample("root", dist.LKJCholesky(size, torch.ones(())))
    with pyro.plate("data", len(data)):
        normal = dist.MultivariateNormal(torch.zeros(size), scale_tril=scale.diag_embed() @ root)
        pyro.sample("x", normal, obs=data)


def gaussian_process(inputs: Tensor, outputs: Tensor) -> None:
    length = pyro.sample("length", dist.LogNormal(0.0, 1.0))
    noise = pyro.sample("noise", dist.HalfNormal(1.0))
    kernel = (-0.5 * (inputs[:, None] - inputs).square() / length.square()).exp()
    covariance = kernel + (noise.square() + 1e-3) * torch.eye(len(inputs))
    pyro.sample("outputs", dist.MultivariateNormal(torch.zeros(len(inputs)), covariance), obs=outputs)


def gamma_factors(counts: Tensor) -> None:
    rows, columns = counts.shape
    loading = pyro.sample("loading", dist.Gamma(0.5, 0.5).expand([2, columns]).to_event(2))
    with pyro.plate("rows", rows):
        factor = pyro.sample("factor", dist.Gamma(0.5, 0.5).expand([2]).to_event(1))
        pyro.sample("counts", dist.Poisson(factor @ loading + 1e-3).to_event(1), obs=counts)


@config_enumerate
def mixture(data: Tensor) -> None:
    weights = pyro.sample("weights", dist.Dirichlet(torch.ones(2)))
    scale = pyro.sample("scale", dist.LogNormal(0.0, 1.0))
    with pyro.plate("components", 2):
        mean = pyro.sample("mean", dist.Normal(0.0, 5.0))
    with pyro.plate("data", len(data)):
        label = pyro.sample("label", dist.Categorical(weights))
        pyro.sample("x", dist.Normal(mean[label], scale), obs=data)


@config_enumerate
def hidden_markov(sequences: Tensor, lengths: Tensor) -> None:
    """Sequences of different lengths, masked beyond their ends."""
    transition = pyro.sample("transition", dist.Dirichlet(0.9 * torch.eye(2) + 0.1).to_event(1))
    emission = pyro.sample("emission", dist.Beta(0.5, 0.9).expand([2, sequences.shape[-1]]).to_event(2))
    tones = pyro.plate("tones", sequences.shape[-1], dim=-1)
    with pyro.plate("sequences", len(sequences), dim=-2):
        state: Tensor | int = 0
        for time in pyro.markov(range(int(lengths.max()))):
            with poutine.mask(mask=(time < lengths).unsqueeze(-1)):
                state = pyro.sample(f"state_{time}", dist.Categorical(transition[state]))
                with tones:
                    seen = dist.Bernoulli(emission[state.squeeze(-1)])  # type: ignore[union-attr]
                    pyro.sample(f"x_{time}", seen, obs=sequences[:, time])


@config_enumerate
def topics(words: Tensor) -> None:
    """words: [words of a document, documents]"""
    with pyro.plate("topics", 2):
        weight = pyro.sample("weight", dist.Gamma(0.5, 1.0))
        vocabulary = pyro.sample("vocabulary", dist.Dirichlet(torch.full((5,), 0.5)))
    with pyro.plate("documents", words.shape[1]):
        share = pyro.sample("share", dist.Dirichlet(weight))
        with pyro.plate("words", words.shape[0]):
            topic = pyro.sample("topic", dist.Categorical(share))
            pyro.sample("word", dist.Categorical(vocabulary[topic]), obs=words)


@config_enumerate
def capture_recapture(captured: Tensor) -> None:
    """Animals that were seen once survive, and are seen again, or not."""
    survival = pyro.sample("survival", dist.Uniform(0.0, 1.0))
    recapture = pyro.sample("recapture", dist.Uniform(0.0, 1.0))
    with pyro.plate("animals", len(captured)):
        alive, known = torch.ones(len(captured)), torch.zeros(len(captured), dtype=torch.bool)
        for time in pyro.markov(range(captured.shape[1])):
            with poutine.mask(mask=known):
                share = torch.where(known, survival * alive, torch.ones(()))
                alive = pyro.sample(f"alive_{time}", dist.Bernoulli(share))
                pyro.sample(f"seen_{time}", dist.Bernoulli(recapture * alive), obs=captured[:, time])
            known = known | captured[:, time].bool()


def epidemic(cases: Tensor) -> None:
    """New infections of each day relaxed to numbers, observed by chance."""
    growth = pyro.sample("growth", dist.LogNormal(0.0, 1.0))
    rate = pyro.sample("rate", dist.Beta(2.0, 2.0))
    infected: Tensor = torch.ones(())
    for day, observed in enumerate(cases):
        infected = pyro.sample(f"infected_{day}", dist.LogNormal((growth * infected).log(), 0.3))
        pyro.sample(f"cases_{day}", dist.Poisson(rate * infected), obs=observed)


decoder = nn.Sequential(nn.Linear(2, 4), nn.Softplus(), nn.Linear(4, 6))


def autoencoder(images: Tensor) -> None:
    pyro.module("decoder", decoder)
    with pyro.plate("data", len(images)):
        z = pyro.sample("z", dist.Normal(torch.zeros(2), 1.0).to_event(1))
        pyro.sample("x", dist.Bernoulli(logits=decoder(z)).to_event(1), obs=images)


transition_network, emission_network = nn.GRUCell(1, 2), nn.Linear(2, 3)


def deep_markov(sequences: Tensor) -> None:
    """A state that a recurrent network moves, sequences: [n, times, 3]"""
    pyro.module("transition", transition_network)
    pyro.module("emission", emission_network)
    with pyro.plate("sequences", len(sequences)):
        z = torch.zeros(len(sequences), 2)
        for time in pyro.markov(range(sequences.shape[1])):
            mean = transition_network(torch.ones(*z.shape[:-1], 1), z)
            z = pyro.sample(f"z_{time}", dist.Normal(mean, 0.5).to_event(1))
            seen = dist.Bernoulli(logits=emission_network(z)).to_event(1)
            pyro.sample(f"x_{time}", seen, obs=sequences[:, time])


class Kind(NamedTuple):
    """A model and its data."""

    model: Any
    args: tuple[Tensor, ...]
    enumerates: bool = False


_inputs = _normals(8, 3)
KINDS: dict[str, Kind] = {
    "pooled": Kind(pooled, (torch.tensor([45.0, 45, 40]), torch.tensor([18.0, 12, 8]))),
    "regression": Kind(Regression(), (_inputs, _inputs[:, 0] + 0.1 * _normals(8))),
    "correlations": Kind(correlations, (_normals(6, 3),)),
    "gaussian process": Kind(gaussian_process, (torch.linspace(-2, 2, 6), _normals(6))),
    "gamma factors": Kind(gamma_factors, (torch.tensor([[1.0, 0, 3], [2, 1, 0]]),)),
    "mixture": Kind(mixture, (torch.tensor([-3.0, -2.5, 2.0, 3.1]),), True),
    "hidden markov": Kind(hidden_markov, (_coins(2, 3, 2), torch.tensor([3, 2])), True),
    "topics": Kind(topics, (torch.tensor([[0, 4], [1, 3], [0, 3]]),), True),
    "capture-recapture": Kind(capture_recapture, (_coins(4, 3),), True),
    "epidemic": Kind(epidemic, (torch.tensor([1.0, 2, 3]),)),
    "autoencoder": Kind(autoencoder, (_coins(3, 6),)),
    "deep markov": Kind(deep_markov, (_coins(2, 2, 3),)),
}
