"""Biovision hierarchies: skeletons as trees of joints, in files of words."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

AXES = "xyz"


@dataclass(frozen=True)
class Joint:
    """What hangs on it is turned by R = R_{axes[0]} R_{axes[1]} … .

    name: in lower case; an end site has that of its joint, and "endsite".  offset: from the parent at rest.
    """

    name: str
    parent: int  # index; −1 of the root
    offset: tuple[float, float, float]
    axes: str = ""  # letters of x, y, z

    @property
    def channels(self) -> tuple[str, ...]:
        """Names of its angles, one for each axis."""
        return tuple(f"{self.name}_{axis}" for axis in self.axes)


def read_bvh(path: Path) -> list[Joint]:
    """The hierarchy, parents before their children; the motion that follows in the file is left alone."""
    joints: list[Joint] = []
    words = iter(path.read_text().split())
    try:
        _expect(next(words), "HIERARCHY")
        _expect(next(words), "ROOT")
        _read_joint(words, joints, next(words).lower(), parent=-1)
    except StopIteration:
        raise ValueError(f"{path} ends within its hierarchy") from None
    except ValueError as error:
        raise ValueError(f"{path} is no BVH file: {error}") from None
    return joints


def _read_joint(words: Iterator[str], joints: list[Joint], name: str, parent: int) -> None:
    """From the brace that opens it to the one that closes it."""
    index, offset, axes = len(joints), (0.0, 0.0, 0.0), ""
    joints.append(Joint(name, parent, offset))  # keeps its place before its children
    _expect(next(words), "{")
    while (word := next(words)) != "}":
        if word == "OFFSET":
            offset = float(next(words)), float(next(words)), float(next(words))
        elif word == "CHANNELS":
            axes = "".join(_axis(next(words)) for _ in range(int(next(words))))
        elif word == "JOINT":
            _read_joint(words, joints, next(words).lower(), index)
        elif word == "End":
            _expect(next(words), "Site")
            _read_joint(words, joints, f"{name}endsite", index)
        else:
            raise ValueError(f"{word!r} within joint {name!r}")
    joints[index] = Joint(name, parent, offset, axes)


def _expect(word: str, expected: str) -> None:
    if word != expected:
        raise ValueError(f"{expected!r} was expected, not {word!r}")


def _axis(channel: str) -> str:
    """Of a rotation, such as Xrotation; none of a position."""
    axis, kind = channel[:1].lower(), channel[1:]
    if axis not in AXES or kind not in ("rotation", "position"):
        raise ValueError(f"unknown channel {channel!r}")
    return axis if kind == "rotation" else ""
