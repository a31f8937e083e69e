"""Skeletons: read as written, and joints where rotations put them."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.spatial.transform import Rotation

from experiments.models.bvh import Joint, read_bvh
from experiments.models.skeleton import Skeleton
from tests.support.poses import human
from tests.support.problems import F64

ELBOW = [
    Joint("root", -1, (0.0, 0.0, 0.0), "z"),
    Joint("elbow", 0, (2.0, 0.0, 0.0), "z"),
    Joint("elbowendsite", 1, (5.0, 0.0, 0.0)),
]
TREE = [
    Joint("root", -1, (0.0, 0.0, 0.0), "xyz"),
    Joint("a", 0, (1.0, 2.0, -1.0), "yzx"),
    Joint("ghost", 1, (3.0, 0.0, 0.0), "xyz"),
    Joint("b", 0, (0.0, -1.0, 0.0), "zy"),
    Joint("c", 1, (0.0, 0.0, 0.0), "xzy"),
    Joint("cendsite", 4, (0.0, 0.0, 4.0)),
    Joint("d", 3, (-1.0, 1.0, 0.0), "x"),
    Joint("dendsite", 6, (0.0, 1.0, 1.0)),
]
LENGTHS = {"a": 0, "ghost": 1, "b": 1, "cendsite": 2, "d": 0, "dendsite": 2}


def test_an_arm_in_the_plane_is_the_textbook_one() -> None:
    """Two links: l₁ e^{ia} + l₂ e^{i(a+b)}."""
    skeleton = Skeleton(ELBOW, ["elbowendsite"], {"elbow": 0, "elbowendsite": 1}, {})
    angles = torch.tensor([0.3, 1.1], dtype=F64)
    places = skeleton.positions(angles.cos(), angles.sin(), torch.tensor([0.7, 0.4], dtype=F64))
    elbow = 0.7 * math.cos(0.3), 0.7 * math.sin(0.3)
    hand = elbow[0] + 0.4 * math.cos(1.4), elbow[1] + 0.4 * math.sin(1.4)
    torch.testing.assert_close(places, torch.tensor([(0, 0, 0), (*elbow, 0), (*hand, 0)], dtype=F64))
    assert skeleton.observed.tolist() == [2] and skeleton.links == [(0, 1), (1, 2)]


def test_joints_are_where_a_recursion_over_rotations_puts_them() -> None:
    """Each joint on its own by scipy's rotations, of a tree with mixed axes and a fixed angle."""
    fixed = {"a_z": 0.8, "d_x": -0.4}
    seen = ["dendsite", "b", "cendsite"]
    skeleton = Skeleton(TREE, seen, LENGTHS, fixed)
    rng = np.random.default_rng(0)
    free = [c for joint in TREE for c in joint.channels if c not in fixed]
    assert skeleton.num_angles == len(free) == 13
    angles, lengths = rng.uniform(-3, 3, size=(2, 3, 13)), rng.uniform(0.5, 2, size=(2, 3, 3))
    tensors = (torch.from_numpy(array) for array in (np.cos(angles), np.sin(angles), lengths))
    found = skeleton.positions(*tensors)
    kept = [joint for joint in TREE if joint.name != "ghost"]
    assert found.shape == (2, 3, len(kept), 3)
    for chain in np.ndindex(2, 3):
        values = dict(zip(free, angles[chain], strict=True)) | fixed
        places: dict[int, np.ndarray] = {-1: np.zeros(3)}
        frames: dict[int, np.ndarray] = {-1: np.eye(3)}
        for index, joint in enumerate(TREE):
            offset, length = np.array(joint.offset), lengths[chain][LENGTHS.get(joint.name, 0)]
            bone = offset / (np.linalg.norm(offset) or 1) * length
            places[index] = places[joint.parent] + frames[joint.parent] @ bone
            turns = [Rotation.from_euler(c[-1], values[c]).as_matrix() for c in joint.channels]
            frames[index] = np.linalg.multi_dot([np.eye(3), frames[joint.parent], *turns])
        expected = np.stack([places[TREE.index(joint)] for joint in kept])
        np.testing.assert_allclose(found[chain], expected, atol=1e-13)
    assert [kept[i].name for i in skeleton.observed] == ["b", "cendsite", "dendsite"]


def test_a_skeleton_refuses_what_it_does_not_have() -> None:
    with pytest.raises(ValueError, match="no joints tail"):
        Skeleton(ELBOW, ["elbow", "tail"], {"elbow": 0}, {})
    with pytest.raises(ValueError, match="no angles elbow_x"):
        Skeleton(ELBOW, ["elbow"], {"elbow": 0}, {"elbow_x": 0.0})
    with pytest.raises(ValueError, match="leads to elbow"):
        Skeleton(ELBOW, ["elbow"], {}, {})


def test_a_hierarchy_is_read_as_written(tmp_path: Path) -> None:
    path = tmp_path / "human.bvh"
    path.write_text(human())
    joints = read_bvh(path)
    names = [joint.name for joint in joints]
    assert len(joints) == 2 + 2 + 4 * 5
    assert joints[0] == Joint("hips", -1, (0.0, 0.0, 0.0), "xyz")
    assert joints[names.index("leftforearm")] == Joint("leftforearm", 5, (2.0, 0.0, 0.0), "yzx")
    assert joints[names.index("righthandendsite")].offset == (-0.8, 0.0, 0.0)
    assert all(joint.parent < index for index, joint in enumerate(joints))
    tree = {joint.name: names[joint.parent] for joint in joints[1:]}
    assert tree["rightshoulder"] == tree["head"] == "spine" and tree["rightupleg"] == "hips"
    assert tree["righthandendsite"] == "righthand"
    assert joints[names.index("lefthand")].channels == ("lefthand_x", "lefthand_z")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("MOTION", "'HIERARCHY' was expected"),
        ("HIERARCHY ROOT a { OFFSET 0 0 0", "ends within"),
        ("HIERARCHY ROOT a { OFFSET 0 x 0 }", "'x'"),
        ("HIERARCHY ROOT a { CHANNELS 1 Wrotation }", "unknown channel 'Wrotation'"),
        ("HIERARCHY ROOT a { BONE b { } }", "'BONE' within joint 'a'"),
        ("HIERARCHY ROOT a { End Cap { } }", "'Site' was expected"),
    ],
)
def test_broken_files_say_where(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "broken.bvh"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        read_bvh(path)
