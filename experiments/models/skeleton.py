"""Skeletons: where the joints are, given angles and the lengths of bones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from experiments.models.bvh import AXES, Joint

Columns = tuple[Tensor, ...]  # of rotations: where each of three axes points, [3, joints, ...]


@dataclass(frozen=True)
class _Group:
    """Joints that hang on joints of one group and turn about the same axes, moved at once."""

    joints: tuple[int, ...]
    source: int  # the group they hang on
    parents: Tensor  # places in that group  [joints]
    directions: Tensor  # of the bones that lead to them  [3, joints]
    bones: Tensor  # indices of the lengths of these bones  [joints]
    axes: str  # none where nothing hangs on the joints
    channels: tuple[Tensor, ...]  # for each axis indices of the angles  [joints]


class Skeleton:
    """The `observed` joints and those they hang on, the root being at the origin.

    joints: parents before their children.
    bones: {joint: index of the length of the bone that leads to it}; joints at their parent need none.
    fixed: {channel: angle}; the angles of the other channels, in their order, are the variables.

    After which `observed` [O] are places of the observed joints, in the order of all, among the J that are
    kept, and `links` the pairs of kept joints that a bone joins, parent first.
    """

    def __init__(
        self,
        joints: Sequence[Joint],
        observed: Iterable[str],
        bones: Mapping[str, int],
        fixed: Mapping[str, float],
    ) -> None:
        names = [joint.name for joint in joints]
        channels = [channel for joint in joints for channel in joint.channels]
        for what, asked, known in (("joints", observed, names), ("angles", fixed, channels)):
            if unknown := set(asked) - set(known):
                raise ValueError(f"the skeleton has no {what} {', '.join(sorted(unknown))}")
        free = [channel for channel in channels if channel not in fixed]
        self.num_angles = len(free)
        self._fixed = torch.tensor(list(fixed.values()), dtype=torch.float64)
        places = {channel: place for place, channel in enumerate([*free, *fixed])}
        seen = sorted(names.index(name) for name in observed)
        kept = _with_ancestors(joints, seen)
        self._groups = _groups(joints, kept, bones, places)
        order = [index for group in self._groups for index in group.joints]
        self._order = torch.tensor([order.index(index) for index in kept])
        self.observed = torch.tensor([kept.index(index) for index in seen])
        self.links = [(kept.index(joints[index].parent), place) for place, index in enumerate(kept) if place]

    def positions(self, cos: Tensor, sin: Tensor, lengths: Tensor) -> Tensor:
        """G_j = G_parent R_j,  p_j = p_parent + length_j G_parent direction_j.

        cos, sin: of the angles [..., A]; lengths: [..., B] -> [..., J, 3]
        """
        batch = (1,) * (cos.ndim - 1)
        cos, sin = _with_constants(cos, self._fixed.cos()), _with_constants(sin, self._fixed.sin())
        lengths = lengths.movedim(-1, 0)
        axes, origin = torch.eye(3).to(cos).view(3, 3, 1, *batch), cos.new_zeros(3, 1, *batch)
        frames: list[tuple[Columns, Tensor]] = [(axes.unbind(), origin)]
        for group in self._groups:
            columns = tuple(column[:, group.parents] for column in frames[group.source][0])
            place, length = frames[group.source][1][:, group.parents], lengths[group.bones]
            for axis in group.directions.any(1).nonzero()[:, 0].tolist():
                direction = group.directions[axis].to(length).view(-1, *batch)
                place = place + columns[axis] * (direction * length)
            for axis, channel in zip(group.axes, group.channels, strict=True):
                columns = _turned(columns, AXES.index(axis), cos[channel], sin[channel])
            frames.append((columns, place))
        places = torch.cat([place.expand(3, -1, *cos.shape[1:]) for _, place in frames[1:]], 1)
        return places[:, self._order].movedim((0, 1), (-1, -2))


def _with_constants(free: Tensor, fixed: Tensor) -> Tensor:
    """[..., A], [F] -> [A + F, ...]"""
    free = free.movedim(-1, 0)
    fixed = fixed.to(free).view(-1, *(1,) * (free.ndim - 1)).expand(-1, *free.shape[1:])
    return torch.cat([free, fixed])


def _turned(columns: Columns, axis: int, cos: Tensor, sin: Tensor) -> Columns:
    """G R with R = (1, 0, 0; 0, cos, −sin; 0, sin, cos) about x, and so on in a circle."""
    new, (one, other) = list(columns), ((axis + 1) % 3, (axis + 2) % 3)
    new[one] = cos * columns[one] + sin * columns[other]
    new[other] = cos * columns[other] - sin * columns[one]
    return tuple(new)


def _with_ancestors(joints: Sequence[Joint], chosen: Sequence[int]) -> list[int]:
    kept = set()
    for index in chosen:
        while index not in kept and index >= 0:
            kept.add(index)
            index = joints[index].parent
    return sorted(kept)


def _groups(
    joints: Sequence[Joint], kept: Sequence[int], bones: Mapping[str, int], places: Mapping[str, int]
) -> list[_Group]:
    """The kept joints from the root outwards.  The root hangs on group 0, a frame at the origin."""
    carrying = {joints[index].parent for index in kept}
    axes = {index: joints[index].axes if index in carrying else "" for index in kept}
    groups: list[_Group] = []
    members: list[tuple[int, ...]] = [(-1,)]  # grows with the groups
    for source, above in enumerate(members):
        hanging = [index for index in kept if joints[index].parent in above]
        for shared in dict.fromkeys(axes[index] for index in hanging):
            members.append(tuple(index for index in hanging if axes[index] == shared))
            inside = [joints[index] for index in members[-1]]
            offsets = torch.tensor([joint.offset for joint in inside], dtype=torch.float64)
            groups.append(
                _Group(
                    members[-1],
                    source,
                    torch.tensor([above.index(joint.parent) for joint in inside]),
                    torch.nn.functional.normalize(offsets, dim=1).mT,
                    torch.tensor([_bone(joint, bones) for joint in inside]),
                    shared,
                    tuple(
                        torch.tensor([places[joint.channels[turn]] for joint in inside])
                        for turn in range(len(shared))
                    ),
                )
            )
    return groups


def _bone(joint: Joint, bones: Mapping[str, int]) -> int:
    """Which length; any for a joint that is where its parent is."""
    if any(joint.offset) and joint.name not in bones:
        raise ValueError(f"no length is given for the bone that leads to {joint.name}")
    return bones.get(joint.name, 0)
