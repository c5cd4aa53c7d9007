"""Flags of vLLM that give a JSON object piece by piece: `--name.key value --name.list+ item`."""

import json
from collections.abc import Sequence
from typing import Any


def joined(arguments: Sequence[str]) -> list[str]:
    """Arguments in which the pieces of each object are one flag with JSON, behind the others.

    `--a.b.c 1 --a.d+ x` becomes `--a {"b": {"c": 1}, "d": ["x"]}`. A piece without a value is true. Names get dashes
    in place of underscores, keys stay as they are. Whatever follows `--` is left alone.
    """
    end = arguments.index("--") if "--" in arguments else len(arguments)
    rest: list[str] = []
    objects: dict[str, dict[str, Any]] = {}
    place = 0
    while place < end:
        argument = arguments[place]
        place += 1
        flag, equals, value = argument.partition("=")
        name, dot, keys = flag.partition(".")
        if not flag.startswith("--") or not dot or not keys:
            rest.append(flag.replace("_", "-") + equals + value if flag.startswith("--") else argument)
            continue
        if not equals and place < end and not arguments[place].startswith("--"):
            value, equals = arguments[place], "="
            place += 1
        found = objects.setdefault(name.replace("_", "-"), {})
        _put(found, keys.split("."), _value(value) if equals else True)
    return [*rest, *(text for name, found in objects.items() for text in (name, json.dumps(found))), *arguments[end:]]


def _put(found: dict[str, Any], keys: list[str], value: Any) -> None:
    *path, last = keys
    for key in path:
        below = found.setdefault(key, {})
        found = below if isinstance(below, dict) else found
    if last.endswith("+"):
        items = value.split(",") if isinstance(value, str) else [value]
        found.setdefault(last[:-1], []).extend(items)
    else:
        found[last] = value


def _value(text: str) -> Any:
    """What JSON makes of it, or the text."""
    try:
        return json.loads(text)
    except ValueError:
        return text
