"""Human poses before cameras: learnt joint angles, bone lengths, and the images of the joints."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from experiments.models.bvh import read_bvh
from experiments.models.skeleton import Skeleton
from hmcvi.models.generator import Generator, Variables
from hmcvi.models.inputs import Normal

# joint -> the length of the bone that leads to it; of both sides the same
TRUNK = {"spine": "waist", "head": "spine", "headendsite": "head"}
LIMBS = {
    "shoulder": "mid-spine",
    "arm": "half-shoulder",
    "forearm": "upper-arm",
    "hand": "lower-arm",
    "handendsite": "hand",
    "upleg": "half-hip",
    "leg": "upper-leg",
    "foot": "lower-leg",
    "toebase": "back-foot",
}
BONES = TRUNK | {f"{side}{joint}": bone for side in ("left", "right") for joint, bone in LIMBS.items()}
OBSERVED = tuple(joint for joint in BONES if not joint.endswith("shoulder"))  # 19 joints

FILES = (
    "joint-angles-sin-cos-vae-decoder/params.npz",
    "joint-angles-sin-cos-vae-decoder/fixed_angles.json",
    "joint-angles-sin-cos-vae-decoder/skeleton.bvh",
    "bone-length-log-normal/params.npz",
    "bone-length-log-normal/lengths_order.json",
)
FOCAL = math.exp(2.0)
SIDEWAYS = 0.1  # standard deviation of a camera's x and y, metres
LOG_DEPTH = (1.5, 0.5)  # mean and standard deviation of the logarithm of its z
HALF_BASE = 0.5  # metres from the middle to each of two cameras


@dataclass(frozen=True)
class PosePrior:
    """Distributions of 47 joint angles and 13 bone lengths, learnt from motion capture and anthropometry.

    layers: (W, b) of a network from 30 N(0, 1) codes to the means and log variances of r = (r₁, r₂), the
        angles being those of the vectors (r₁, r₂).
    log_lengths: mean [13] and Cholesky factor [13, 13] of the logarithms of the lengths, in metres.
    """

    skeleton: Skeleton
    layers: tuple[tuple[Tensor, Tensor], ...]
    log_lengths: tuple[Tensor, Tensor]

    @classmethod
    def load(cls, folder: Path) -> PosePrior:
        """Load a folder like `models` of github.com/matt-graham/differentiable-generative-models."""
        if missing := [name for name in FILES if not (folder / name).is_file()]:
            raise ValueError(f"the folder {folder} lacks {', '.join(missing)}")
        network, fixed, hierarchy, bone_lengths, order = (folder / name for name in FILES)
        try:
            places = json.loads(order.read_text())
            bones = {joint: places[bone] for joint, bone in BONES.items()}
            skeleton = Skeleton(read_bvh(hierarchy), OBSERVED, bones, json.loads(fixed.read_text()))
            weights, lengths = _arrays(network), _arrays(bone_lengths)
            layers = [(weights[f"W_{i}"], weights[f"b_{i}"]) for i in range(len(weights) // 2)]
            return cls(skeleton, tuple(layers), (lengths["mean"], torch.linalg.cholesky(lengths["covar"])))
        except KeyError as error:
            raise ValueError(f"in the files of {folder} there is no {error}") from None

    def __post_init__(self) -> None:
        num_angles, made = self.skeleton.num_angles, self.layers[-1][0].shape[-1]
        if made != 4 * num_angles:
            raise ValueError(
                f"for {num_angles} angles the network must have {4 * num_angles} outputs, not {made}"
            )

    def directions(self, code: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """cos and sin of the angles of r = m + e^{k/2} n.  [..., 30], [..., 94] -> [..., 47], [..., 47]"""
        (weight, bias), *hidden, last = self.layers
        h = torch.tanh(code @ weight + bias)
        for weight, bias in hidden:
            h = h + torch.tanh(h @ weight + bias)
        mean, log_variance = (h @ last[0] + last[1]).chunk(2, -1)
        one, other = (mean + (0.5 * log_variance).exp() * noise).chunk(2, -1)
        scale = (one.square() + other.square()).rsqrt()
        return one * scale, other * scale

    def lengths(self, inputs: Tensor) -> Tensor:
        """exp(μ + L u)  [..., 13] -> [..., 13]"""
        mean, root = self.log_lengths
        return torch.exp(mean + inputs @ root.mT)


def camera_position(inputs: Tensor) -> Tensor:
    """x, y ~ N(0, 0.1²), log z ~ N(1.5, 0.5²)  [..., 3] -> [..., 3]"""
    depth = torch.exp(LOG_DEPTH[0] + LOG_DEPTH[1] * inputs[..., 2:])
    return torch.cat([SIDEWAYS * inputs[..., :2], depth], -1)


def shifts(num_cameras: int) -> Tensor:
    """Where cameras are, relative to the middle of them.  [cameras, 3]"""
    if num_cameras not in (1, 2):
        raise ValueError(f"there can be one camera or two, got {num_cameras}")
    offsets = (0.0,) if num_cameras == 1 else (HALF_BASE, -HALF_BASE)
    return torch.tensor([[offset, 0.0, 0.0] for offset in offsets], dtype=torch.float64)


def project(points: Tensor, camera: Tensor) -> Tensor:
    """f · (c_x − p_x, c_y + p_y) / (c_z − p_z): of a camera that faces the skeleton, up staying up.

    points: [..., J, 3], camera: [..., 3] -> [..., 2, J]
    """
    x, y, z = points.unbind(-1)
    right, up, depth = camera[..., None].unbind(-2)
    return FOCAL * torch.stack([right - x, up + y], -2) / (depth - z)[..., None, :]


def human_pose(prior: PosePrior, num_cameras: int = 2) -> Generator:
    """Images of 19 joints in one camera, or in two that are a metre apart.  [Graham 2018, algorithm 12]

    Outputs are the x of all joints, then their y, for one camera after the other.  Latent are `angles`,
    `lengths`, the place of the `camera` and those of the `joints` [..., 19, 3], the hips being at the origin.
    """
    shift = shifts(num_cameras)

    def joints(cos: Tensor, sin: Tensor, lengths: Tensor) -> Tensor:
        places = prior.skeleton.positions(cos, sin, lengths)
        return places[..., prior.skeleton.observed, :]

    def observe(v: Variables) -> Tensor:
        seen = joints(*prior.directions(v["code"], v["angles"]), prior.lengths(v["lengths"]))
        cameras = camera_position(v["camera"])[..., None, :] + shift
        return project(seen[..., None, :, :], cameras).flatten(-3)

    def latent(v: Variables) -> Variables:
        cos, sin = prior.directions(v["code"], v["angles"])
        lengths = prior.lengths(v["lengths"])
        return {
            "angles": torch.atan2(sin, cos),
            "lengths": lengths,
            "camera": camera_position(v["camera"]),
            "joints": joints(cos, sin, lengths),
        }

    num_codes, num_lengths = prior.layers[0][0].shape[0], prior.log_lengths[0].shape[0]
    inputs = {
        "lengths": Normal(num_lengths),
        "code": Normal(num_codes),
        "angles": Normal(2 * prior.skeleton.num_angles),
        "camera": Normal(3),
    }
    return Generator(inputs, observe, latent)


def _arrays(file: Path) -> dict[str, Tensor]:
    """The arrays of an npz file, as float64; objects are not loaded."""
    with np.load(file, allow_pickle=False) as arrays:
        return {name: torch.from_numpy(arrays[name]).to(torch.float64) for name in arrays}
