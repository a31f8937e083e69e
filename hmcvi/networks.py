"""The small networks shared by encoders, decoders, reverse, mass and acceptance models."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TypeVar

import torch
from torch import Tensor, nn

from hmcvi.internal.checks import whole

Conv = TypeVar("Conv", nn.Conv2d, nn.ConvTranspose2d)


def mlp(
    input_dim: int,
    hidden: Sequence[int],
    output_dim: int,
    activation: Callable[[], nn.Module] = nn.ReLU,
) -> MLP:
    """A fully connected network input – hidden – … – output, the last layer linear."""
    for size in hidden:
        whole("hidden", size, 1)
    dims = [input_dim, *hidden]
    layers: list[nn.Module] = []
    for fan_in, fan_out in pairwise(dims):
        layers += [scaled_linear(fan_in, fan_out, GAINS.get(activation, 1.0)), activation()]
    return MLP(*layers, scaled_linear(dims[-1], output_dim))


class MLP(nn.Sequential):
    """Layers on [..., d] by way of [n, d]: a linear layer on more dimensions compiles for one size only."""

    @property
    def head(self) -> nn.Linear:
        """The last layer."""
        return _last(self)

    def forward(self, inputs: Tensor, head: Callable[[Tensor], Tensor] | None = None) -> Tensor:
        """head: in place of the last layer, [n, hidden] -> [n, outputs]"""
        values = inputs.flatten(0, -2) if inputs.ndim > 2 else inputs
        *body, last = self
        for layer in body:
            values = layer(values)
        values = (head or last)(values)
        return values.view(*inputs.shape[:-1], -1) if inputs.ndim > 2 else values


# of weights N(0, gain²/fan_in) that keep the size of gradients through each nonlinearity
GAINS: dict[Callable[[], nn.Module], float] = {nn.ReLU: 2**0.5, nn.Softplus: 2.0}


def scaled_linear(fan_in: int, fan_out: int, gain: float = 1.0) -> nn.Linear:
    """A linear layer with weights N(0, gain²/fan_in) and zero bias."""
    linear = nn.Linear(fan_in, fan_out)
    nn.init.normal_(linear.weight, std=gain * fan_in**-0.5)
    nn.init.zeros_(linear.bias)
    return linear


@torch.no_grad()
def spread_(net: MLP, slope: float) -> MLP:
    """Initialise a network of inputs N(0, I) so that its function has structure everywhere among them.

    Units of the first layer have this slope and bend along lines through points of N(0, 2 I), while those of
    `scaled_linear` all bend at zero.  Later units have mean zero and their usual size.
    """
    first, *others = net
    assert isinstance(first, nn.Linear)
    first.weight.copy_(slope * nn.functional.normalize(torch.randn_like(first.weight)))
    first.bias.copy_(-(first.weight * torch.randn_like(first.weight)).sum(-1) * 2**0.5)
    values = first(torch.randn(2000, first.in_features).to(first.weight))
    for layer in others:
        if isinstance(layer, nn.Linear):
            mean = values.mean(0)
            layer.weight.div_((values - mean).square().mean().sqrt())
            layer.bias.copy_(-layer.weight @ mean)
        values = layer(values)
    return net


def _last(net: nn.Sequential) -> nn.Linear:
    """The last layer, which must be linear."""
    last = net[-1]
    assert isinstance(last, nn.Linear)
    return last


def zero_(linear: nn.Linear) -> nn.Linear:
    """Initialise a layer to zero, so that a learned correction is none before training."""
    nn.init.zeros_(linear.weight)
    nn.init.zeros_(linear.bias)
    return linear


class ConditionalMLP(nn.Module):
    """A network of (inputs, x) whose first layer is W_i · inputs + W_x · x.

    The x part is computed once per pass (by the `context` given) and broadcasts over samples, so that
    K samples of B images never copy the images.  The output layer is initialised to zero.
    """

    def __init__(
        self,
        input_dim: int,
        context_dim: int,
        hidden: Sequence[int],
        output_dim: int,
        activation: Callable[[], nn.Module] = nn.ReLU,
    ) -> None:
        super().__init__()
        if not hidden:
            raise ValueError("a conditional network needs at least one hidden layer, got hidden=()")
        self.from_inputs = nn.Linear(input_dim, hidden[0])
        self.from_context = nn.Linear(context_dim, hidden[0], bias=False) if context_dim else None
        # one fan-in for both halves, as if the layer were a single matrix
        std = GAINS.get(activation, 1.0) * (input_dim + context_dim) ** -0.5
        for half in (self.from_inputs, self.from_context):
            if half is not None:
                nn.init.normal_(half.weight, std=std)
        nn.init.zeros_(self.from_inputs.bias)
        self.body = nn.Sequential(activation(), *mlp(hidden[0], hidden[1:], output_dim, activation))
        zero_(self.output)

    @property
    def output(self) -> nn.Linear:
        """The last layer."""
        return _last(self.body)

    def forward(self, context: Callable[[nn.Module], Tensor], *inputs: Tensor) -> Tensor:
        """inputs: [..., d_i] -> [..., output_dim]; `context` maps a network of x to its output."""
        first = self.from_inputs(torch.cat(inputs, -1))
        if self.from_context is not None:
            first = first + context(self.from_context)
        return self.body(first)


class GaussianEncoder(nn.Module):
    """x ↦ (loc, scale) of q0(z|x) = N(loc, scale²), the network giving the mean and log-variance."""

    def __init__(self, data_dim: int, latent_dim: int, hidden: Sequence[int] = (200, 200)) -> None:
        super().__init__()
        self.net = mlp(data_dim, hidden, 2 * latent_dim)

    @property
    def output(self) -> nn.Linear:
        """The last layer."""
        return _last(self.net)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        loc, log_variance = self.net(x).chunk(2, -1)
        return loc, (0.5 * log_variance).exp()


class GaussianDecoder(nn.Module):
    """z ↦ (loc, scale) of p(x|z) = N(loc, scale²), smooth in z.  scale ≥ min_scale keeps p(x|z) bounded."""

    def __init__(
        self, latent_dim: int, data_dim: int, hidden: Sequence[int] = (200, 200), min_scale: float = 0.05
    ) -> None:
        super().__init__()
        self.net = mlp(latent_dim, hidden, 2 * data_dim, nn.Softplus)
        self.min_scale = min_scale

    def forward(self, z: Tensor, head: Callable[[Tensor], Tensor] | None = None) -> tuple[Tensor, Tensor]:
        """head: in place of the last layer of the network"""
        loc, raw_scale = self.net(z, head).chunk(2, -1)
        return loc.sigmoid(), self.min_scale + nn.functional.softplus(raw_scale - 2)


class ConvEncoder(GaussianEncoder):
    """x ↦ (loc, scale) of q0(z|x), an MLP `hidden` of convolutions that halve the sides of the image.

    shape: (height, width) of x; None: square.  channels: of each convolution.
    """

    def __init__(
        self,
        data_dim: int,
        latent_dim: int,
        hidden: Sequence[int] = (200,),
        shape: tuple[int, int] | None = None,
        channels: Sequence[int] = (16, 32),
    ) -> None:
        image = _image_shape(data_dim, shape)
        height, width = _halved(image, len(channels))
        super().__init__(channels[-1] * height * width, latent_dim, hidden)
        self.shape = image
        layers: list[nn.Module] = []
        for fan_in, fan_out in pairwise([1, *channels]):
            layers += [_scaled(nn.Conv2d(fan_in, fan_out, 3, 2, 1), 9 * fan_in, GAINS[nn.ReLU]), nn.ReLU()]
        self.convolutions = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        features = self.convolutions(x.reshape(-1, 1, *self.shape)).flatten(1)
        return super().forward(features.view(*x.shape[:-1], -1))


class ConvDecoder(nn.Module):
    """z ↦ logits of p(x|z), or (loc, scale) of a gaussian one, smooth in z: an MLP `hidden`, then transposed
    convolutions that double the sides of an image and are cropped to its shape.

    shape: (height, width) of x; None: square.  channels: of the image at each size, the largest size first.
    """

    def __init__(
        self,
        latent_dim: int,
        data_dim: int,
        hidden: Sequence[int] = (200,),
        shape: tuple[int, int] | None = None,
        channels: Sequence[int] = (16, 32),
        likelihood: str = "bernoulli",
        min_scale: float = 0.05,
    ) -> None:
        super().__init__()
        self.shape, self.min_scale = _image_shape(data_dim, shape), min_scale
        self.small = (channels[-1], *_halved(self.shape, len(channels)))
        self.is_gaussian = likelihood == "gaussian"
        self.net = mlp(latent_dim, hidden, math.prod(self.small), nn.Softplus)
        layers: list[nn.Module] = []
        for fan_out, fan_in in pairwise([1 + self.is_gaussian, *channels]):
            # each pixel is reached by a quarter of the kernel
            up = _scaled(nn.ConvTranspose2d(fan_in, fan_out, 4, 2, 1), 4 * fan_in, GAINS[nn.Softplus])
            layers = [nn.Softplus(), up, *layers]
        self.convolutions = nn.Sequential(*layers)

    def forward(self, z: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        height, width = self.shape
        images = self.convolutions(self.net(z).reshape(-1, *self.small))[..., :height, :width]
        maps = images.flatten(2).view(*z.shape[:-1], images.shape[1], height * width).unbind(-2)
        if not self.is_gaussian:
            return maps[0]
        return maps[0].sigmoid(), self.min_scale + nn.functional.softplus(maps[1] - 2)


def _image_shape(data_dim: int, shape: tuple[int, int] | None) -> tuple[int, int]:
    height, width = shape or (math.isqrt(data_dim), math.isqrt(data_dim))
    if height * width != data_dim:
        raise ValueError(f"images of {data_dim} pixels need shape=(height, width), got {shape}")
    return height, width


def _halved(shape: tuple[int, int], times: int) -> tuple[int, int]:
    """The sides divided by 2 ** times, rounded up."""
    height, width = (-(-side // 2**times) for side in shape)
    return height, width


def _scaled(layer: Conv, fan_in: int, gain: float) -> Conv:
    """Weights N(0, gain²/fan_in) and zero bias."""
    nn.init.normal_(layer.weight, std=gain * fan_in**-0.5)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
    return layer


class SomeOutputs(nn.Module):
    """A decoder restricted to its outputs `kept` [N]."""

    def __init__(self, decoder: nn.Module, kept: Tensor) -> None:
        super().__init__()
        self.decoder, self.kept = decoder, kept

    def forward(self, z: Tensor) -> Tensor | tuple[Tensor, ...]:
        output = self.decoder(z)
        if isinstance(output, Tensor):
            return output[..., self.kept]
        return tuple(part[..., self.kept] for part in output)


def decoder_of(decoder: nn.Module, kept: Tensor) -> nn.Module:
    """A copy of the decoder for its outputs `kept` [N] alone; MLPs do not compute the others."""
    decoder = copy.deepcopy(decoder)
    if isinstance(decoder, GaussianDecoder):
        last = _last(decoder.net)
        decoder.net[-1] = _rows(last, torch.cat([kept, last.out_features // 2 + kept]))
    elif isinstance(decoder, nn.Sequential) and isinstance(decoder[-1], nn.Linear):
        decoder[-1] = _rows(decoder[-1], kept)
    else:
        decoder = SomeOutputs(decoder, kept)
    return decoder


def _rows(linear: nn.Linear, kept: Tensor) -> nn.Linear:
    """The layer restricted to some of its outputs."""
    part = nn.Linear(linear.in_features, len(kept), bias=linear.bias is not None).to(linear.weight)
    weights = {name: value[kept] for name, value in linear.state_dict().items()}
    part.load_state_dict(weights)
    return part
