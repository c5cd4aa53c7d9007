"""Requests for JSON objects of five schemas: flat, nested, with arrays, booleans and numbers."""

from __future__ import annotations

import json
from collections.abc import Callable
from random import Random
from typing import Any

from scripts.demo_model.example import Example
from scripts.demo_model.world import DAYS, GOODS, NAMES, PEOPLE, PLACES, THINGS, WEATHERS


def dumps(value: Any) -> str:
    """JSON on one line, as the model writes it everywhere."""
    return json.dumps(value, ensure_ascii=False)


def listed(words: list[str]) -> str:
    """`a, b and c`."""
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1])))


def _character(rng: Random) -> tuple[str, dict[str, Any]]:
    person = rng.choice(PEOPLE)
    values: dict[str, Any] = {
        "animal": person.animal,
        "color": person.colour,
        "home": person.home,
        "age": person.age,
        "likes": [person.food, person.hobby],
        "friend": person.friend,
    }
    fields = rng.sample(tuple(values), rng.randint(1, 4))
    wanted = {"name": person.name} | {field: values[field] for field in fields}
    return f"Give me a JSON object for {person.name} with {listed(list(wanted))}.", wanted


def _weather(rng: Random) -> tuple[str, dict[str, Any]]:
    place, weather = rng.choice(PLACES), rng.choice(WEATHERS)
    degrees, windy = rng.randint(-9, 30), rng.random() < 0.5
    said = f"{weather}, {degrees} degrees, {'windy' if windy else 'not windy'}"
    return (
        f"Write this weather report as JSON: {place}, {said}.",
        {"place": place, "weather": weather, "temperature": degrees, "windy": windy},
    )


def _order(rng: Random) -> tuple[str, dict[str, Any]]:
    name, paid = rng.choice(NAMES), rng.random() < 0.5
    goods = [(singular, plural, rng.randint(2, 9)) for singular, plural, _ in rng.sample(GOODS, rng.randint(1, 3))]
    bought = listed([f"{count} {plural}" for _, plural, count in goods])
    items = [{"item": singular, "count": count} for singular, _, count in goods]
    return (
        f"Write this order as JSON: {name} buys {bought} and has {'paid' if paid else 'not paid'}.",
        {"customer": name, "items": items, "paid": paid},
    )


def _book(rng: Random) -> tuple[str, dict[str, Any]]:
    title = f"The {rng.choice(('Red', 'Lost', 'Little', 'Golden', 'Last'))} {rng.choice(THINGS).title()}"
    pages, price = rng.randint(10, 99), rng.randint(1, 9) + 0.5
    tags = rng.sample(("sea", "night", "snow", "music", "friends", "food"), rng.randint(1, 3))
    return (
        f"Write this book as JSON: {title}, {pages} pages, price {price}, about {listed(tags)}.",
        {"title": title, "pages": pages, "price": price, "tags": tags},
    )


def _meeting(rng: Random) -> tuple[str, dict[str, Any]]:
    day, hour, place = rng.choice(DAYS), rng.randint(1, 12), rng.choice(PLACES)
    guests = rng.sample(NAMES, rng.randint(1, 3))
    return (
        f"Write this meeting as JSON: {day} at {hour} in {place} with {listed(list(guests))}.",
        {"time": {"day": day, "hour": hour}, "place": place, "guests": list(guests)},
    )


_SCHEMAS: tuple[Callable[[Random], tuple[str, dict[str, Any]]], ...] = (_character, _weather, _order, _book, _meeting)


def make(rng: Random) -> Example:
    """A request for one object; the split is by the whole object."""
    prompt, wanted = rng.choice(_SCHEMAS)(rng)
    return Example("json", dumps(wanted), prompt, dumps(wanted), wanted)
