"""Values that models write without their type, read by the types that a schema allows."""

import json
from collections.abc import Set as AbstractSet

from jaxllm.serving.reply.json_text import whole_json
from jaxllm.serving.reply.scalars import WORDS, number, whole_characters

_NUMBERS = frozenset({"integer", "number"})
_PYTHON_WORDS = ("True", "False", "None")


def as_json(text: str, types: AbstractSet[str]) -> str:
    """A value as JSON of one of these types, if there are any; as a string, if it is none of them."""
    found = _value(text.strip(), types)
    if found is None or (types and "string" in types and not types & _types_of(found)):
        return json.dumps(whole_characters(text), ensure_ascii=False)
    return found


def _value(plain: str, types: AbstractSet[str]) -> str | None:
    """The value as JSON, None where it is a text without quotes."""
    if plain.startswith(("{", "[")):
        return whole_json(plain)
    if plain.startswith('"'):
        return _quoted(plain, types)
    word = plain.lower() if plain in _PYTHON_WORDS or (types and "string" not in types) else plain
    if word in WORDS:
        return WORDS[word]
    found = number(plain)
    return found if found == plain or (types & _NUMBERS and "string" not in types) else None


def _quoted(plain: str, types: AbstractSet[str]) -> str | None:
    """A text in quotes; what is in it, where that should be a list or an object."""
    try:
        text = json.loads(plain)
    except ValueError:
        return None
    inner = whole_json(text) if types and not types & {"string"} else None
    return inner or plain


def _types_of(value: str) -> frozenset[str]:
    """The types of JSON that a value in JSON has."""
    names = {"{": "object", "[": "array", '"': "string", "t": "boolean", "f": "boolean", "n": "null"}
    known = names.get(value[0])
    if known is not None:
        return frozenset({known})
    return _NUMBERS if value.lstrip("-").isdecimal() else frozenset({"number"})
