"""Gradients: pathwise ones through whole chains, score terms where acceptance is random."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from hmcvi import Bound, Chain, Density, Phase, Weights, weigh
from hmcvi.flows import Leapfrog
from hmcvi.kernels import (
    DiagonalMetric,
    DropMomentum,
    Metropolis,
    annealed_chain,
    flow_hmc_chain,
    hamiltonian_chain,
    hvae_chain,
    langevin_chain,
    stochastic_flow_chain,
)
from hmcvi.objectives import power_mean
from tests.support.problems import F64, LinearGaussian, perturb
from tests.support.statistics import Z, assert_mean, mean_and_error

MODEL = LinearGaussian(data_dim=3)
DIMS = {"dim": 2, "context_dim": 3}


class LogWeight(nn.Module):
    """log w as a function of the noise in the start, the data and all parameters, the draws frozen."""

    def __init__(self, chain: Chain) -> None:
        super().__init__()
        self.vae = MODEL.vae(chain)
        self.vae.decoder = CurvedDecoder()

    def forward(self, x: Tensor, z: Tensor) -> Tensor:
        torch.manual_seed(3)
        target = self.vae.posterior(x)
        return weigh(self.vae.chain, Phase(z), target.base.log_prob(z), target, x).log_weight


class CurvedDecoder(nn.Module):
    """Smooth in z, with curvature that changes from place to place."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 3)).double()
        self.log_scale = nn.Parameter(torch.tensor(-0.3, dtype=F64))

    def forward(self, z: Tensor) -> tuple[Tensor, Tensor]:
        loc = self.net(z)
        return loc, self.log_scale.exp().expand(loc.shape)


def hamiltonian(**options: object) -> Callable[[], Chain]:
    return lambda: hamiltonian_chain(
        **DIMS, num_hmc=2, num_leapfrog=2, hidden=(4,), initial_step_size=0.3, **options
    )


CHAINS: dict[str, Callable[[], Chain]] = {
    **{
        f"{mass}{' partial' if partial else ''}": hamiltonian(mass=mass, partial=partial)
        for mass, partial in itertools.product(
            ("identity", "global", "nn", "low-rank", "full"), (False, True)
        )
    },
    "simple": hamiltonian(accept="simple", mass="full", step_size="dimension"),
    "nn": hamiltonian(accept="nn", partial=True, step_size="nn"),
    "mixture": hamiltonian(reverse="mixture", mass="full"),
    "mixture partial": hamiltonian(reverse="mixture", partial=True, mass="nn"),
    "reverse flow": hamiltonian(reverse="flow", mass="nn"),
    "reverse flow partial": hamiltonian(reverse="flow", partial=True),
    "hvae": lambda: hvae_chain(2, num_leapfrog=2, initial_step_size=0.3),
    "uha": lambda: annealed_chain(**DIMS, num_steps=2, num_leapfrog=2, initial_step_size=0.3),
    "uha simple": lambda: annealed_chain(
        **DIMS, num_steps=2, num_leapfrog=2, initial_step_size=0.3, accept="simple"
    ),
    "candidates": lambda: annealed_chain(
        **DIMS, num_steps=2, initial_step_size=0.3, coordinates="encoder", num_candidates=4
    ),
    "ula": lambda: langevin_chain(**DIMS, num_steps=3, mass="nn", step_size="dimension"),
    "mcd": lambda: langevin_chain(**DIMS, num_steps=3, control="reverse", hidden=(4,), step_size="nn"),
    "cmcd": lambda: langevin_chain(**DIMS, num_steps=3, control="both", hidden=(4,), mass="full"),
    "cmcd in e": lambda: langevin_chain(
        **DIMS,
        num_steps=2,
        control="both",
        control_sees=["position", "force"],
        hidden=(8,),
        coordinates="encoder",
        initial_step_size=0.1,
    ),
    "stochastic flow": lambda: stochastic_flow_chain(**DIMS, num_flows=2, hidden=(4,)),
    "encoder": hamiltonian(coordinates="encoder", mass="nn"),
    "informed": hamiltonian(coordinates="encoder", reverse_sees=["position", "force"], partial=True),
    "informed in z": hamiltonian(reverse_sees=["position", "force", "standardised"], partial=True),
    "ldvi": lambda: annealed_chain(
        **DIMS,
        num_steps=3,
        initial_step_size=0.3,
        hidden=(4,),
        coordinates="encoder",
        reverse="gaussian",
        reverse_sees=["position", "force"],
    ),
    "flow": lambda: flow_hmc_chain(**DIMS, num_flows=2, num_hmc=1, num_leapfrog=2, hidden=(4,)),
}


