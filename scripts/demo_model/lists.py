"""Numbered lists, counting and rows of emoji."""

from __future__ import annotations

from random import Random

from scripts.demo_model.example import Example
from scripts.demo_model.json_objects import listed
from scripts.demo_model.world import EMOJI, GOODS, NAMES, THINGS, a_or_an


def make(rng: Random) -> Example:
    """A request whose answer is a list; the split is by the whole answer."""
    prompt, answer = rng.choices((_numbered, _counting), (2, 1))[0](rng)
    return Example("lists", answer, prompt, answer, answer)


def _numbered(rng: Random) -> tuple[str, str]:
    words = rng.sample(THINGS + NAMES, rng.randint(2, 6))
    verb = rng.choice(("Make", "Write", "Give me"))
    answer = "\n".join(f"{number}. {word}" for number, word in enumerate(words, 1))
    return f"{verb} a numbered list of {listed(words)}.", answer


def _counting(rng: Random) -> tuple[str, str]:
    first = rng.randint(0, 90)
    last = first + rng.randint(2, 9)
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
