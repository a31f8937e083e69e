"""Normal fits by natural gradients: exact where the density is normal, as good as any elsewhere."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from hmcvi import Density
from hmcvi.evidence import fit_advi, fit_normal
from tests.support.problems import F64

MEAN = torch.tensor([300.0, -2.0, 0.05], dtype=F64)
ROOT = torch.tensor([[20.0, 0.0, 0.0], [1.5, 0.3, 0.0], [0.0, -0.02, 0.01]], dtype=F64)


def normal() -> Density:
    """Correlated, far from the start and in units from 0.01 to 20, with log Z = 1.5."""
    distribution = torch.distributions.MultivariateNormal(MEAN, scale_tril=ROOT)
    return Density(lambda z: distribution.log_prob(z) + 1.5)


def curved() -> Density:
    return Density(
        lambda z: -0.5 * z[..., 0].square() - 0.5 * (z[..., 1] - 0.3 * z[..., 0].square()).square()
    )


def test_a_normal_density_is_found_exactly() -> None:
    fit = fit_normal(normal(), torch.zeros(3, dtype=F64))
    torch.testing.assert_close(fit.mean, MEAN, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(fit.covariance, ROOT @ ROOT.T, rtol=1e-3, atol=1e-5)
    assert float(fit.log_zeta) == pytest.approx(1.5, abs=1e-4)


def test_independent_scales_are_found_exactly() -> None:
    scale = torch.tensor([1e-3, 50.0], dtype=F64)
    target = Density(lambda z: -0.5 * ((z - 7.0) / scale).square().sum(-1))
    fit = fit_normal(target, torch.zeros(2, dtype=F64), full_rank=False)
    torch.testing.assert_close(fit.mean, torch.full_like(scale, 7.0), rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(fit.stddev, scale, rtol=1e-3, atol=0)


def test_as_good_as_stochastic_gradients_elsewhere() -> None:
    target, start = curved(), torch.zeros(2, dtype=F64)
    by_adam = fit_advi(target, start, full_rank=True)
    ours = fit_normal(target, start)
    assert float(ours.log_zeta) == pytest.approx(float(by_adam.log_zeta), abs=0.05)


def test_starts_are_independent() -> None:
    """A batch gives a fit for each start; those in the same mode agree."""
    starts = torch.tensor([[-3.0, 2.0], [4.0, 4.0], [0.1, 0.0]], dtype=F64)
    fits = fit_normal(curved(), starts)
    assert fits.batch_shape == (3,) and fits.root.shape == (3, 2, 2)
    assert (fits.log_zeta - fits.log_zeta.mean()).abs().max() < 0.1


def test_two_modes_have_two_fits() -> None:
    target = Density(lambda z: -0.5 * ((z.square() - 25.0) / 2).square().sum(-1))
    fits = fit_normal(target, torch.tensor([[-4.0], [4.0]], dtype=F64), scale=0.3)
    torch.testing.assert_close(fits.mean, torch.tensor([[-5.0], [5.0]], dtype=F64), rtol=0, atol=0.1)


def test_walls_and_failures_shrink_the_fit() -> None:
    """Where the density is zero, or not a number, nothing breaks and the fit stays where it is positive."""

    def log_prob(z: torch.Tensor) -> torch.Tensor:
        value = z.log().sum(-1) * 3 - z.sum(-1)  # NaN for z < 0
        return value

    fit = fit_normal(Density(log_prob), torch.full((2,), 2.0, dtype=F64))
    assert fit.mean.isfinite().all() and (fit.mean > 1).all() and (fit.mean < 6).all()
    assert (fit.stddev < fit.mean).all()


@pytest.mark.parametrize("full_rank", [True, False])
@pytest.mark.parametrize("limit", [30.0, 200.0])
def test_a_density_that_overflows_around_the_start_is_found_exactly(limit: float, full_rank: bool) -> None:
    """As that of counts with a covariate in large units: nearly all points around the start have no density.

    Escaping from there is not the end of the fit, and a step back there does not keep it.
    """
    mean, scale = torch.tensor([1e-3, 60.0, 1.0], dtype=F64), torch.tensor([1e-4, 13.0, 0.1], dtype=F64)

    def log_prob(z: torch.Tensor) -> torch.Tensor:
        x = (z - mean) / scale
        return torch.where((x.abs() < limit).all(-1), -0.5 * x.square().sum(-1), torch.nan)

    fit = fit_normal(Density(log_prob), torch.zeros(3, dtype=F64), full_rank)
    assert ((fit.mean - mean) / scale).abs().max() < 0.05
    torch.testing.assert_close(fit.stddev, scale, rtol=0.02, atol=0)


def test_repeats_and_says_what_is_wrong() -> None:
    start = torch.zeros(3, dtype=F64)
    first, second = (fit_normal(normal(), start, seed=3) for _ in range(2))
    assert torch.equal(first.mean, second.mean)
    with pytest.raises(ValueError, match="scale must be positive"):
        fit_normal(normal(), start, scale=0.0)
    with pytest.raises(ValueError, match="max_steps must be at least 100"):
        fit_normal(normal(), start, max_steps=10)


class _Largest(TorchDispatchMode):
    """The size of the largest tensor that is made."""

    numel = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        sizes = [part.numel() for part in tree_leaves(result) if isinstance(part, torch.Tensor)]
        self.numel = max([self.numel, *sizes])
        return result


def test_no_sample_has_a_matrix_of_its_own() -> None:
    density, dim = Density(lambda z: -0.5 * z.square().sum(-1)), 40
    with _Largest() as largest:
        fit_normal(density, torch.zeros(2, dim), max_steps=100)
    assert largest.numel <= 80 * 2 * dim  # 80 samples of two fits
