"""Encoders and decoders of one's own, and the convolutional ones."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from torch import nn

from hmcvi.chain import Chain
from hmcvi.kernels import hamiltonian_chain
from hmcvi.models import VAE
from hmcvi.networks import ConvDecoder, ConvEncoder, GaussianEncoder, decoder_of
from hmcvi.training import Run
from hmcvi.training.build import build_model
from hmcvi.training.config import ConfigError, load_config
from tests.training.conftest import run_in_process

SHAPES = [(28, 28), (8, 8), (7, 5), (1, 10), (3, 1), (9, 16)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("likelihood", ["bernoulli", "gaussian"])
def test_convolutions_fit_every_shape(shape: tuple[int, int], likelihood: str) -> None:
    torch.manual_seed(0)
    dim = math.prod(shape)
    encoder = ConvEncoder(dim, 3, (8,), shape, channels=(4, 6))
    decoder = ConvDecoder(3, dim, (8,), shape, (4, 6), likelihood)
    for before in [(), (5,), (2, 5)]:
        loc, scale = encoder(torch.rand(*before, dim))
        assert loc.shape == scale.shape == (*before, 3) and (scale > 0).all()
        output = decoder(torch.randn(*before, 3))
        for part in output if likelihood == "gaussian" else (output,):
            assert part.shape == (*before, dim)
    kept = torch.tensor([0, dim - 1])
    z = torch.randn(5, 3)
    whole, part = decoder(z), decoder_of(decoder, kept)(z)
    if likelihood == "bernoulli":
        assert torch.equal(part, whole[:, kept])


def test_convolutions_treat_images_one_by_one() -> None:
    """A batch is its images, and a pixel of the decoder reaches no further than its kernels do."""
    torch.manual_seed(1)
    encoder, decoder = ConvEncoder(63, 2, shape=(9, 7)).double(), ConvDecoder(2, 63, shape=(9, 7)).double()
    x, z = torch.rand(4, 63, dtype=torch.float64), torch.randn(2, 4, 2, dtype=torch.float64)
    torch.testing.assert_close(encoder(x)[0][2], encoder(x[2])[0])
    torch.testing.assert_close(decoder(z)[1, 3], decoder(z[1, 3]))
    spot = torch.zeros(9, 7, dtype=torch.float64)
    spot[8, 6] = 1.0
    moved = encoder.convolutions(spot[None, None]) - encoder.convolutions(torch.zeros_like(spot)[None, None])
    assert moved[0, :, 0, 0].abs().max() == 0 and moved[0, :, -1, -1].abs().max() > 0


def test_gradients_of_a_chain_through_convolutions() -> None:
    """Forces are differentiated through transposed convolutions, twice."""
    torch.manual_seed(2)
    decoder = ConvDecoder(2, 12, (4,), (4, 3), (2, 3)).double()
    vae = VAE(12, 2, hamiltonian_chain(2, 12, 1, 2, hidden=(4,)), decoder=decoder, hidden=(4,)).double()
    x = torch.rand(2, 12, dtype=torch.float64).round()

    def bound(weight: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(3)
        return torch.func.functional_call(vae, {"decoder.convolutions.1.weight": weight}, (x,))

    vae.forward = lambda x: vae.bound(x).sum()  # type: ignore[method-assign]
    weight = decoder.convolutions[1].weight.detach().clone().requires_grad_()
    assert torch.autograd.gradcheck(bound, (weight,))


def test_images_need_a_shape() -> None:
    with pytest.raises(ValueError, match=r"images of 10 pixels need shape=\(height, width\), got None"):
        ConvEncoder(10, 2)
    with pytest.raises(ValueError, match=r"got \(3, 3\)"):
        ConvDecoder(2, 10, shape=(3, 3))


def test_weights_start_as_large_as_those_of_an_mlp() -> None:
    torch.manual_seed(4)
    encoder, decoder = ConvEncoder(784, 10), ConvDecoder(10, 784)
    loc, scale = encoder(torch.rand(50, 784).round())
    logits = decoder(torch.randn(50, 10))
    assert 0.1 < loc.std() < 3 and 0.2 < scale.median() < 5 and 0.1 < logits.std() < 5


@pytest.mark.parametrize("likelihood", ["bernoulli", "gaussian"])
def test_a_run_with_convolutions(small: list[str], likelihood: str) -> None:
    binarize = "none" if likelihood == "gaussian" else "dynamic"
    settings = ["model.network=conv", f"model.likelihood={likelihood}", f"data.binarize={binarize}"]
    folder = run_in_process([*small, *settings, "train.output_lr=0.5", "data.limit=400"])
    summary = json.loads((folder / "summary.json").read_text())
    assert all(math.isfinite(stage["bound"]) for stage in summary["stages"])
    model, images = Run.open(folder).trained()
    assert isinstance(model.encoder, ConvEncoder) and isinstance(model.decoder, ConvDecoder)
    assert len(images.train) == 400


NETWORKS = """
import torch
from torch import nn
from hmcvi.networks import GaussianEncoder

