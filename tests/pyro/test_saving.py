"""Guides in files, copies and the param store: base and chain come back together."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudpickle
import pyro
import pytest
import torch
from pyro import distributions as dist
from pyro.infer import SVI, Predictive, Trace_ELBO
from pyro.infer.autoguide import AutoDiagonalNormal, AutoIAFNormal
from torch import Tensor

from hmcvi.kernels import annealed_chain
from hmcvi.pyro import AmortizedHMC, AutoHMC
from tests.support.problems import F64

X = torch.linspace(-1, 1, 8, dtype=F64)
Y = 0.9 * X


def regression(x: Tensor, y: Tensor | None = None) -> None:
    coefs = pyro.sample("coefs", dist.Normal(torch.zeros(2, dtype=F64), 1.0).to_event(1))
    scale = pyro.sample("scale", dist.LogNormal(torch.zeros((), dtype=F64), 0.5))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(coefs[0] + coefs[1] * x, scale), obs=y)


def local(x: Tensor) -> None:
    with pyro.plate("data", len(x)):
        z = pyro.sample("z", dist.Normal(torch.zeros((), dtype=F64), 1.0))
        pyro.sample("x", dist.Normal(z, 0.5), obs=x)


def encoder(x: Tensor) -> Any:
    return dist.Normal(0.8 * x[:, None], 0.45).to_event(1)


def saved(guide: Any) -> Any:
    file = io.BytesIO()
    torch.save(guide, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


COPIES: dict[str, Callable[[Any], Any]] = {
    "pickle": lambda guide: pickle.loads(pickle.dumps(guide)),
    "cloudpickle": lambda guide: cloudpickle.loads(cloudpickle.dumps(guide)),
    "deepcopy": copy.deepcopy,
    "torch.save": saved,
}
GUIDES: dict[str, Callable[[], tuple[Any, tuple[Tensor, ...]]]] = {
    "AutoHMC": lambda: (AutoHMC(regression, 1, 2, accept="simple", hidden=(4,)), (X, Y)),
    "flow": lambda: (AutoHMC(regression, 1, 2, hidden=(4,), base=AutoIAFNormal), (X, Y)),
    "AmortizedHMC": lambda: (AmortizedHMC(local, encoder, 1, 2, hidden=(4,)), (X,)),
}


def train(guide: Any, *args: Tensor, steps: int = 3) -> None:
    svi = SVI(guide.model, guide, pyro.optim.Adam({"lr": 0.05}), Trace_ELBO())
    for _ in range(steps):
        svi.step(*args)


def draw(guide: Any, *args: Tensor) -> dict[str, Tensor]:
    with torch.no_grad():
        guide(*args)  # the first call draws more
        pyro.set_rng_seed(3)
        return {name: value.clone() for name, value in guide(*args).items()}


def assert_same(first: dict[str, Tensor], second: dict[str, Tensor]) -> None:
    assert first.keys() == second.keys()
    for name, value in first.items():
        torch.testing.assert_close(second[name], value, rtol=0, atol=0)


@pytest.mark.parametrize("how", COPIES)
@pytest.mark.parametrize("kind", GUIDES)
def test_trained_guides_are_copied(kind: str, how: str) -> None:
    guide, args = GUIDES[kind]()
    train(guide, *args)
    expected = draw(guide, *args)
    twin = COPIES[how](guide)
    assert_same(expected, draw(guide, *args))  # the original goes on
    pyro.clear_param_store()
    assert_same(expected, draw(twin, *args))
    train(twin, *args, steps=1)
    assert (draw(twin, *args).popitem()[1] != expected.popitem()[1]).any()


@pytest.mark.parametrize("how", COPIES)
@pytest.mark.parametrize("kind", GUIDES)
def test_guides_are_copied_before_their_first_call(kind: str, how: str) -> None:
    guide, args = GUIDES[kind]()
    for either in (COPIES[how](guide), guide):
        pyro.clear_param_store()
        train(either, *args, steps=1)
        assert draw(either, *args)


def test_a_copy_remembers_the_data() -> None:
    guide = AutoHMC(regression, 1, 2, hidden=(4,))
    train(guide, X, Y)
    twin = pickle.loads(pickle.dumps(guide))
    pyro.clear_param_store()
    assert Predictive(regression, guide=twin, num_samples=3)(X[:2])["y"].shape == (3, 2)


@pytest.mark.parametrize("kind", ["AutoHMC", "AmortizedHMC"])  # the flow has a permutation, not a parameter
def test_the_param_store_restores_base_and_chain(kind: str, tmp_path: Path) -> None:
    guide, args = GUIDES[kind]()
    train(guide, *args)
    expected = draw(guide, *args)
    pyro.get_param_store().save(str(tmp_path / "store"))
    pyro.clear_param_store()
    other, _ = GUIDES[kind]()
    pyro.get_param_store().load(str(tmp_path / "store"))
    assert_same(expected, draw(other, *args))
    before = {name: value.detach().clone() for name, value in other.named_parameters()}
    train(other, *args, steps=1)
    moved = [name for name, value in other.named_parameters() if (value != before[name]).any()]
    assert any(name.startswith("chain") for name in moved)


def test_a_chain_that_was_given_is_restored_too() -> None:
    def make() -> AutoHMC:
        return AutoHMC(regression, chain=annealed_chain(3, 0, num_steps=2).double())

    guide = make()
    train(guide, X, Y)
    assert_same(draw(guide, X, Y), draw(make(), X, Y))


def test_state_dicts_restore_base_and_chain() -> None:
    guide, other = (AutoHMC(regression, 1, 2, hidden=(4,)) for _ in range(2))
    train(guide, X, Y)
    expected, state = draw(guide, X, Y), copy.deepcopy(guide.state_dict())
    pyro.clear_param_store()
    other(X, Y)
    other.load_state_dict(state)
    assert_same(expected, draw(other, X, Y))


def test_a_second_guide_of_the_same_name_is_trained() -> None:
    """It begins where the first one ended, as Pyro's do, and SVI trains what it runs with."""
    first, second = (AutoHMC(regression, 1, 2, hidden=(4,)) for _ in range(2))
    train(first, X, Y)
    assert_same(draw(first, X, Y), draw(second, X, Y))
    before = {name: value.detach().clone() for name, value in second.named_parameters()}
    train(second, X, Y)
    moved = {name for name, value in second.named_parameters() if (value != before[name]).any()}
    assert "base.loc" in moved and any(name.startswith("chain") for name in moved)


def test_a_second_guide_of_another_shape_is_refused() -> None:
    train(AutoHMC(regression, 1, 2, hidden=(4,)), X, Y)
    for settings in ({"hidden": (5,)}, {"num_hmc": 2, "hidden": (4,)}):
        with pytest.raises(ValueError, match=r"of another guide: 'AutoHMC.chain.*pyro.clear_param_store\(\)"):
            AutoHMC(regression, **settings)(X, Y)


def test_a_trained_base_keeps_its_parameters() -> None:
    """Whatever the param store has under its new name."""
    train(AutoHMC(regression, 1, 2, hidden=(4,)), X, Y)
    base = AutoDiagonalNormal(regression)
    train(base, X, Y, steps=5)
    loc, scale = base.loc.detach().clone(), base.scale.detach().clone()
    guide = AutoHMC(regression, 1, 2, hidden=(4,), base=base)
    guide(X, Y)
    assert torch.equal(guide.base.loc, loc) and torch.equal(guide.base.scale, scale)
