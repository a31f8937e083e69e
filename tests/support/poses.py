"""A small human: files like those of the learnt prior of poses, with a skeleton of the same joints."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from experiments.models.pose import BONES, FILES

ARM = [
    ("Shoulder", (0.0, 2.0, 0.0), "XYZ"),
    ("Arm", (1.4, 0.0, 0.0), "XYZ"),
    ("ForeArm", (2.0, 0.0, 0.0), "YZX"),
    ("Hand", (1.7, 0.0, 0.0), "XZ"),
    ("End Site", (0.8, 0.0, 0.0), ""),
]
LEG = [
    ("UpLeg", (0.7, 0.0, 0.0), "ZXY"),
    ("Leg", (0.0, -3.3, 0.0), "X"),
    ("Foot", (0.0, -2.8, 0.0), "XYZ"),
    ("ToeBase", (0.0, -0.3, 1.0), "X"),
    ("End Site", (0.0, 0.0, 0.6), ""),
]
NECK = [("Head", (0.0, 3.1, 0.0), "XYZ"), ("End Site", (0.0, 0.9, 0.0), "")]
FIXED = {"leftforearm_z": 0.3, "rightforearm_z": -0.3, "lefttoebase_x": 0.0, "righttoebase_x": 0.0}
NUM_ANGLES, NUM_CODES, WIDTH = 43, 3, 4


def limb(joints: list[Any], side: str = "", sign: int = 1) -> str:
    """A chain of joints as BVH text, each inside the one before."""
    if not joints:
        return ""
    (name, (x, y, z), axes), *rest = joints
    head = name if name == "End Site" else f"JOINT {side}{name}"
    turns = " ".join(f"{axis}rotation" for axis in axes)
    channels = f"CHANNELS {len(axes)} {turns}\n" if axes else ""
    return f"{head}\n{{\nOFFSET {sign * x} {y} {z}\n{channels}{limb(rest, side, sign)}}}\n"


def human() -> str:
    """The skeleton as a BVH file."""
    arms, legs = (limb(part, "Left") + limb(part, "Right", -1) for part in (ARM, LEG))
    position = "Xposition Yposition Zposition"
    spine = f"JOINT Spine\n{{\nOFFSET 0 1 0\nCHANNELS 3 Xrotation Yrotation Zrotation\n{limb(NECK)}{arms}}}\n"
    root = f"OFFSET 0 0 0\nCHANNELS 6 {position} Xrotation Yrotation Zrotation\n{spine}{legs}"
    return f"HIERARCHY\nROOT Hips\n{{\n{root}}}\nMOTION\nFrames: 0\nFrame Time: 0.01\n"


def write_prior(folder: Path) -> Path:
    """All files, with random weights that keep angles near zero."""
    rng = np.random.default_rng(0)
    bones = sorted(set(BONES.values()))
    root = 0.05 * np.tril(rng.normal(size=(len(bones), len(bones)))) + 0.05 * np.eye(len(bones))
    means = np.repeat([1.0, 0.0, -3.0, -3.0], NUM_ANGLES)
    sizes = [NUM_CODES, WIDTH, WIDTH, 4 * NUM_ANGLES]
    weights = {f"W_{i}": 0.3 * rng.normal(size=pair) for i, pair in enumerate(pairwise(sizes))}
    biases = {f"b_{i}": 0.1 * rng.normal(size=size) for i, size in enumerate(sizes[1:])}
    biases["b_2"] += means
    network, fixed, hierarchy, bone_lengths, order = (folder / name for name in FILES)
    for file in (network, bone_lengths):
        file.parent.mkdir(parents=True, exist_ok=True)
    np.savez(network, **weights, **biases)
    np.savez(bone_lengths, mean=rng.normal(-1.2, 0.3, size=len(bones)), covar=root @ root.T)
    fixed.write_text(json.dumps(FIXED))
    hierarchy.write_text(human())
    order.write_text(json.dumps({bone: index for index, bone in enumerate(bones)}))
    return folder
