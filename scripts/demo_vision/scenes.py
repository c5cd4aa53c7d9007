"""Scenes: a few shapes of one colour each on a plain ground, and their pictures."""

from __future__ import annotations

import math
from dataclasses import dataclass
from random import Random
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

Pixels: TypeAlias = NDArray[np.uint8]

COLORS = {
    "red": (220, 40, 40),
    "green": (40, 160, 70),
    "blue": (45, 85, 215),
    "yellow": (245, 210, 40),
    "orange": (245, 140, 30),
    "purple": (135, 60, 175),
    "black": (25, 25, 25),
    "pink": (245, 140, 190),
}
GROUNDS = {"white": (250, 250, 250), "grey": (170, 170, 170)}
SHAPES = ("circle", "square", "triangle", "star", "cross")
PLACES = ("top left", "top right", "bottom left", "bottom right")
"""Quarters of a picture; no two shapes share one."""

SIDE = 96
_FINE = 3
"""Pictures are drawn so many times larger, which makes edges smooth."""


@dataclass(frozen=True)
class Thing:
    """A shape in a quarter of a picture."""

    shape: str
    color: str
    place: str

    @property
    def name(self) -> str:
        """Its colour and shape."""
        return f"{self.color} {self.shape}"


@dataclass(frozen=True)
class Scene:
    """Things in the order of their places, on a ground."""

    things: tuple[Thing, ...]
    ground: str


def draw_scene(random: Random) -> Scene:
    """A scene of one to four things."""
    count = random.choice((1, 1, 2, 2, 2, 3, 3, 4))
    places = sorted(random.sample(range(len(PLACES)), count))
    things = tuple(Thing(random.choice(SHAPES), random.choice(tuple(COLORS)), PLACES[place]) for place in places)
    return Scene(things, random.choice(tuple(GROUNDS)))


def picture(scene: Scene, random: Random) -> Pixels:
    """The scene as uint8 [SIDE, SIDE, 3]; sizes, places within quarters and tones vary."""
    side = SIDE * _FINE
    image = Image.new("RGB", (side, side), _tone(GROUNDS[scene.ground], random, 5))
    pen = ImageDraw.Draw(image)
    for thing in scene.things:
        radius = side * random.uniform(0.11, 0.19)
        row, column = divmod(PLACES.index(thing.place), 2)
        x, y = (side * (each / 2 + 0.25 + random.uniform(-0.04, 0.04)) for each in (column, row))
        _draw(pen, thing.shape, x, y, radius, _tone(COLORS[thing.color], random, 14))
    small = image.resize((SIDE, SIDE), Image.Resampling.LANCZOS)
    return np.asarray(small, np.uint8)


def _tone(color: tuple[int, int, int], random: Random, spread: int) -> tuple[int, int, int]:
    red, green, blue = (min(255, max(0, each + random.randint(-spread, spread))) for each in color)
    return red, green, blue


def _draw(pen: ImageDraw.ImageDraw, shape: str, x: float, y: float, radius: float, color: tuple[int, int, int]) -> None:
    match shape:
        case "circle":
            pen.ellipse((x - radius, y - radius, x + radius, y + radius), fill=color)
        case "square":
            half = radius * 0.88
            pen.rectangle((x - half, y - half, x + half, y + half), fill=color)
        case "triangle":
            pen.polygon(_around(x, y, [radius * 1.1] * 3), fill=color)
        case "star":
            pen.polygon(_around(x, y, [radius * 1.15, radius * 0.45] * 5), fill=color)
        case "cross":
            arm = radius * 0.34
            pen.rectangle((x - radius, y - arm, x + radius, y + arm), fill=color)
            pen.rectangle((x - arm, y - radius, x + arm, y + radius), fill=color)


def _around(x: float, y: float, radii: list[float]) -> list[tuple[float, float]]:
    """Corners at these distances from a point, the first above it."""
    turns = [2 * math.pi * number / len(radii) for number in range(len(radii))]
    return [(x + r * math.sin(turn), y - r * math.cos(turn)) for r, turn in zip(radii, turns, strict=True)]
