"""The longest way down through things that refer to others."""

from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import TypeVar

Key = TypeVar("Key", bound=Hashable)


def heights(root: Key, below: Callable[[Key], Iterable[tuple[Key, int]]]) -> dict[Key, int]:
    """The height of `root` and of all below it, in the order in which they are complete: what is below comes first.

    `below` gives what a thing refers to, and how many levels further down that is. A height is the most levels below a
    thing. As a compiler does, everything is entered once: a reference back to what is being entered adds nothing.
    Without recursion: the way may be longer than Python's stack.
    """
    found: dict[Key, int] = {}
    open_: dict[Key, int] = {root: 0}
    stack: list[tuple[Key, int, Iterator[tuple[Key, int]]]] = [(root, 0, iter(below(root)))]
    while stack:
        key, step, rest = stack[-1]
        following = next(rest, None)
        if following is None:
            stack.pop()
            found[key] = open_.pop(key)
            if stack:
                above = stack[-1][0]
                open_[above] = max(open_[above], step + found[key])
            continue
        child, down = following
        if child in found:
            open_[key] = max(open_[key], down + found[child])
        elif child not in open_:
            open_[child] = 0
            stack.append((child, down, iter(below(child))))
    return found
