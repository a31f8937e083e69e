"""AutoHMC under the losses of Pyro, and what it reports of its distribution."""

from __future__ import annotations

from typing import Any

import pyro
import pytest
import torch
from pyro import distributions as dist
from pyro.infer import SVI, JitTrace_ELBO, Trace_ELBO, TraceGraph_ELBO, TraceMeanField_ELBO
from torch import Tensor

from hmcvi.pyro import AmortizedHMC, AutoHMC
from tests.support.problems import F64
from tests.support.pyro_models import eight_schools


def entries(x: Tensor) -> None:
    with pyro.plate("data", len(x)):
        z = pyro.sample("z", dist.LogNormal(torch.zeros((), dtype=F64), 1.0))
        pyro.sample("x", dist.Normal(z, 0.5), obs=x)


def encoder(x: Tensor) -> Any:
    return dist.Normal(x.clamp(min=0.1).log()[:, None], 0.5).to_event(1)


DATA = torch.tensor([0.4, 1.3, 2.0], dtype=F64)
CASES: dict[str, Any] = {
    "AutoHMC": lambda: (eight_schools, AutoHMC(eight_schools, 1, 2, accept="nn", hidden=(4,)), ()),
    "AmortizedHMC": lambda: (entries, AmortizedHMC(entries, encoder, 1, 2, hidden=(4,)), (DATA,)),
}


@pytest.mark.parametrize("vectorized", [False, True])
@pytest.mark.parametrize("elbo", [TraceMeanField_ELBO, TraceGraph_ELBO])
@pytest.mark.parametrize("case", CASES)
def test_losses_agree_on_constrained_latents(case: str, elbo: Any, vectorized: bool) -> None:
    """The same value and gradient for the same draws: log|det| of the supports is not lost."""
    model, guide, args = CASES[case]()
    guide(*args)
    results = []
    for loss in (Trace_ELBO, elbo):
        pyro.set_rng_seed(1)
        guide.zero_grad()
        value = loss(num_particles=2, vectorize_particles=vectorized).loss_and_grads(model, guide, *args)
        grads = {name: p.grad.clone() for name, p in guide.named_parameters() if p.grad is not None}
        results.append((torch.tensor(float(value)), grads))
    torch.testing.assert_close(results[0][0], results[1][0])
    torch.testing.assert_close(results[0][1], results[1][1])


@pytest.mark.filterwarnings("ignore:.*torch.jit.trace. is deprecated:DeprecationWarning")
@pytest.mark.parametrize("case", CASES)
def test_compiled_losses_are_refused(case: str) -> None:
    model, guide, args = CASES[case]()
    svi = SVI(model, guide, pyro.optim.Adam({"lr": 0.01}), JitTrace_ELBO())
    with pytest.raises(NotImplementedError, match="use Trace_ELBO in place of JitTrace_ELBO"):
        svi.step(*args)


@pytest.mark.parametrize("case", CASES)
def test_quantiles_are_functions_of_the_parameters(case: str) -> None:
    _, guide, args = CASES[case]()
    guide(*args)
    state = torch.get_rng_state()
    medians = [guide.median(*args) for _ in range(2)]
    quantiles = guide.quantiles([0.1, 0.5], *args)
    assert torch.equal(state, torch.get_rng_state())
    for name, value in medians[0].items():
        assert torch.equal(value, medians[1][name]) and torch.equal(value, quantiles[name][1])