@pytest.mark.parametrize("make_chain", CHAINS.values(), ids=CHAINS)
def test_pathwise_gradient_through_the_whole_chain(make_chain: Callable[[], Chain]) -> None:
    """Autograd against finite differences, in positions, data and every parameter."""
    torch.manual_seed(0)
    module = LogWeight(perturb(make_chain()))
    names = [name for name, parameter in module.named_parameters() if parameter.requires_grad]
    parameters = [dict(module.named_parameters())[name] for name in names]
    x, z = MODEL.data(2), torch.randn(2, 2, dtype=F64)

    def log_weight(x: Tensor, z: Tensor, *values: Tensor) -> Tensor:
        return torch.func.functional_call(module, dict(zip(names, values, strict=True)), (x, z))

    inputs = [x.requires_grad_(), z.requires_grad_(), *parameters]
    assert torch.autograd.gradcheck(log_weight, inputs, fast_mode=True)
    grads = torch.autograd.grad(log_weight(*inputs).sum(), inputs, allow_unused=True)
    unused = [n for n, g in zip(["x", "z", *names], grads, strict=True) if g is None or (g == 0).all()]
    # units of the small ReLU networks may sleep, everything else takes part
    assert not [name for name in unused if "reverse.net" not in name], unused


# One acceptance step from fixed starts (z0, v0): acceptance is the only randomness, and its two outcomes are
# enumerated by hand.  γ_a(z) = exp(−a Σz⁴/4 − Σ(z − 0.3)²/2), mass e^{2s}, step ε; θ = (log ε, s, a).

STARTS = torch.tensor(
    [[1.2, 0.1, 1.7, 2.3], [0.0, 1.1, -0.4, -2.0], [1.6, 0.7, -1.9, 1.0], [-0.3, -1.4, 1.2, -1.7]], dtype=F64
)
THETA = torch.tensor([math.log(0.62), 0.1, 0.8], dtype=F64)
DROP = DiagonalMetric(torch.tensor([-0.5, -0.2], dtype=F64))
NUM_STEPS = 2


def log_gamma(z: Tensor, a: Tensor) -> Tensor:
    return (-a[..., None] * z**4 / 4 - (z - 0.3) ** 2 / 2).sum(-1)


class HalfHearted(nn.Module):
    """P(A=1 | new) = ½ e^{H(new)−H_rev} + ¼, a reverse acceptance model without a network."""

    def forward(self, state: Phase, simple: Tensor, time: float, context: object) -> Tensor:
        return 0.5 * simple + 0.25


def outcomes(theta: Tensor, start: Tensor, learned: bool) -> tuple[Tensor, Tensor, Tensor]:
    """log p(accept) and log w of either outcome, from the formulas.  -> [], [], []"""
    step, s, a = theta[0].exp(), theta[1], theta[2]
    z0, v0 = start[:2], start[2:]

    def force(z: Tensor) -> Tensor:
        return -a * z**3 - (z - 0.3)

    def energy(z: Tensor, v: Tensor) -> Tensor:
        return 0.5 * (v.square() * (-2 * s).exp()).sum() - log_gamma(z, a)

    z, v = z0, v0
    for _ in range(NUM_STEPS):
        v = v + 0.5 * step * force(z)
        z = z + step * (-2 * s).exp() * v
        v = v + 0.5 * step * force(z)
    change = energy(z, v) - energy(z0, v0)
    log_accept = -change.clamp(min=0)
    accepted = log_gamma(z, a) + DROP.log_prob(v)
    rejected = log_gamma(z0, a) + DROP.log_prob(-v0)
    if not learned:
        return log_accept, accepted + change, rejected
    model = 0.5 * (-change).exp() + 0.25  # only asked where the reversal has more energy
    log_reject = torch.log1p(-log_accept.exp())
    return log_accept, accepted - log_accept, rejected + torch.log1p(-model) - log_reject


