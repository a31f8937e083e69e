"""Runs without initial positions, and input that no chain can use."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from hmcvi import Density, SamplingWarning, sample
from hmcvi.kernels import HMC, LinearSlice, RandomWalkMetropolis
from hmcvi.sampling import Draws
from hmcvi.sampling.starts import draw_starts
from tests.support.problems import F64
from tests.support.sampling_runs import assert_same_draws

NORMAL = Density(lambda z: -0.5 * z.square().sum(-1), dim=3)
NAMED = Density(lambda v: -0.5 * (v["a"].square().sum(-1) + v["b"] ** 2), shapes={"a": (2,), "b": ()})


def run(kernel: Any, num_samples: int = 10, **settings: Any) -> Draws:
    return sample(kernel, num_samples=num_samples, progress=False, check=False, **settings)


@pytest.mark.parametrize("density", [NORMAL, NAMED], ids=["dim", "shapes"])
@pytest.mark.parametrize("seed", [0, 7])
def test_starts_are_uniform_and_belong_to_the_seed(density: Density, seed: int) -> None:
    starts = draw_starts(density, 2000, seed)
    assert starts.shape == (2000, 3) and starts.dtype == torch.get_default_dtype()
    assert starts.abs().max() < 2 and starts.abs().max() > 1.99
    error = 4 / 12**0.5 / 2000**0.5
    assert starts.mean(0).abs().max() < 4 * error
    assert torch.equal(starts, draw_starts(density, 2000, seed))
    assert not torch.equal(starts, draw_starts(density, 2000, seed + 1))


def test_starts_are_drawn_again_where_the_density_is_not_finite() -> None:
    starts = draw_starts(Density(lambda z: (z.log() - z).sum(-1), dim=3), 100, 0)
    assert (starts > 0).all()
    sharp = Density(lambda z: z.sqrt().sum(-1) - z.sum(-1), dim=1)  # NaN on one side
    assert (draw_starts(sharp, 100, 0) > 0).all()
    with pytest.raises(ValueError, match=r"not finite wherever in \(−2, 2\) 4 of 4 chains were put"):
        run(HMC(Density(lambda z: (z - 5).log().sum(-1), dim=1), 0.1), num_chains=4)


def test_starts_have_the_dtype_that_log_prob_needs() -> None:
    matrix = torch.eye(3, dtype=F64)
    product = Density(lambda z: -(z @ matrix).square().sum(-1), dim=3)  # raises in single precision
    promoted = Density(lambda z: -(z * matrix[0]).square().sum(-1) - z.square().sum(-1), dim=3)
    assert draw_starts(product, 4, 0).dtype == draw_starts(promoted, 4, 0).dtype == F64


def test_what_a_run_without_init_needs() -> None:
    with pytest.raises(ValueError, match=r"the dimension must be known: build Density\(log_prob, dim=...\)"):
        run(HMC(Density(lambda z: -z.square().sum(-1)), 0.1))
    with pytest.raises(TypeError, match="log_prob must return a tensor, got ndarray"):
        run(HMC(Density(lambda z: -(z.numpy() ** 2).sum(-1), dim=2)))
    with pytest.raises(ValueError, match="init has 3 chains, num_chains is 4"):
        run(HMC(NORMAL, 0.1), init=torch.zeros(3, 3), num_chains=4)
    with pytest.raises(ValueError, match="num_chains must be at least 1"):
        run(HMC(NORMAL, 0.1), num_chains=0)
    with pytest.raises(ValueError, match="fill 3 dimensions, dim is 4"):
        Density(lambda v: v["a"].sum(-1), shapes={"a": (3,)}, dim=4)


def test_without_init_there_are_sixteen_chains_and_a_warmup() -> None:
    draws = run(HMC(NAMED, 0.1))
    assert draws["a"].shape == (16, 10, 2) and draws.start.num_warmup == 500
    assert run(HMC(NAMED, 0.1, 3), init=torch.zeros(4, 3)).start.num_warmup == 0
    for kernel in (RandomWalkMetropolis(NORMAL, 0.5), LinearSlice(NORMAL, 1.0)):
        assert run(kernel, num_chains=3, num_warmup=5).position.shape == (3, 10, 3)


def test_a_run_without_init_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"num_chains": 4, "num_warmup": 60, "seed": 3}
    whole = run(HMC(NORMAL, 0.1), 12, **settings)
    run(HMC(NORMAL, 0.1), 5, checkpoint=tmp_path / "run.pt", **settings)
    assert_same_draws(run(HMC(NORMAL, 0.1), 12, checkpoint=tmp_path / "run.pt", **settings), whole)


def test_files_of_releases_that_tuned_no_jitter_go_on_with_theirs(tmp_path: Path) -> None:
    path = tmp_path / "run.pt"
    run(HMC(NORMAL, 0.1), 5, num_warmup=60).save(path)
    content = torch.load(path, weights_only=True)
    assert 0 < content["end"]["settings"]["settings"].pop("jitter") <= 1
    torch.save(content, path)
    old = Draws.load(path, HMC(NORMAL, 0.1))
    assert old.kernel.jitter == 1.0 and len(old.resume(3, progress=False)) == 8  # type: ignore[union-attr]


def changing(z: Tensor) -> Tensor:
    z += 1
    return -0.5 * z.square().sum(-1)


def assigning(v: dict[str, Tensor]) -> Tensor:
    v["a"][..., 0] = 0.0
    return -0.5 * v["a"].square().sum(-1)


@pytest.mark.parametrize(
    "density",
    [Density(changing, dim=3), Density(assigning, shapes={"a": (3,)})],
    ids=["flat", "named"],
)
def test_a_log_prob_that_changes_its_argument_is_refused(density: Density) -> None:
    for kernel in (HMC(density, 0.1), RandomWalkMetropolis(density, 0.1)):
        with pytest.raises(ValueError, match="log_prob changes its argument in place"):
            run(kernel, init=torch.ones(4, 3))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_finishes_with_its_diagnostics(dtype: torch.dtype) -> None:
    start = torch.randn(16, 3, generator=torch.Generator().manual_seed(0)).to(dtype)
    draws = run(HMC(NORMAL, 0.1), 200, init=start, num_warmup=150)
    assert draws.position.dtype == dtype
    assert 0.8 < draws.position.double().std() < 1.2
    assert draws.summary()["r_hat"].max() < 1.1 and isinstance(draws.problems(), list)


def test_chains_that_never_move_are_named() -> None:
    """The third chain is the only one whose density has a single point."""

    def log_prob(z: Tensor, stuck: Tensor) -> Tensor:
        return torch.where(stuck & (z != 0).any(-1), -torch.inf, -0.5 * z.square().sum(-1))

    stuck = torch.arange(8) == 2
    kernel = RandomWalkMetropolis(Density(log_prob, stuck), 0.5)
    with pytest.warns(SamplingWarning, match="chain 2 of 8 never moved"):
        sample(kernel, torch.zeros(8, 2), 200, progress=False)


def test_an_error_of_log_prob_loses_nothing_that_was_drawn(tmp_path: Path) -> None:
    calls = 0

    def log_prob(z: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        if calls == 60:
            raise ZeroDivisionError("the user's own")
        return -0.5 * z.square().sum(-1)

    path, kernel = tmp_path / "run.pt", HMC(Density(log_prob), 0.1, 1)
    with pytest.raises(ZeroDivisionError, match="the user's own"):
        run(kernel, 100, init=torch.zeros(4, 3), checkpoint=path)
    assert 40 < len(Draws.load(path)) < 60
    calls = 1000
    assert len(run(kernel, 100, init=torch.zeros(4, 3), checkpoint=path)) == 100


def test_starts_are_found_in_a_small_part_of_the_cube() -> None:
    """A corner that one draw in 243 hits: three chains of ten find none by themselves in so many tries."""
    corner = Density(lambda z: (z - 2 / 3).log().sum(-1) - z.sum(-1), dim=5)
    starts = draw_starts(corner, 16, 0)
    assert (starts > 2 / 3).all() and len(starts.unique(dim=0)) == 16