class Encoder(GaussianEncoder):
    pass

class Decoder(nn.Sequential):
    def __init__(self, latent_dim, data_dim):
        super().__init__(nn.Linear(latent_dim, 7), nn.BatchNorm1d(7), nn.Tanh(), nn.Linear(7, data_dim))
    def forward(self, z):
        return super().forward(z.reshape(-1, z.shape[-1])).view(*z.shape[:-1], -1)

class Flat(nn.Linear):
    def forward(self, z):
        return super().forward(z).flatten(0, 1)

class Negative(GaussianEncoder):
    def forward(self, x):
        return super().forward(x)[0], -super().forward(x)[1]

class Detached(nn.Linear):
    def forward(self, z):
        return super().forward(z.detach())

class Fails(nn.Linear):
    def forward(self, z):
        raise RuntimeError("of its own")

def takes_nothing():
    return nn.Linear(1, 1)

def not_a_network(*dims):
    return 3
"""


@pytest.fixture
def networks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "hmcvi_test_networks.py").write_text(NETWORKS)
    monkeypatch.chdir(tmp_path)
    return "hmcvi_test_networks"


def test_a_run_with_own_networks(small: list[str], networks: str) -> None:
    own = [f"model.encoder={networks}:Encoder", f"model.decoder={networks}:Decoder"]
    folder = run_in_process([*small, *own, "model.hidden=[9]"])
    model, _ = Run.open(folder).trained()
    assert type(model.encoder).__name__ == "Encoder" and type(model.decoder).__name__ == "Decoder"
    assert isinstance(model.encoder, GaussianEncoder)
    first = model.encoder.net[0]
    assert isinstance(first, nn.Linear) and first.out_features == 9


def test_a_trial_leaves_no_trace(networks: str) -> None:
    """Random numbers, modes and running statistics are as if it had not been."""
    config = load_config(overrides=[f"model.decoder={networks}:Decoder"])
    torch.manual_seed(0)
    model = build_model(config, 64, Chain())
    after = torch.rand(3)
    normalisation = model.decoder[1]  # type: ignore[index]
    assert model.training and normalisation.training and normalisation.num_batches_tracked == 0
    torch.manual_seed(0)
    nn.Linear(2, 7), nn.Linear(7, 64), GaussianEncoder(64, 2)
    assert torch.equal(torch.rand(3), after)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("encoder={}:Encodr", r"model\.encoder=\S+:Encodr: .* did you mean 'Encoder'"),
        ("encoder=nowhere:Encoder", "cannot import 'nowhere'"),
        ("encoder={}:Decoder", r"must map \[3, 64\] to \(loc, scale\), each \[3, 2\], .*; got \[3, 2\]"),
        ("encoder={}:Negative", "with positive scales; got -"),
        ("decoder={}:Encoder", r"must map \[2, 3, 2\] to logits \[2, 3, 64\], .*; got \[2, 3, 64\], \[2"),
        ("decoder={}:Flat", r"got \[6, 64\]"),
        ("decoder={}:Detached", "it cuts the graph"),
        ("decoder={}:Fails", r"it failed \(RuntimeError: of its own, hmcvi_test_networks.py line \d+\)"),
        ("decoder={}:takes_nothing", r"cannot be built as Class\(2, 64\) \(TypeError"),
        ("decoder={}:not_a_network", r"must make a torch\.nn\.Module with parameters, got int"),
    ],
)
def test_bad_networks(networks: str, setting: str, message: str) -> None:
    config = load_config(overrides=[f"model.{setting.format(networks)}"])
    with pytest.raises(ConfigError, match=message) as error:
        build_model(config, 64, Chain())
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["model.encoder=Encoder"], "must be package.module:Class, got 'Encoder'"),
        (["model.encoder=a:b", "model.slope=2"], "model.slope=2 is for the encoder and decoder of"),
        (["model.network=conv", "model.slope=2"], "set it to null"),
        (["model.network=rnn"], "mlp, conv, got 'rnn'"),
        (["data.limit=0"], "at least 1, got 0"),
        (["data.size=0"], "number of pixels"),
        (["data.size=[1,2,3]"], r"\[height,width\] or null, got \[1, 2, 3\]"),
        (["data.size=large"], "got large"),
    ],
)
def test_bad_settings(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_config(overrides=overrides)
