"""Devices in the order of a ring."""

from dataclasses import dataclass
from itertools import pairwise, product
from typing import Any

import pytest

from jaxllm.models.ring import Position, order_ring, ring


@dataclass(frozen=True)
class Core:
    """The attributes of a device that are read."""

    id: int
    coords: Position


def grid(*sides: int, cores: int = 1) -> list[Any]:
    """The devices of a slice as JAX lists them: the first coordinate changes fastest."""
    places = [tuple(reversed(place)) for place in product(*map(range, reversed(sides)))]
    return [Core(index, place) for index, place in enumerate(place for place in places for _ in range(cores))]


def distances(positions: list[Position]) -> list[int]:
    """From each to the next, and from the last to the first."""
    around = pairwise([*positions, positions[0]])
    return [sum(abs(one - other) for one, other in zip(here, there, strict=True)) for here, there in around]


@pytest.mark.parametrize("sides", [(2, 4, 1), (4, 2, 1), (2, 2, 1), (2, 1, 1), (2, 2, 2), (4, 4, 4), (2, 3), (8, 8)])
def test_each_is_beside_the_next(sides: tuple[int, ...]) -> None:
    found = order_ring(grid(*sides))
    assert sorted(device.id for device in found) == list(range(len(found)))
    assert set(distances([device.coords for device in found])) == {1}


@pytest.mark.parametrize("sides", [(4, 1), (3, 3)])
def test_without_a_ring_only_the_last_is_elsewhere(sides: tuple[int, ...]) -> None:
    found = ring([range(side) for side in sides])
    assert sorted(found) == sorted(product(*map(range, sides)))
    assert set(distances(found)[:-1]) == {1}


def test_cores_of_a_chip_stay_together() -> None:
    found = [device.id for device in order_ring(grid(2, 2, 1, cores=2))]
    assert sorted(found) == list(range(8))
    assert all(one // 2 == other // 2 for one, other in zip(found[::2], found[1::2], strict=True))


def test_what_has_no_place_stays_where_it_is() -> None:
    some = grid(2, 4)
    assert order_ring(some[:7]) == some[:7], "no box"
    assert order_ring([object(), object()]) != [], "no coordinates"
