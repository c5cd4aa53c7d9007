"""Single values as models write them, as JSON."""

import json
import re

_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?")
_LOOSE_NUMBER = re.compile(r"([-+]?)([0-9]*)(?:\.([0-9]*))?([eE][-+]?[0-9]+)?")
WORDS = {"true": "true", "false": "false", "null": "null", "none": "null"}
"""Words of JSON and of Python, in small letters."""
_SURROGATES = re.compile("[\ud800-\udfff]")
_MOST_DIGITS = 4000
"""Longer numbers are texts: Python's own reader rejects them."""
_MOST_LOOSE = 400


def scalar(text: str) -> str:
    """A word without quotes as JSON: a number, a word that JSON or Python knows, or else a text."""
    known = number(text)
    return known or WORDS.get(text.lower()) or json.dumps(text, ensure_ascii=False)


def number(text: str) -> str | None:
    """A number as JSON writes it, which may come with zeros or a sign in front of it; None: this is none."""
    if len(text) <= _MOST_DIGITS and _NUMBER.fullmatch(text):
        return text
    found = _LOOSE_NUMBER.fullmatch(text) if len(text) <= _MOST_LOOSE else None
    if found is None or not (found[2] or found[3]):
        return None
    sign, whole, fraction, exponent = (found[group] or "" for group in (1, 2, 3, 4))
    return f"{sign.strip('+')}{whole.lstrip('0') or '0'}{'.' * bool(fraction)}{fraction}{exponent}"


def whole_characters(text: str) -> str:
    """The text with halves of characters replaced, which JSON may name and nothing can encode."""
    return _SURROGATES.sub("\ufffd", text) if _SURROGATES.search(text) else text
