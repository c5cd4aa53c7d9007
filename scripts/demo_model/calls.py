"""Requests which call for functions, the functions themselves, and what follows their results."""

from __future__ import annotations

from random import Random
from typing import Any, TypeAlias

from scripts.demo_model.example import Example, Tool
from scripts.demo_model.json_objects import dumps
from scripts.demo_model.world import GOODS, LANGUAGES, NAMES, PLACES, THINGS, TRANSLATIONS, WEATHERS

Call: TypeAlias = dict[str, Any]
"""`{"name": ..., "arguments": {...}}`."""


def _tool(name: str, description: str, /, **types: str) -> Tool:
    properties = {argument: {"type": kind} for argument, kind in types.items()}
    parameters = {"type": "object", "properties": properties, "required": list(types)}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


TOOLS: dict[str, Tool] = {
    tool["function"]["name"]: tool
    for tool in (
        _tool("get_weather", "The weather in a place.", place="string"),
        _tool("add", "Adds two numbers.", a="integer", b="integer"),
        _tool("find_person", "Finds where a person is.", name="string"),
        _tool("set_timer", "Starts a timer.", minutes="integer", label="string"),
        _tool("send_letter", "Sends a letter.", to="string", text="string", urgent="boolean"),
        _tool("buy", "Buys things.", item="string", count="integer"),
        _tool("translate", "Translates a word.", word="string", language="string"),
    )
}

_REFUSAL = "I have no function for that."


def request(rng: Random, name: str) -> tuple[str, dict[str, Any]]:
    """What a user says to have the function called, and the arguments."""
    match name:
        case "get_weather":
            place = rng.choice(PLACES)
            asks = ("What is the weather in {}?", "How is the weather in {}?", "Check the weather in {}.")
            return rng.choice(asks).format(place), {"place": place}
        case "add":
            a, b = rng.randint(10, 99), rng.randint(10, 99)
            return rng.choice(("Add {} and {}.", "What is {} + {}?")).format(a, b), {"a": a, "b": b}
        case "find_person":
            person = rng.choice(NAMES)
            return rng.choice(("Where is {} now?", "Find {} for me.", "I am looking for {}.")).format(person), {
                "name": person
            }
        case "set_timer":
            minutes, label = rng.randint(2, 59), rng.choice(("tea", "bread", "soup", "nap", "game", "eggs"))
            return f"Set a timer of {minutes} minutes for the {label}.", {"minutes": minutes, "label": label}
        case "send_letter":
            to, urgent = rng.choice(NAMES), rng.random() < 0.5
            text = f"{rng.choice(('Bring the', 'I found the', 'Where is my', 'I like your'))} {rng.choice(THINGS)}"
            kind = "an urgent letter" if urgent else "a letter"
            return f'Send {kind} to {to}: "{text}"', {"to": to, "text": text, "urgent": urgent}
        case "buy":
            (singular, plural, _), count = rng.choice(GOODS), rng.randint(2, 40)
            ask = rng.choice(("Buy {} {}.", "Please buy {} {} for me."))
            return ask.format(count, plural), {"item": singular, "count": count}
        case _:
            word, language = rng.choice(tuple(TRANSLATIONS) + THINGS), rng.choice(LANGUAGES)
            return f"Translate {word} to {language}.", {"word": word, "language": language}


def offer(rng: Random) -> tuple[str, ...]:
    """Names of one to three functions to have at hand."""
    return tuple(rng.sample(tuple(TOOLS), rng.choice((1, 1, 1, 2, 2, 3))))


def render(calls: list[Call]) -> str:
    """The text of calls, as the chat template renders them."""
    return "\n".join(f"<tool_call>\n{dumps(call)}\n</tool_call>" for call in calls)


def make(rng: Random, offered: tuple[str, ...] | None = None) -> Example:
    """A request with functions at hand: one call, sometimes two, rarely none that fits; split by the calls."""
    offered = offered or offer(rng)
    tools = tuple(TOOLS[name] for name in offered)
    if rng.random() < 0.12:
        asked, _ = request(rng, rng.choice([name for name in TOOLS if name not in offered]))
        return Example("calls", f"no function: {asked}", asked, _REFUSAL, [], tools=tools)
    name = rng.choice(offered)
    asked, arguments = request(rng, name)
    calls = [{"name": name, "arguments": arguments}]
    if name == "get_weather" and rng.random() < 0.5:
        first, second = rng.sample(PLACES, 2)
        asked = f"What is the weather in {first} and in {second}?"
        calls = [{"name": name, "arguments": {"place": place}} for place in (first, second)]
    wording = f" {asked}" if name in ("get_weather", "find_person") else ""
    return Example("calls", dumps(calls) + wording, asked, render(calls), calls, tools=tools)


def result(rng: Random, call: Call) -> tuple[str, str]:
    """A function's result as JSON, and the sentence in which the model passes it on."""
    values = call["arguments"]
    match call["name"]:
        case "get_weather":
            weather, degrees = rng.choice(WEATHERS), rng.randint(-9, 30)
            found = {"weather": weather, "temperature": degrees}
            return dumps(found), f"It is {weather} in {values['place']}, with {degrees} degrees."
        case "add":
            total = values["a"] + values["b"]
            return dumps({"sum": total}), f"{values['a']} + {values['b']} = {total}."
        case "find_person":
            place = rng.choice(PLACES)
            return dumps({"place": place}), f"{values['name']} is in {place} now."
        case "set_timer":
            return dumps({"done": True}), f"The timer for the {values['label']} runs for {values['minutes']} minutes."
        case "send_letter":
            return dumps({"done": True}), f"Your letter to {values['to']} is on its way."
        case "buy":
            price = rng.randint(3, 99)
            return dumps({"price": price}), f"Done. That costs {price} coins."
        case _:
            known = TRANSLATIONS.get(values["word"])
            found_word = known[LANGUAGES.index(values["language"])] if known else rng.choice(NAMES).lower()
            return dumps({"translation": found_word}), f"In {values['language']}, {values['word']} is {found_word}."


def is_refusal(answer: str) -> bool:
    """Whether the model said that no function fits."""
    return answer.strip() == _REFUSAL
