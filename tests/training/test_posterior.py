"""The exact posterior on a grid, and the picture of it."""

from __future__ import annotations

import io
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.image import imread
from torch import Tensor
from torch.distributions import MultivariateNormal

from hmcvi.models import VAE
from hmcvi.training.posterior_figure import draw_posteriors, pixels, png
from hmcvi.training.posterior_grid import GridPosterior, grid_posterior
from tests.training.conftest import CHAIN, run_in_process
from tests.training.test_likelihood import FACTORS, SCALE, LinearDecoder, WideEncoder

X = torch.tensor([0.7, -1.2, 2.0], dtype=torch.float64)


def linear_gaussian(scale: float) -> tuple[MultivariateNormal, MultivariateNormal]:
    """p(z|x) and p(x) of z ~ N(0, I), x|z ~ N(W z, scale²)."""
    precision = torch.eye(2, dtype=torch.float64) + FACTORS.T @ FACTORS / scale**2
    mean = torch.linalg.solve(precision, FACTORS.T @ X) / scale**2
    covariance = FACTORS @ FACTORS.T + scale**2 * torch.eye(3, dtype=torch.float64)
    return MultivariateNormal(mean, precision_matrix=precision), MultivariateNormal(0 * X, covariance)


def log_joint(z: Tensor, scale: float) -> Tensor:
    normal = torch.distributions.Normal(0.0, 1.0)
    residual = (X - z @ FACTORS.T) / scale
    return normal.log_prob(z).sum(-1) + normal.log_prob(residual).sum(-1) - 3 * math.log(scale)


def integral(posterior: GridPosterior) -> float:
    density = posterior.log_density.exp()
    inner = torch.trapezoid(density, posterior.second, dim=1)
    return torch.trapezoid(inner, posterior.first).item()


@pytest.mark.parametrize("scale", [1.0, 0.1, 1e-3])
@pytest.mark.parametrize("offset", [0.0, 3.0])
def test_the_grid_is_the_exact_posterior(scale: float, offset: float) -> None:
    """However narrow it is, and wherever samples were looked for."""
    posterior, marginal = linear_gaussian(scale)
    torch.manual_seed(1)
    wide = posterior.mean + offset + torch.randn(50, 2).double()
    near = wide if scale > 0.01 else posterior.sample((50,))
    found = grid_posterior(lambda z: log_joint(z, scale), near)
    assert integral(found) == pytest.approx(1, abs=1e-4)
    assert found.log_evidence == pytest.approx(marginal.log_prob(X).item(), abs=1e-4, rel=1e-9)
    z = torch.cartesian_prod(found.first, found.second).unflatten(0, found.log_density.shape)
    torch.testing.assert_close(found.log_density, posterior.log_prob(z), rtol=0, atol=1e-4)
    assert (found.first[-1] - found.first[0]) < 14 * posterior.stddev[0]  # it is seen, not a dot on the plane


def test_regions_of_highest_density() -> None:
    """Of a Gaussian: ellipses with mass 1 − exp(−r²/2)."""
    posterior, _ = linear_gaussian(0.3)
    found = grid_posterior(lambda z: log_joint(z, 0.3), posterior.sample((50,)))
    for mass in (0.5, 0.95):
        radius = (-2 * math.log(1 - mass)) ** 0.5
        peak = posterior.log_prob(posterior.mean).item()
        assert found.level(mass) == pytest.approx(peak - radius**2 / 2, abs=0.01)
        lower, upper = found.box(mass)
        torch.testing.assert_close(lower, posterior.mean - radius * posterior.stddev, rtol=0, atol=0.02)
        torch.testing.assert_close(upper, posterior.mean + radius * posterior.stddev, rtol=0, atol=0.02)


def test_two_modes_are_both_found() -> None:
    """One of them far from all samples."""
    centres, sd = torch.tensor([[-2.0, 1.0], [2.5, -1.0]]).double(), 0.1

    def two(z: Tensor) -> Tensor:
        squares = (z[..., None, :] - centres).square().sum(-1) / sd**2
        return (-squares / 2).logsumexp(-1)

    found = grid_posterior(two, centres[0] + sd * torch.randn(20, 2).double())
    assert found.log_evidence == pytest.approx(math.log(2 * 2 * math.pi * sd**2), abs=1e-3)


def test_a_model_that_is_nowhere_finite_is_refused() -> None:
    with pytest.raises(ValueError, match="not finite anywhere"):
        grid_posterior(lambda z: z.sum(-1) * math.nan, torch.randn(5, 2))


def linear() -> VAE:
    return VAE(3, 2, likelihood="gaussian", encoder=WideEncoder(), decoder=LinearDecoder())


def test_the_figure_tells_the_gap_of_the_bound() -> None:
    """For a linear model KL(q0 ‖ p(z|x)), the same for all x."""
    torch.manual_seed(3)
    x = torch.randn(4, 3, dtype=torch.float64)
    before = torch.get_rng_state()
    figure = draw_posteriors(linear(), x, (1, 3), "none")
    assert torch.equal(torch.get_rng_state(), before)
    assert figure is not None
    posterior, _ = linear_gaussian(SCALE)
    scale = 1.5 * posterior.stddev
    base = MultivariateNormal(posterior.mean + 0.2, scale_tril=scale.diag())
    gap = torch.distributions.kl_divergence(base, posterior).item()
    titles = [text for axes in figure.axes if (text := axes.get_title())]
    shown = [float(title.rpartition(" = ")[2]) for title in titles]
    assert len(shown) == 4 and sum(shown) / 4 == pytest.approx(gap, abs=0.25)  # a thousand samples each


def test_a_run_with_two_latents_leaves_a_picture(small: list[str], finished: Path) -> None:
    assert (finished / "posterior.png").read_bytes().startswith(b"\x89PNG")
    other = run_in_process([*small, *CHAIN, "model.latent_dim=3"])
    assert not (other / "posterior.png").exists()


def test_the_same_picture_in_tensorboard() -> None:
    figure = draw_posteriors(linear(), torch.ones(1, 3, dtype=torch.float64), (1, 3), "none")
    assert figure is not None
    image = pixels(figure)
    assert image.dtype == np.uint8 and image.shape[-1] == 3 and image.std() > 10
    stored = imread(io.BytesIO(png(image)))
    assert (np.round(255 * stored[..., :3]) == image).all()


def test_a_model_without_finite_posteriors_is_not_drawn() -> None:
    assert draw_posteriors(linear(), torch.full((2, 3), math.nan).double(), (1, 3), "none") is None
