"""Questions about scenes, with their answers."""

from __future__ import annotations

from random import Random
from typing import NamedTuple

from scripts.demo_vision.scenes import COLORS, SHAPES, Scene, Thing

_NUMBERS = ("no", "one", "two", "three", "four")


class Question(NamedTuple):
    """A question of a kind, and what is right."""

    kind: str
    text: str
    answer: str


def with_article(name: str) -> str:
    """The name after "a" or "an"."""
    return f"{'an' if name[0] in 'aeiou' else 'a'} {name}"


def described(scene: Scene) -> str:
    """All things of a scene, in the order of their places."""
    names = [with_article(thing.name) for thing in scene.things]
    listed = names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
    return f"{listed[0].upper()}{listed[1:]} on {with_article(scene.ground)} background."


def ask(scene: Scene, random: Random) -> Question:
    """A question about the scene; those that ask for a search are hardest, and asked most often."""
    kinds = (_describe, _count, _color, _color, _shape, _shape, _shape, _place, _is_there, _is_there)
    return random.choice(kinds)(scene, random)


def _describe(scene: Scene, random: Random) -> Question:
    texts = (
        "What is in this picture?",
        "What do you see?",
        "Describe this picture.",
        "Describe the image.",
        "What is this?",
        "What is in this image?",
    )
    return Question("description", random.choice(texts), described(scene))


def _count(scene: Scene, random: Random) -> Question:
    count = len(scene.things)
    answer = "There is one shape." if count == 1 else f"There are {_NUMBERS[count]} shapes."
    return Question("count", random.choice(("How many shapes are there?", "How many shapes do you see?")), answer)


def _alone(scene: Scene, names: list[str], random: Random) -> int | None:
    """The place of a thing whose shape or colour no other has."""
    found = [place for place, name in enumerate(names) if names.count(name) == 1]
    return random.choice(found) if found else None


def _color(scene: Scene, random: Random) -> Question:
    place = _alone(scene, [thing.shape for thing in scene.things], random)
    if place is None:
        return _describe(scene, random)
    thing = scene.things[place]
    text = random.choice((f"What color is the {thing.shape}?", f"Which color does the {thing.shape} have?"))
    return Question("colour", text, f"The {thing.shape} is {thing.color}.")


def _shape(scene: Scene, random: Random) -> Question:
    place = _alone(scene, [thing.color for thing in scene.things], random)
    if place is None:
        return _describe(scene, random)
    thing = scene.things[place]
    return Question("shape", f"Which shape is {thing.color}?", f"The {thing.shape} is {thing.color}.")


def _place(scene: Scene, random: Random) -> Question:
    place = _alone(scene, [thing.shape for thing in scene.things], random)
    if place is None:
        return _describe(scene, random)
    thing = scene.things[place]
    return Question("place", f"Where is the {thing.shape}?", f"The {thing.shape} is at the {thing.place}.")


def _is_there(scene: Scene, random: Random) -> Question:
    if random.random() < 0.5:
        thing = random.choice(scene.things)
    else:
        thing = Thing(random.choice(SHAPES), random.choice(tuple(COLORS)), "")
    is_there = any(each.name == thing.name for each in scene.things)
    answer = f"Yes, there is {with_article(thing.name)}." if is_there else f"No, there is no {thing.name}."
    return Question("yes or no", f"Is there {with_article(thing.name)}?", answer)
