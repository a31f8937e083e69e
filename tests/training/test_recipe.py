"""What sharp posteriors need: decoders that bend everywhere, careful output layers, deformed images."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from hmcvi.chain import Chain
from hmcvi.data import load_images
from hmcvi.networks import MLP, GaussianDecoder, mlp, spread_
from hmcvi.training.build import build_model, build_objective
from hmcvi.training.config import Config, load_config
from hmcvi.training.gradients import constant
from hmcvi.training.loop import Trainer
from hmcvi.training.optimizers import build_optimizers
from hmcvi.training.state import Stage
from tests.support.statistics import Z
from tests.training.conftest import SMALL

WIDTH = 2000


def small(*overrides: str) -> Config:
    return load_config(overrides=[*SMALL, *overrides])


def test_units_bend_all_over_the_inputs() -> None:
    """Along its direction each unit bends at N(0, 2), and has the slope asked for."""
    torch.manual_seed(1)
    first = spread_(mlp(2, [WIDTH, 5], 3, nn.Softplus), slope=6.0)[0]
    assert isinstance(first, nn.Linear)
    torch.testing.assert_close(first.weight.norm(dim=-1), torch.full((WIDTH,), 6.0))
    bends = (-first.bias / 6).double()
    assert abs(bends.mean()) < Z * (2 / WIDTH) ** 0.5
    assert abs(bends.var() - 2) < Z * 2 * (2 / WIDTH) ** 0.5


@pytest.mark.slow
def test_the_units_behind_start_at_their_usual_size() -> None:
    """Means zero, standard deviations those of the gains: 2 before a softplus, 1 for the output."""
    torch.manual_seed(2)
    net = spread_(mlp(2, [WIDTH, WIDTH], WIDTH, nn.Softplus), slope=6.0)
    values = torch.randn(5_000, 2)
    sizes = {}
    with torch.no_grad():
        for place, layer in enumerate(net):
            values = layer(values)
            sizes[place] = (
                values.mean(0).square().mean().sqrt().item(),
                values.std(0).square().mean().sqrt(),
            )
    for place, expected in ((2, 2.0), (4, 1.0)):
        mean, std = sizes[place]
        assert mean < 0.1 * expected  # 2000 points place it
        assert std.item() == pytest.approx(expected, rel=0.15)


@pytest.mark.parametrize("likelihood", ["bernoulli", "gaussian"])
def test_a_slope_sharpens_decoder_and_encoder(likelihood: str) -> None:
    binarize = "none" if likelihood == "gaussian" else "dynamic"
    config = small("model.slope=4", f"model.likelihood={likelihood}", f"data.binarize={binarize}")
    vae = build_model(config, 64, Chain())
    net = vae.decoder.net if isinstance(vae.decoder, GaussianDecoder) else vae.decoder
    assert isinstance(net, MLP) and isinstance(net[0], nn.Linear)
    torch.testing.assert_close(net[0].weight.norm(dim=-1), torch.full((16,), 4.0))
    _, scale = vae.encoder(torch.zeros(1, 64))
    torch.testing.assert_close(scale, torch.full((1, 2), 0.25))


def test_pixels_have_no_less_noise_than_asked_for() -> None:
    config = small("model.min_scale=0.4", "model.likelihood=gaussian", "data.binarize=none")
    vae = build_model(config, 64, Chain())
    with torch.no_grad():
        vae.decoder.net.head.bias.fill_(-50.0)  # as little as it can learn
        _, scale = vae.decoder(torch.randn(3, 2))
    torch.testing.assert_close(scale, torch.full((3, 64), 0.4))


@pytest.mark.parametrize("name", ["adam", "muon"])
def test_the_output_layer_takes_smaller_steps(name: str) -> None:
    moved = {}
    for factor in (1.0, 0.1):
        torch.manual_seed(3)
        net = mlp(4, [5], 3)
        before = [p.detach().clone() for p in net.parameters()]
        optimizers = build_optimizers(net, name, 1e-2, output=net[-1], output_lr=factor)
        net(torch.randn(10, 4)).square().sum().backward()
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = 1e-2 * group["factor"]
            optimizer.step()
        moved[factor] = [p.detach() - old for p, old in zip(net.parameters(), before, strict=True)]
    for place, (plain, careful) in enumerate(zip(moved[1.0], moved[0.1], strict=True)):
        torch.testing.assert_close(careful, (0.1 if place >= 2 else 1.0) * plain, rtol=1e-4, atol=1e-7)


def test_deformed_images_teach_the_encoder_alone() -> None:
    images = load_images("digits")
    learned = {}
    for strength in (0, 1):
        config = small(f"train.deform={strength}")
        torch.manual_seed(4)
        model = build_model(config, images.train.shape[-1], Chain())
        Trainer(config, Stage("vae", 1, 1e-3, 0), model, build_objective(config), images).train_batch()
        learned[strength] = model
    for part in ("encoder", "decoder"):
        one, other = (getattr(learned[strength], part).parameters() for strength in (0, 1))
        same = all(torch.equal(a.grad, b.grad) for a, b in zip(one, other, strict=True))
        assert same == (part == "decoder")


def test_training_applies_the_factor() -> None:
    config, images = small("train.output_lr=0.1", "train.optimizer=muon"), load_images("digits")
    model = build_model(config, images.train.shape[-1], Chain())
    trainer = Trainer(config, Stage("vae", 1, 1e-3, 0), model, build_objective(config), images)
    trainer.train_batch()
    rates = [[group["lr"] for group in optimizer.param_groups] for optimizer in trainer.optimizers]
    assert len(rates) == 2 and rates[0][0] > 0
    for hidden, output in rates:
        assert output == pytest.approx(0.1 * hidden)


def test_constant_modules_stay_as_they_were() -> None:
    net = mlp(2, [3], 1)
    net[0].requires_grad_(False)
    with pytest.raises(RuntimeError, match="does not require grad"), constant(net):
        net(torch.ones(1, 2)).sum().backward()
    assert [p.requires_grad for p in net.parameters()] == [False, False, True, True]
