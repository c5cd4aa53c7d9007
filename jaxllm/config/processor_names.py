"""How options name classes: `package.module:Class`, the name of an entry point, or the class itself."""

from typing import Any, Self


class ClassName(str):
    """The name of a class that was given as it is: `found` is that class, which this process need not look for."""

    __slots__ = ("found",)

    found: type

    def __new__(cls, found: type) -> Self:
        """The name under which another process finds the class, if it can be imported there."""
        name = super().__new__(cls, f"{found.__module__}:{found.__qualname__}")
        name.found = found
        return name

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: Any) -> Self:
        return self

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        """Another process gets the name alone."""
        return str, (str(self),)


def as_names(value: Any) -> Any:
    """Classes and names, one or several, as a tuple of names; anything else as it is."""
    if isinstance(value, (str, type)):
        value = (value,)
    if not isinstance(value, (list, tuple)):
        return value
    return tuple(ClassName(each) if isinstance(each, type) else each for each in value)
