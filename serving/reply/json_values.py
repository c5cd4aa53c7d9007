"""Texts, arguments and other values of JSON, read from a source that has them in one piece."""

import json
import re
from collections.abc import Sequence

from jaxllm.serving.reply.json_text import read_json, whole_json
from jaxllm.serving.reply.scalars import whole_characters
from jaxllm.serving.reply.source import Parsing, Source

_IN_STRING = {quote: re.compile(rf"[\\{quote}]") for quote in "\"'"}
_WORD = re.compile(r"[-+.\w]*")
_NO_ARGUMENTS = ("", "null", "None", "[]")


def json_string(source: Source) -> Parsing[str | None]:
    """Read a text in quotes of either kind; None, and anything may have been read, if there is none."""
    start, quote = source.at, (yield from source.peek())
    if quote not in _IN_STRING or not (yield from _to_the_end_of_string(source, quote)):
        return None
    written = source.text[start : source.at]
    try:
        value = json.loads(written, strict=False)
    except ValueError:
        value = _only_text(whole_json(f"[{written}]"))
    return whole_characters(value) if isinstance(value, str) else None


def _only_text(listed: str | None) -> str | None:
    values = json.loads(listed or "[]")
    return values[0] if len(values) == 1 and isinstance(values[0], str) else None


def _to_the_end_of_string(source: Source, quote: str) -> Parsing[bool]:
    source.at += 1
    while True:
        found = _IN_STRING[quote].search(source.text, source.at)
        source.at = len(source.text) if found is None else found.end()
        if found is not None and found[0] == quote:
            return True
        if found is not None and (yield from source.peek()):
            source.at += 1
        elif not (yield from source.more()):
            return False


def json_value(source: Source, stops: Sequence[str] = ()) -> Parsing[str | None]:
    """Read a value of any kind and return it as it stands, but for what was put right within brackets.

    None: there is none, or it ends with the text or before one of `stops`.
    """
    opening, start = (yield from source.peek()), source.at
    if opening in ("{", "["):
        return (yield from read_json(source, stops))
    if opening in _IN_STRING:
        whole = yield from _to_the_end_of_string(source, opening)
        return source.text[start : source.at] if whole else None
    return (yield from source.run(_WORD)) or None


def read_arguments(source: Source, stops: Sequence[str] = ()) -> Parsing[str | None]:
    """Read arguments and return them as an object of JSON; None: they are none.

    They may be a text that holds such an object. There may be none of them: nothing before one of `stops`, null, an
    empty text or list.
    """
    if stops and (yield from source.comes(*stops)):
        return "{}"
    if (yield from source.peek()) in _IN_STRING:
        text = yield from json_string(source)
        return None if text is None else _object(text.strip())
    value = yield from json_value(source, stops)
    return None if value is None else "{}" if value in _NO_ARGUMENTS else value if value.startswith("{") else None


def _object(text: str) -> str | None:
    found = whole_json(text)
    if not text or found == "[]":
        return "{}"
    return found if found is not None and found.startswith("{") else None


def is_object(text: str) -> bool:
    """Whether this is an object of JSON."""
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False
