"""Numbered lists, counting and rows of emoji."""

from __future__ import annotations

from random import Random

from scripts.demo_model.example import Example
from scripts.demo_model.json_objects import dumps, listed
from scripts.demo_model.world import COLOURS, DAYS, EMOJI, GOODS, NAMES, PLACES, THINGS, WEATHERS, a_or_an

_DIGITS = tuple("0123456789")
_GOODS = tuple(plural for _, plural, _ in GOODS)
_WORDS = (*THINGS, *NAMES, *PLACES, *COLOURS, *DAYS, *WEATHERS, *_GOODS, *_DIGITS)


def make(rng: Random) -> Example:
    """A request whose answer is a list; the split is by the whole answer."""
    prompt, answer = rng.choices((_numbered, _repeat, _counting), (2, 2, 1))[0](rng)
    return Example("lists", answer, prompt, answer, answer)


def _numbered(rng: Random) -> tuple[str, str]:
    words = rng.sample(THINGS + NAMES, rng.randint(2, 6))
    verb = rng.choice(("Make", "Write", "Give me"))
    return f"{verb} a numbered list of {listed(words)}.", _as_numbered(words)


def _as_numbered(words: list[str]) -> str:
    return "\n".join(f"{number}. {word}" for number, word in enumerate(words, 1))


_FORMS = (" ".join, ", ".join, listed, dumps, _as_numbered)


COPYING = "copy:\n"
"""What exercises in copying begin with, so that no other text falls into them."""


def echo(rng: Random) -> str:
    """Lines of words, each written twice."""
    lines = (" ".join(rng.sample(_WORDS, rng.randint(3, 10))) for _ in range(rng.randint(1, 4)))
    return COPYING + "\n".join(f"{line}\n{line}" for line in lines)


def copying(rng: Random) -> str:
    """Lines of words, each written again in the same or another form: with commas, numbers, quotes around them."""
    pairs = []
    for _ in range(rng.randint(1, 4)):
        words = rng.sample(_WORDS, rng.randint(2, 8))
        pairs.append("\n".join(rng.choice(_FORMS)(words) for _ in range(2)))
    return COPYING + "\n".join(pairs)


def _repeat(rng: Random) -> tuple[str, str]:
    words = ", ".join(rng.sample(_WORDS, rng.randint(2, 8)))
    return f"Repeat: {words}", words


def _counting(rng: Random) -> tuple[str, str]:
    first = rng.randint(0, 90)
    last = first + rng.randint(2, 6)
    return f"Count from {first} to {last}.", ", ".join(str(number) for number in range(first, last + 1))


def emoji(rng: Random) -> Example:
    """A row of the same emoji, or the emoji of an animal."""
    if rng.random() < 0.4:
        animal = rng.choice(tuple(EMOJI))
        prompts = [f"Which emoji is the {animal}?", f"Show me the {animal} as emoji.", f"Draw {a_or_an(animal)}.",
                   f"Give me the emoji of a {animal}."]  # fmt: skip
        wording = rng.randrange(len(prompts))
        return Example("emoji", f"emoji {animal} {wording}", prompts[wording], EMOJI[animal], EMOJI[animal])
    (_, plural, sign), count = rng.choice(GOODS), rng.randint(2, 6)
    prompts = [f"Write {count} {plural} as emoji.", f"Show me {count} {plural}.", f"Draw {count} {plural}."]
    wording = rng.randrange(len(prompts))
    return Example("emoji", f"{count} {plural} {wording}", prompts[wording], sign * count, sign * count)
