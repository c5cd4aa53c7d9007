"""Forms of flags that vLLM allows, in the one form that is parsed."""

import argparse
import json
from collections.abc import Container, Sequence
from typing import Any

from jaxllm.flags.values import integer

_INVERSE = {"--enable-": "--disable-", "--disable-": "--enable-"}


def rewritten(arguments: Sequence[str], known: Container[str]) -> list[str]:
    """The arguments for a parser of these `known` flags; values, and whatever follows `--`, stay as they are.

    `--max_model_len=8` becomes `--max-model-len=8`. `--disable-x`, where only `--enable-x` is known, becomes
    `--no-enable-x`, and the other way round. Pieces of a JSON object become one object at the end:
    `--name.a.b 1 --name.c+ x,y` is `--name {"a": {"b": 1}, "c": ["x", "y"]}`. A piece without a value is true.
    """
    end = arguments.index("--") if "--" in arguments else len(arguments)
    plain = [_with_dashes(argument) for argument in arguments[:end]]
    objects = _Objects()
    rest: list[str] = []
    place = 0
    while place < len(plain):
        name, equals, value = plain[place].partition("=")
        flag, dot, keys = name.partition(".")
        place += 1
        if not (dot and flag.startswith("-") and flag in known):
            rest.append(_positive(name, known) + equals + value if name.startswith("--") else plain[place - 1])
            continue
        if not equals:
            stands_alone = place == len(plain) or plain[place].startswith("--")
            value = "true" if stands_alone else plain[place]
            place += not stands_alone
        objects.put(flag, keys, value)
    return [*objects.joined_with(rest), *arguments[end:]]


class _Objects:
    """JSON objects by flag, as they come together from pieces."""

    def __init__(self) -> None:
        self._found: dict[str, dict[str, Any]] = {}

    def put(self, flag: str, keys: str, text: str) -> None:
        """Add a piece: `keys` are separated by dots; with + after the last, the text is items of a list."""
        below = self._found.setdefault(flag, {})
        *path, last = keys.removesuffix("+").split(".")
        for key in path:
            inner = below.setdefault(key, {})
            below = inner if isinstance(inner, dict) else below
        if keys.endswith("+"):
            old = below.get(last)
            below[last] = [*(old if isinstance(old, list) else []), *map(_value, text.split(","))]
        else:
            below[last] = _value(text)

    def joined_with(self, rest: Sequence[str]) -> list[str]:
        """The `rest` of the arguments and the objects; one that is in the rest too, as a whole, is merged."""
        kept: list[str] = []
        place = 0
        while place < len(rest):
            flag, equals, text = rest[place].partition("=")
            place += 1
            if flag not in self._found or (not equals and place == len(rest)):
                kept.append(rest[place - 1])
                continue
            if not equals:
                text = rest[place]
                place += 1
            whole = _value(text)
            if isinstance(whole, dict):
                self._found[flag] = merged(whole, self._found[flag])
            else:
                kept += [flag, text]
        return [*kept, *(each for flag, found in self._found.items() for each in (flag, json.dumps(found)))]


def merged(whole: dict[str, Any], pieces: dict[str, Any]) -> dict[str, Any]:
    """Two JSON objects as one, the pieces before the whole."""
    inner = {
        key: merged(whole[key], value) if isinstance(value, dict) and isinstance(whole.get(key), dict) else value
        for key, value in pieces.items()
    }
    return {**whole, **inner}


def _with_dashes(argument: str) -> str:
    """Dashes for underscores in the name of a flag, but not in the keys after it."""
    if not argument.startswith("--"):
        return argument
    name, equals, value = argument.partition("=")
    flag, dot, keys = name.partition(".")
    return flag.replace("_", "-") + dot + keys + equals + value


def _positive(name: str, known: Container[str]) -> str:
    """`--no-enable-x` for `--disable-x`, where that is the flag there is."""
    for start, inverse in _INVERSE.items():
        other = inverse + name.removeprefix(start)
        if name.startswith(start) and name not in known and other in known and f"--no-{other[2:]}" in known:
            return f"--no-{other[2:]}"
    return name


def _value(text: str) -> Any:
    """The JSON value of it; or a number such as `8k`; or the text."""
    try:
        return json.loads(text)
    except ValueError:
        try:
            return integer(text)
        except argparse.ArgumentTypeError:
            return text
