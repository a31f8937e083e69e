"""Human poses: the distributions of the files, cameras, and derivatives of the images."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from experiments.models.pose import FILES, FOCAL, HALF_BASE, PosePrior, camera_position, human_pose, project
from hmcvi.kernels.constrained.manifold import Manifold
from hmcvi.models.generator import Generator
from tests.support.poses import NUM_ANGLES, NUM_CODES, write_prior
from tests.support.problems import F64


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_prior(tmp_path_factory.mktemp("pose"))


@pytest.fixture(scope="module")
def prior(folder: Path) -> PosePrior:
    return PosePrior.load(folder)


def draws(generator: Generator, *shape: int) -> Tensor:
    return generator.sample(*shape, generator=torch.Generator().manual_seed(0))


def test_angles_are_those_of_the_decoded_vectors(folder: Path, prior: PosePrior) -> None:
    generator = human_pose(prior)
    u = draws(generator, 5)
    v = {name: value.numpy() for name, value in generator.layout.unflatten(u).items()}
    assert [value.shape[1] for value in v.values()] == [12, NUM_CODES, 2 * NUM_ANGLES, 3]
    net = np.load(folder / FILES[0])
    h = np.tanh(v["code"] @ net["W_0"] + net["b_0"])
    h = np.tanh(h @ net["W_1"] + net["b_1"]) + h
    out = h @ net["W_2"] + net["b_2"]
    r = out[:, : 2 * NUM_ANGLES] + np.exp(0.5 * out[:, 2 * NUM_ANGLES :]) * v["angles"]
    expected = np.arctan2(r[:, NUM_ANGLES:], r[:, :NUM_ANGLES])
    np.testing.assert_allclose(generator.latent(u)["angles"], expected, atol=1e-13)


def test_bones_have_the_log_normal_distribution_of_the_file(folder: Path, prior: PosePrior) -> None:
    """log b = μ + L u with L Lᵀ the covariance, read off at u = 0 and along each input."""
    file = np.load(folder / FILES[3])
    logs = prior.lengths(torch.cat([torch.zeros(1, 12), torch.eye(12)]).double()).log().numpy()
    np.testing.assert_allclose(logs[0], file["mean"], atol=1e-13)
    columns = logs[1:] - logs[0]
    np.testing.assert_allclose(columns.T @ columns, file["covar"], atol=1e-13)


def test_bones_keep_their_lengths_in_every_pose(prior: PosePrior) -> None:
    z = human_pose(prior).latent(draws(human_pose(prior), 6))
    joints, lengths = z["joints"], z["lengths"]
    places = prior.skeleton.positions(z["angles"].cos(), z["angles"].sin(), lengths)
    torch.testing.assert_close(places[:, prior.skeleton.observed], joints)
    assert joints.shape == (6, 19, 3)
    assert float(places[:, 0].abs().max()) == 0.0
    found = torch.stack([(places[:, j] - places[:, i]).norm(dim=-1) for i, j in prior.skeleton.links], -1)
    assert (found[..., None] - lengths[:, None]).abs().amin(-1).max() < 1e-12


def test_a_camera_is_the_matrix_of_a_pinhole() -> None:
    """f 0 0, 0 f 0, 0 0 1 times (R | c), R half a turn about the vertical."""
    points = torch.randn(4, 3, dtype=F64, generator=torch.Generator().manual_seed(0))
    camera = camera_position(torch.tensor([0.4, -1.0, 0.2], dtype=F64))
    torch.testing.assert_close(camera, torch.tensor([0.04, -0.1, np.exp(1.6)], dtype=F64))
    extrinsic = torch.cat([torch.diag(torch.tensor([-1.0, 1.0, -1.0])).double(), camera[:, None]], 1)
    matrix = torch.diag(torch.tensor([FOCAL, FOCAL, 1.0], dtype=F64)) @ extrinsic
    image = matrix @ torch.cat([points, torch.ones(4, 1)], 1).mT
    torch.testing.assert_close(project(points, camera), image[:2] / image[2])


def test_disparity_gives_the_depth(prior: PosePrior) -> None:
    two, one = human_pose(prior), human_pose(prior, 1)
    assert (two.num_observed, one.num_observed, two.dim) == (76, 38, one.dim)
    u = draws(two, 5)
    z, images = two.latent(u), two.observed(u).view(5, 2, 2, 19)
    depth = z["camera"][:, 2:] - z["joints"][..., 2]
    torch.testing.assert_close(images[:, 0, 0] - images[:, 1, 0], FOCAL * 2 * HALF_BASE / depth)
    torch.testing.assert_close(images[:, 0, 1], images[:, 1, 1])
    torch.testing.assert_close(images.mean(1).flatten(1), one.observed(u))
    with pytest.raises(ValueError, match="one camera or two, got 3"):
        human_pose(prior, 3)


@pytest.mark.parametrize("num_cameras", [1, 2])
def test_jacobians_are_those_of_finite_differences(prior: PosePrior, num_cameras: int) -> None:
    """Backwards, and forwards as the manifold computes it; chains do not see one another."""
    generator = human_pose(prior, num_cameras)
    u, step = draws(generator, 2), 1e-5
    steps = step * torch.eye(generator.dim, dtype=F64)[:, None]
    expected = ((generator.observed(u + steps) - generator.observed(u - steps)) / (2 * step)).movedim(0, -1)
    for chain in range(2):
        backwards = torch.autograd.functional.jacobian(generator.observed, u[chain])
        torch.testing.assert_close(backwards, expected[chain], atol=1e-7, rtol=1e-6)
    noisy = generator.noisy(0.01)
    inputs = torch.cat([u, torch.zeros(2, generator.num_observed, dtype=F64)], -1)
    forwards = Manifold.of(noisy, noisy.observed(inputs)).linearize(inputs)
    basis = torch.eye(noisy.dim, dtype=F64)[:, None].expand(-1, 2, -1)
    columns = forwards.apply(basis).movedim(0, -1)
    torch.testing.assert_close(columns[..., : generator.dim], expected, atol=1e-7, rtol=1e-6)


def test_a_folder_that_lacks_something_says_what(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"lacks joint-angles-sin-cos-vae-decoder/params.npz, .*skeleton.bvh"
    ):
        PosePrior.load(tmp_path)
    write_prior(tmp_path)
    (tmp_path / FILES[1]).write_text("{}")
    with pytest.raises(ValueError, match="for 47 angles the network must have 188 outputs, not 172"):
        PosePrior.load(tmp_path)
    write_prior(tmp_path)
    (tmp_path / FILES[4]).write_text(json.dumps({"waist": 0}))
    with pytest.raises(ValueError, match="there is no 'spine'"):
        PosePrior.load(tmp_path)
