"""Failed linear algebra: a mask for the chains whose matrices are bad."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from hmcvi import Density
from hmcvi.internal.linalg import succeeding
from hmcvi.kernels import HMC
from tests.support.problems import F64


def log_det(z: Tensor) -> Tensor:
    """log|[[1, z0], [z0, 1]]| − Σ z_i², by a Cholesky factor that exists for |z0| < 1."""
    eye = torch.eye(2, dtype=z.dtype)
    root = torch.linalg.cholesky(eye + z[..., 0, None, None] * eye.flip(0))
    return 2 * root.diagonal(dim1=-2, dim2=-1).log().sum(-1) - z[..., 1:].square().sum(-1)


class Fragile(torch.autograd.Function):
    """z², whose derivative cannot be taken where some z > 1."""

    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, z: Tensor) -> Tensor:
        ctx.save_for_backward(z)  # type: ignore[attr-defined]
        return z.square()

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, grad: Tensor) -> Tensor:
        (z,) = ctx.saved_tensors  # type: ignore[attr-defined]
        if (z > 1).any():
            raise torch.linalg.LinAlgError("linalg.eigh: the algorithm failed to converge")
        return 2 * z * grad


@pytest.mark.parametrize("bad", [[], [3], [0, 1, 9], list(range(9)), list(range(10))], ids=str)
@pytest.mark.parametrize("shape", [(10,), (2, 5)])
def test_the_chains_that_fail_are_masked(bad: list[int], shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    z = torch.rand(10, 3, dtype=F64) - 0.5
    z[bad, 0] = 2.0
    good = torch.ones(10, dtype=torch.bool)
    good[bad] = False
    value, grad = Density(log_det).value_and_grad(z.reshape(*shape, 3))
    value, grad = value.reshape(10), grad.reshape(10, 3)
    torch.testing.assert_close(value[good], (1 - z[good, 0] ** 2).log() - z[good, 1:].square().sum(-1))
    torch.testing.assert_close(grad[good, 1:], -2 * z[good, 1:])
    assert value[~good].isnan().all()
    value, grad = Density(log_det).finite_value_and_grad(z.reshape(*shape, 3))
    assert (value.reshape(10)[~good] == -torch.inf).all() and (grad.reshape(10, 3)[~good] == 0).all()


def test_the_density_may_differ_between_chains() -> None:
    """The shape of the batch is kept, so tensors given for each chain stay theirs."""
    scale = torch.arange(1.0, 5.0, dtype=F64)
    density = Density(lambda z, scale: scale * log_det(z), scale)
    z = torch.tensor([[0.1], [0.2], [3.0], [0.4]], dtype=F64)
    value = density.finite_log_prob(z)
    good = torch.tensor([0, 1, 3])
    torch.testing.assert_close(value[good], (scale * (1 - z[:, 0] ** 2).log())[good])
    assert value[2] == -torch.inf


def test_the_way_back_may_fail_too() -> None:
    density = Density(lambda z: -Fragile.apply(z).sum(-1))  # type: ignore[no-untyped-call]
    z = torch.tensor([[0.1], [2.0], [-0.4]], dtype=F64)
    value, grad = density.finite_value_and_grad(z)
    assert value.tolist() == pytest.approx([-0.01, -torch.inf, -0.16])
    assert grad[:, 0].tolist() == pytest.approx([-0.2, 0.0, 0.8])
    value, grad = density.finite_value_and_grad(z[1:2])
    assert value.item() == -torch.inf and grad.item() == 0


def test_a_failure_is_a_divergence() -> None:
    """Of that chain: it stays where it was, the others go on."""
    density = Density(log_det)
    kernel = HMC(density, step_size=0.9, num_steps=3)
    state = kernel.init(torch.zeros(50, 3, dtype=F64))
    random = torch.Generator().manual_seed(0)
    state, info = kernel.step(state, random)
    assert info["diverged"].any() and not info["diverged"].all()
    assert (state.position[info["diverged"]] == 0).all()


def bad_where_negative(z: Tensor) -> Tensor:
    """diag(z), which has no Cholesky factor where z < 0.  [..., d, d]"""
    return torch.diag_embed(z)


FAILING: dict[str, Callable[[Tensor], Tensor]] = {
    "cholesky": lambda z: torch.linalg.cholesky(bad_where_negative(z)).sum((-2, -1)),
    "inverse": lambda z: torch.linalg.inv(bad_where_negative(z.clamp(min=0))).sum((-2, -1)),
    "solve": lambda z: torch.linalg.solve(bad_where_negative(z.clamp(min=0)), z).sum(-1),
    "vmap": torch.func.vmap(lambda z: torch.linalg.cholesky(bad_where_negative(z)).sum()),
    "NaN is swallowed": lambda z: torch.linalg.cholesky(bad_where_negative(z)).nan_to_num().sum((-2, -1)),
}


@pytest.mark.parametrize("log_prob", FAILING.values(), ids=FAILING)
@pytest.mark.parametrize("shape", [(), (7,), (2, 5)], ids=str)
def test_chains_whose_algebra_fails_are_found(
    log_prob: Callable[[Tensor], Tensor], shape: tuple[int, ...]
) -> None:
    torch.manual_seed(0)
    if log_prob is FAILING["vmap"] and len(shape) != 1:
        shape = (3,)
    position = torch.randn(*shape, 2, dtype=F64) + 1
    good = succeeding(log_prob, position)
    assert torch.equal(good, (position > 0).all(-1))
    assert not succeeding(log_prob, -position.abs()).any()


def test_failed_algebra_costs_no_search() -> None:
    calls = []

    def log_prob(z: Tensor) -> Tensor:
        calls.append(z)
        return FAILING["cholesky"](z)

    position = torch.ones(64, 2).index_fill(0, torch.arange(0, 64, 3), -1.0)
    assert succeeding(log_prob, position).sum() == 42
    assert len(calls) == 2
