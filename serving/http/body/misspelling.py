"""Which unknown fields are misspellings of known ones: one letter too many, too few, wrong, or in the wrong place."""

from collections.abc import Iterable
from functools import lru_cache

from jaxllm.serving.http.body.base import TEMPLATE_FIELDS, Body

_LONGEST = 64
_MOST_SHOWN = 3


@lru_cache(maxsize=1024)
def misspelt(kind: type[Body], name: str) -> str:
    """A hint for an error message, such as `"; did you mean 'temperature'?"`; empty where `name` is no misspelling."""
    if len(name) > _LONGEST:
        return ""
    close = [known for known in field_names(kind) if is_one_edit(name, known)][:_MOST_SHOWN]
    return f"; did you mean {' or '.join(map(repr, close))}?" if close else ""


def field_names(kind: type[Body]) -> Iterable[str]:
    """The fields of a body as JSON has them."""
    return (name for name in kind.__struct_encode_fields__ if name != TEMPLATE_FIELDS)


def is_one_edit(first: str, second: str) -> bool:
    """Whether the Damerau-Levenshtein distance of two texts is 1."""
    if abs(len(first) - len(second)) > 1 or first == second:
        return False
    short, long = sorted((first, second), key=len)
    at = next((index for index, each in enumerate(short) if each != long[index]), len(short))
    if len(short) < len(long):
        return short[at:] == long[at + 1 :]
    if short[at + 1 :] == long[at + 1 :]:
        return True
    return short[at : at + 2] == long[at : at + 2][::-1] and short[at + 2 :] == long[at + 2 :]
