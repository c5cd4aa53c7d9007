"""The one error of this layer."""

from collections.abc import Iterable
from difflib import get_close_matches


class ModelError(ValueError):
    """A checkpoint, its configuration or the choice of a model is wrong. The message is one line for a person."""


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint for an error message, `"; did you mean 'x'?"`, or an empty string when nothing is close."""
    close = get_close_matches(name, list(known), n=3, cutoff=0.5)
    return f"; did you mean {' or '.join(map(repr, close))}?" if close else ""


def is_failure(error: BaseException) -> bool:
    """Whether a library failed, and nobody asked this process to end.

    A panic of one in Rust is no `Exception`, and of a class that cannot be imported.
    """
    return isinstance(error, Exception) or type(error).__name__ == "PanicException"