def exact_gradient(num_chains: int, power: float, learned: bool) -> Tensor:
    """∇ Σ_a p(a) L(a), over the 2^K outcomes.  [3]"""
    theta = THETA.clone().requires_grad_()
    chains = [outcomes(theta, start, learned) for start in STARTS[:num_chains]]
    total = torch.zeros((), dtype=F64)
    for outcome in itertools.product((True, False), repeat=num_chains):
        pairs = list(zip(chains, outcome, strict=True))
        log_weight = torch.stack([c[1] if accepted else c[2] for c, accepted in pairs])
        log_p = sum(c[0] if accepted else torch.log1p(-c[0].exp()) for c, accepted in pairs)
        total = total + log_p.exp() * power_mean(log_weight, power)
    return torch.autograd.grad(total, theta)[0]


def sampled_gradients(num_chains: int, bound: Bound, learned: bool, count: int) -> Tensor:
    """∇L of `count` independent runs of the library, by giving each run its own copy of θ.  [count, 3]"""
    theta = THETA.repeat(count, 1).requires_grad_()
    metric = DiagonalMetric(theta[:, 1:2].expand(-1, 2))
    trajectory = Leapfrog(metric, lambda context: theta[:, :1].exp(), NUM_STEPS)
    chain = Chain([Metropolis(trajectory, HalfHearted() if learned else None), DropMomentum(DROP)])
    target = Density(log_gamma, theta[:, 2])
    starts = STARTS[:num_chains, None].expand(-1, count, -1)
    start = Phase(starts[..., :2], starts[..., 2:]).evaluate(target)
    weights = weigh(chain, start, torch.zeros(num_chains, count, dtype=F64), target)
    return torch.autograd.grad(bound(weights).sum(), theta)[0]


def test_both_outcomes_are_possible() -> None:
    for start in STARTS:
        log_accept, accepted, rejected = outcomes(THETA, start, learned=True)
        assert 0.1 < log_accept.exp() < 0.95 and (accepted - rejected).abs() > 0.2


@pytest.mark.parametrize("learned", [False, True], ids=["simple", "learned"])
def test_single_chain_with_running_baseline_is_unbiased(learned: bool) -> None:
    torch.manual_seed(0)
    bound = Bound(alpha=1.0)
    gradients = [sampled_gradients(1, bound, learned, 5000) for _ in range(20)]
    assert bound.num_updates == 20 and bound.running_gain != 0
    assert_mean(torch.cat(gradients), exact_gradient(1, 0.0, learned))


@pytest.mark.parametrize("learned", [False, True], ids=["simple", "learned"])
@pytest.mark.parametrize("alpha", [1.0, 0.0, 0.5], ids=["ELBO", "IWAE", "Rényi"])
def test_leave_one_out_is_unbiased(alpha: float, learned: bool) -> None:
    torch.manual_seed(0)
    gradients = sampled_gradients(4, Bound(alpha), learned, 100_000)
    assert_mean(gradients, exact_gradient(4, 1 - alpha, learned))


@pytest.mark.parametrize("num_chains", [1, 4])
def test_the_gradient_without_the_score_is_biased(num_chains: int) -> None:
    torch.manual_seed(0)
    bound = Bound(alpha=1.0, acceptance_gradient="pathwise")
    mean, error = mean_and_error(sampled_gradients(num_chains, bound, True, 100_000))
    bias = (mean - exact_gradient(num_chains, 0.0, True)).abs() / error
    assert (bias > 5 * Z).all(), bias


@pytest.mark.parametrize("alpha", [1.0, 0.0])
def test_baselines_lower_the_variance(alpha: float) -> None:
    torch.manual_seed(0)
    with_baseline = sampled_gradients(4, Bound(alpha), True, 20_000).var(0)
    without = sampled_gradients(4, Unbased(alpha), True, 20_000).var(0)
    assert (with_baseline < without).all()


class Unbased(Bound):
    """The score term with b = 0."""

    def _signal(self, log_weight: Tensor, initial: Tensor | None) -> Tensor:
        return power_mean(log_weight, self.power).expand(log_weight.shape)


def test_the_score_does_not_change_the_value() -> None:
    torch.manual_seed(0)
    log_weight, log_choice = torch.randn(2, 3, 5, dtype=F64).unbind()
    weights = Weights(log_weight, log_choice.requires_grad_(), torch.zeros_like(log_weight))
    for alpha in (0.0, 0.5, 1.0):
        score, pathwise = (Bound(alpha, kind)(weights) for kind in ("score", "pathwise"))
        torch.testing.assert_close(score, pathwise, rtol=1e-14, atol=1e-14)
