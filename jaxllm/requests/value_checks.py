"""Checks of single values that people give: what is wrong with one is said with its name."""

import math
import operator
from collections.abc import Callable, Iterable, Mapping
from numbers import Real
from typing import Any

from jaxllm.errors import RequestError, quoted


def wrong(name: str, value: Any, allowed: str) -> RequestError:
    """The error for one parameter, which says what was given and what is allowed."""
    return RequestError(f"{name}={quoted(value)}: must be {allowed}", name)


Check = Callable[[str, Any], Any]
"""Takes a parameter's name and value; the value as it is kept. Raises `RequestError`."""


def boolean(name: str, value: Any) -> bool:
    """A check for true and false."""
    if not isinstance(value, bool):
        raise wrong(name, value, "true or false")
    return value


def integer(allowed: str, minimum: int, maximum: int = 2**63 - 1) -> Check:
    """A check for integers (NumPy's too, but not booleans) between two bounds."""

    def check(name: str, value: Any) -> int:
        try:
            found = None if isinstance(value, bool) else operator.index(value)
        except TypeError:
            found = None
        if found is None or not minimum <= found <= maximum:
            raise wrong(name, value, allowed)
        return found

    return check


def number(allowed: str, fits: Callable[[float], bool]) -> Check:
    """A check for finite numbers for which `fits` holds."""

    def check(name: str, value: Any) -> float:
        # Real covers NumPy's scalars, and excludes strings, which float() would take.
        try:
            found = float(value) if isinstance(value, Real) and not isinstance(value, bool) else math.nan
        except OverflowError:
            found = math.nan
        if not (math.isfinite(found) and fits(found)):
            raise wrong(name, value, allowed)
        return found

    return check


def optional(check: Check) -> Check:
    """Accept None as well."""
    return lambda name, value: None if value is None else check(name, value)


def list_of(check: Check, allowed: str, *, unique: bool = True) -> Check:
    """A check for collections whose items all pass; gives a list, without repetitions if `unique`."""

    def check_items(name: str, value: Any) -> list[Any]:
        if isinstance(value, (str, bytes, Mapping)) or not isinstance(value, Iterable):
            raise wrong(name, value, allowed)
        items = [check(name, item) for item in value]
        return list(dict.fromkeys(items)) if unique else items

    return check_items


def text(name: str, value: Any) -> str:
    """A check for texts that are not empty."""
    if not isinstance(value, str) or not value:
        raise wrong(name, value, "a non-empty string")
    return value


def check_at_most(name: str, number: int, maximum: int, what: str) -> None:
    """Raise `RequestError` for a parameter that holds more than `maximum` of `what`."""
    if number > maximum:
        raise RequestError(f"{name}: {number} {what}; at most {maximum} are allowed", name)
