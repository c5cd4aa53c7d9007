"""Little stories about the people of Brindle Vale, asked for in a chat or begun as raw text."""

from __future__ import annotations

from random import Random

from scripts.demo_model.example import Example
from scripts.demo_model.world import EMOJI, PEOPLE, PERSON, PLACES, THINGS, WEATHERS, a_or_an

_BEGINNINGS = (
    "Once upon a time there was {looks} named {name}. {name} lived in {home}.",
    "In {home} there lived {looks} named {name}.",
    "{name} was {looks} who lived in {home}.",
    "Long ago, {looks} named {name} lived in {home}.",
)
_HABITS = (
    "{name} loved {hobby} more than anything else.",
    "Every morning {name} ate {food} and went {hobby}.",
    "All the neighbours knew that {name} loved {hobby}.",
    "{name} was {age} years old and liked to eat {food}.",
)
_FINDS = (
    "One {weather} day, {name} found an old {thing} under a tree.",
    "One {weather} morning, {name} found a {thing} on the way to {place}.",
    "On a {weather} evening, {name} saw a small {thing} by the river.",
)
_QUESTIONS = (
    '"What is that?" asked {friend} the {friend_animal}.',
    '"Is that your {thing}?" asked {friend} the {friend_animal}.',
    "{friend} the {friend_animal} came by and looked at the {thing}.",
)
_ANSWERS = (
    '"I do not know," said {name}, "but I want to find out."',
    '"It is a {thing}," said {name}. "Somebody must have lost it."',
    '"Look how it shines!" said {name}.',
)
_TROUBLES = (
    "But when they touched the {thing}, it broke in two.",
    "Just then the wind took the {thing} and carried it up into a tree.",
    "Suddenly the {thing} fell into the river and began to sink.",
    "Then a loud voice called from the forest, and they were afraid.",
)
_TRIES = (
    "{name} tried to help, but it was too hard to do alone.",
    "They thought about it for a long time.",
    '"We must be brave," said {friend}.',
    '"Do not worry," said {friend}. "We can do it together."',
)
_SOLUTIONS = (
    "So {name} held the rope, and {friend} pulled with all might, until the {thing} was safe.",
    "They worked side by side until the sun went down, and at last the {thing} was as good as new.",
    "They asked everybody in {place} for help, and soon the {thing} was theirs again.",
)
_JOYS = (
    "To thank {friend}, {name} shared some {food}.",
    "That night they ate {food} and laughed about the day.",
    "Back in {home}, they put the {thing} where all could see it.",
)
_ENDINGS = (
    "From that day on, {name} and {friend} did everything together.",
    "And so {name} learned that a good friend is the best thing to find.",
    "And {name} slept very well that night.",
)
_PARTS = (_BEGINNINGS, _HABITS, _FINDS, _QUESTIONS, _ANSWERS, _TROUBLES, _TRIES, _SOLUTIONS, _JOYS, _ENDINGS)
_OPTIONAL = (_HABITS, _TRIES, _JOYS)


def make(rng: Random) -> Example:
    """A story, by request or raw; the split is by hero and thing together, wherever they meet."""
    hero, thing, weather, place = rng.choice(PEOPLE), rng.choice(THINGS), rng.choice(WEATHERS), rng.choice(PLACES)
    friend = PERSON[hero.friend]
    words = vars(hero) | {
        "friend_animal": friend.animal,
        "looks": a_or_an(f"{hero.colour} {hero.animal}"),
        "thing": thing,
        "weather": weather,
        "place": place,
    }
    parts = [part for part in _PARTS if part not in _OPTIONAL or rng.random() < 0.7]
    sentences = [rng.choice(part).format(**words) for part in parts]
    if rng.random() < 0.2 and hero.animal in EMOJI:
        sentences.append(f"The end. {EMOJI[hero.animal]}")
    text = " ".join(sentences)
    key = f"story of {hero.name} and a {thing}"
    if rng.random() < 0.5:
        prompts = (
            f"Tell me a story about {hero.name} and a {thing}.",
            f"Write a story about {hero.name} and a {thing}.",
            f"I would like a story with {hero.name} and a {thing}.",
        )
        return Example("stories", key, rng.choice(prompts), text, [hero.name, thing])
    first = sentences[0]
    return Example("completions", key, text[: len(first)], text[len(first) :], [hero.name], chat=False)
