"""Devices in the order of a ring, so that each one's next is its neighbour."""

from collections.abc import Sequence
from itertools import product

import jax

Position = tuple[int, ...]


def order_ring(devices: Sequence[jax.Device]) -> list[jax.Device]:
    """The devices in the order of a ring through their chips; as they come where they fill no box of a grid.

    Devices on the same chip stay together.
    """
    chips: dict[Position, list[jax.Device]] = {}
    for device in devices:
        chips.setdefault(tuple(getattr(device, "coords", None) or ()), []).append(device)
    sides = [sorted(set(axis)) for axis in zip(*chips, strict=True)]
    if set(product(*sides)) != set(chips):
        return list(devices)
    return [device for position in ring(sides) for device in chips[position]]


def ring(sides: Sequence[Sequence[int]]) -> list[Position]:
    """All positions of a box with these coordinates along its axes, each next to the next one, the last next to
    the first.

    Where no such ring exists (one row, or only odd sides) the last is elsewhere.
    """
    # Leave a line of the box out, go to and fro through the rest of it, and come back along the line.
    for axis, side in enumerate(sides):
        others = snake([*sides[:axis], *sides[axis + 1 :]])
        if len(side) % 2 == 0 and len(others) > 1:
            first, *rest = others
            path = [(at, other) for index, at in enumerate(side) for other in (rest if index % 2 == 0 else rest[::-1])]
            path += [(at, first) for at in reversed(side)]
            return [(*other[:axis], at, *other[axis:]) for at, other in path]
    return snake(sides)


def snake(sides: Sequence[Sequence[int]]) -> list[Position]:
    """All positions of a box, each next to the next one."""
    if not sides:
        return [()]
    paths = snake(sides[1:])
    return [
        (at, *other) for index, at in enumerate(sides[0]) for other in (paths if index % 2 == 0 else reversed(paths))
    ]
