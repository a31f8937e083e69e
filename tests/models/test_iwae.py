"""Weights of importance weighted autoencoders from files of arrays."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from hmcvi.models import load_iwae_npz
from tests.support.iwae_weights import write_weights


def test_the_networks_are_those_of_the_files(tmp_path: Path) -> None:
    n = write_weights(tmp_path)
    vae = load_iwae_npz(tmp_path)
    z, x = np.random.default_rng(1).normal(size=(2, 3)), np.ones((2, 8))
    decoder = n["decoder"]
    logits = np.tanh(z @ decoder["W0"] + decoder["b0"]) @ decoder["W2"] + decoder["b2"]
    found = vae.decode(torch.tensor(z, dtype=torch.float32))
    np.testing.assert_allclose(found, 1 / (1 + np.exp(-logits)), rtol=1e-5)
    hidden = np.tanh(x @ n["encoder_h"]["W0"] + n["encoder_h"]["b0"])
    base = vae.encode(torch.tensor(x, dtype=torch.float32))
    np.testing.assert_allclose(
        base.mean, hidden @ n["encoder_mean"]["W0"] + n["encoder_mean"]["b0"], rtol=1e-4
    )
    log_scale = hidden @ n["encoder_std"]["W0"] + n["encoder_std"]["b0"]
    np.testing.assert_allclose(base.stddev, np.exp(log_scale), rtol=1e-4)
    assert (vae.data_dim, vae.latent_dim) == (8, 3)


def test_missing_and_damaged_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no IWAE weights.*decoder_params\.npz is missing"):
        load_iwae_npz(tmp_path)
    write_weights(tmp_path)
    (tmp_path / "encoder_std_params.npz").write_bytes(b"PK\x03\x04 nothing")
    with pytest.raises(ValueError, match=r"encoder_std_params\.npz is damaged"):
        load_iwae_npz(tmp_path)
    np.savez(tmp_path / "encoder_std_params.npz", layers=np.array([{"a": 1}], dtype=object))
    with pytest.raises(ValueError, match="damaged"):  # it would have to be unpickled
        load_iwae_npz(tmp_path)
