"""Lists, a page at a time."""

from collections.abc import Sequence
from typing import Protocol, TypeVar

from jaxllm.errors import RequestError, quoted


class Identified(Protocol):
    """Something with an id."""

    @property
    def id(self) -> str:
        """Its id."""


Item = TypeVar("Item", bound=Identified)


def page(items: Sequence[Item], after: str | None, limit: int, most: int) -> tuple[list[Item], bool]:
    """At most `limit` items after the one of the id `after`, and whether there are more. Raises `RequestError`."""
    if not 1 <= limit <= most:
        raise RequestError(f"limit={limit}: must be from 1 to {most}", "limit")
    begin = 0
    if after is not None:
        places = [place for place, item in enumerate(items) if item.id == after]
        if not places:
            raise RequestError(f"after={quoted(after)}: no such item in the list", "after")
        begin = places[0] + 1
    return list(items[begin : begin + limit]), begin + limit < len(items)
