"""Models that misbehave: changed arguments, random values, empty batches, decoders without numbers."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.distributions import Independent, Normal

import hmcvi
from hmcvi.commands import main
from hmcvi.internal.storage import load, save
from hmcvi.kernels import HMC, RandomWalkMetropolis, hamiltonian_chain
from hmcvi.models import VAE
from hmcvi.sampling import SamplingWarning
from tests.support.training_runs import train


def clamping(z: Tensor) -> Tensor:
    """Changes its argument, but not where the chains begin."""
    z.clamp_(-0.5, 0.5)
    return -0.5 * z.square().sum(-1)


def test_positions_changed_later_on_are_noticed() -> None:
    kernel = RandomWalkMetropolis(hmcvi.Density(clamping), 1.0)
    with pytest.raises((ValueError, RuntimeError), match="log_prob changes its argument in place"):
        hmcvi.sample(kernel, torch.zeros(4, 2), 50, progress=False, check=False)


def test_random_densities_are_named() -> None:
    def noisy(z: Tensor) -> Tensor:
        return -0.5 * z.square().sum(-1) + torch.randn(())

    with pytest.warns(SamplingWarning, match="gave other values when it was called again"):
        hmcvi.sample(
            RandomWalkMetropolis(hmcvi.Density(noisy), 1.0), torch.zeros(4, 2), 5, progress=False, check=False
        )


def test_densities_that_depend_on_what_changes_are_named() -> None:
    calls: list[int] = []

    def counting(z: Tensor) -> Tensor:
        calls.append(1)
        return -0.5 * z.square().sum(-1) * (1 + 0.1 * len(calls))

    with pytest.warns(SamplingWarning, match="gave other values"):
        hmcvi.sample(HMC(hmcvi.Density(counting), 0.1, 2), torch.ones(4, 2), 5, progress=False, check=False)


def test_an_exception_for_a_single_input_carries_the_draws() -> None:
    def brittle(z: Tensor) -> Tensor:
        if (z.abs() > 1.5).any():
            raise KeyError("beyond the table")
        return -0.5 * z.square().sum(-1)

    with pytest.raises(KeyError, match="beyond the table") as stop:
        hmcvi.sample(
            RandomWalkMetropolis(hmcvi.Density(brittle), 0.2), torch.zeros(4, 2), 500, progress=False
        )
    assert len(stop.value.draws) > 0  # type: ignore[attr-defined]
    assert stop.value.draws.position.abs().max() <= 1.5  # type: ignore[attr-defined]


def test_empty_batches_are_refused() -> None:
    vae = VAE(16, 2, hamiltonian_chain(2, 16, 2, 2))
    nothing = torch.rand(0, 16)
    for use in (vae.bound, vae.refine, vae.importance_nll, vae.weights):
        with pytest.raises(ValueError, match=r"x holds no data: its shape is \[0, 16\]"):
            use(nothing)
    base = Independent(Normal(torch.zeros(0, 2), 1.0), 1)
    with pytest.raises(ValueError, match="the base has no items"):
        hmcvi.evidence.ais(base, hmcvi.Density(lambda z: -z.square().sum(-1)), 5, 4, progress=False)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(tmp_path_factory.mktemp("runs"), "bernoulli", "vae.yaml", [])


@pytest.mark.filterwarnings("ignore::hmcvi.evidence.EvidenceWarning")
@pytest.mark.parametrize("method", ["iwae", "ais"])
def test_a_decoder_without_numbers_is_an_error_of_evidence(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], method: str
) -> None:
    """Not an exit code of 0 with −inf ± nan."""
    broken = Path(shutil.copytree(run, tmp_path / "run"))
    state = load(broken / "vae.pt")
    for name, value in state["model"].items():
        if name.startswith("decoder"):
            value.fill_(torch.nan)
    save(state, broken / "vae.pt")
    options = ["--images", "4", "--method", method, "--samples", "10", "--temperatures", "3"]
    assert main(["evidence", str(broken), *options]) == 2
    assert "no finite estimate" in capsys.readouterr().err or method == "ais"
    path = broken / f"evidence-{method}.json"
    if path.exists():
        assert json.loads(path.read_text())["log_likelihood"] is None
