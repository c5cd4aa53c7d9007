"""What a template may call: each step of the interpreter's own code has to be short, since nothing can interrupt it.

A method or filter whose result may be far larger than what it is given is asked first how large that would be. Methods
of built-in types that are not listed are rejected.
"""

import re
from collections.abc import Callable, ItemsView, Iterator, KeysView, ValuesView
from types import BuiltinMethodType, FunctionType, MethodType
from typing import Any, Final

from jaxllm.serving.text.templates.budget import Budget, TemplateLimitError, size_of

_WIDTH: Final = 10_000
"""Largest width, count or precision."""
_PADDING: Final = 64
"""Longest text that is put between or around others so often."""
_SEARCH: Final = 1 << 28
"""Searching from the end may take as many steps as the lengths of both texts multiplied."""
_BITS: Final = 1 << 14
"""Maximum bits of an integer that is a product or a power."""
_LONG: Final = 512
_VIEWS: Final = (KeysView, ValuesView, ItemsView)
_DIGITS: Final = re.compile(r"\d{5}|[{][^{}]*:[^{}]*[{]|%[^a-zA-Z%]*\*")
"""Widths of five digits or more, or widths taken from arguments."""

# fmt: off
_PLAIN = frozenset((
    "capitalize", "casefold", "count", "endswith", "find", "index", "isalnum", "isalpha", "isascii", "isdecimal",
    "isdigit", "isidentifier", "islower", "isnumeric", "isprintable", "isspace", "istitle", "isupper", "lower",
    "lstrip", "partition", "removeprefix", "removesuffix", "rstrip", "split", "splitlines", "startswith", "strip",
    "swapcase", "title", "upper", "encode", "decode", "hex", "get", "items", "keys", "values", "copy", "bit_length",
    "bit_count", "is_integer", "conjugate",
))
# fmt: on
"""Methods whose result is about as large as what they are given."""


def check_width(number: Any) -> None:
    """Raise `TemplateLimitError` for a width, count or precision that is too large."""
    if isinstance(number, (int, float)) and not -_WIDTH <= number <= _WIDTH:
        raise TemplateLimitError(f"the template asks for a width or count above {_WIDTH:,}")


def check_widths(*values: Any) -> None:
    """Raise `TemplateLimitError` if an argument is too large a number, or a very long text."""
    for value in values:
        check_width(value)
        if isinstance(value, (str, bytes)) and len(value) > _PADDING:
            raise TemplateLimitError(f"the template pads with more than {_PADDING} characters")


def check_value(budget: Budget, value: Any) -> None:
    """Raise `TemplateLimitError` for a value that is too large as text."""
    if isinstance(value, (str, bytes)):
        budget.copied(len(value))
    elif isinstance(value, (dict, list, tuple, set, frozenset)) and budget.has_made:
        size = size_of(value, budget.largest)
        budget.copied(size)
        budget.spend(size)


def check_compared(budget: Budget, *values: Any) -> None:
    """Raise `TemplateLimitError` for values too large to be compared, or looked up, which takes time with their size.

    One value may be in a list many times, in several depths: then its size is far above what it takes to make it.
    """
    for value in values:
        if isinstance(value, _VIEWS):
            check_value(budget, list(value))
        elif not isinstance(value, (str, bytes)):
            check_value(budget, value)


def _padded(budget: Budget, text: Any, *args: Any, **named: Any) -> None:
    check_widths(*args, *named.values())
    budget.copied(len(text))


def _with_tabs(budget: Budget, text: Any, tabsize: int = 8) -> None:
    check_width(tabsize)
    budget.copied(len(text) + text.count("\t" if isinstance(text, str) else b"\t") * abs(tabsize))


def _replaced(budget: Budget, text: Any, old: Any = "", new: Any = "", count: Any = -1, **_: Any) -> None:
    if isinstance(text, (str, bytes)) and isinstance(old, (str, bytes)) and isinstance(new, (str, bytes)):
        found = text.count(old)  # type: ignore[arg-type]
        budget.copied(len(text) + found * max(0, len(new) - len(old)))
    elif not isinstance(text, str):
        check_value(budget, text)


def _joined(budget: Budget, text: Any, items: Any = ()) -> None:
    budget.copied(sum(len(text) + len(item) for item in items if isinstance(item, (str, bytes))))


def _translated(budget: Budget, text: Any, table: Any = None, *_: Any) -> None:
    values = table.values() if isinstance(table, dict) else ()
    budget.copied(len(text) * max((len(value) for value in values if isinstance(value, str)), default=1))


def _from_the_end(budget: Budget, text: Any, *args: Any, **named: Any) -> None:
    budget.copied(len(text))
    for each in (*args, *named.values()):
        if isinstance(each, (str, bytes)) and len(each) * len(text) > _SEARCH:
            raise TemplateLimitError("the template searches for too long a string from the end")


def check_format(budget: Budget, text: Any, *args: Any, **named: Any) -> None:
    """Raise `TemplateLimitError` for a format whose result may be large."""
    values = [*args, *named.values()]
    pattern = str(text)
    if _DIGITS.search(pattern):
        raise TemplateLimitError("the template formats with a width that is too large or is an argument")
    largest = max((_length(budget, value) for value in values), default=0)
    budget.copied(len(pattern) + (pattern.count("{") + pattern.count("%")) * (largest + _LONG))


def _length(budget: Budget, value: Any) -> int:
    if isinstance(value, (str, bytes)):
        return len(value)
    return size_of(value, budget.largest) if isinstance(value, (dict, list, tuple)) else 0


_METHODS: dict[str, Callable[..., None]] = {
    **dict.fromkeys(("center", "ljust", "rjust", "zfill"), _padded),
    **dict.fromkeys(("rfind", "rindex", "rsplit", "rpartition"), _from_the_end),
    "expandtabs": _with_tabs,
    "replace": _replaced,
    "join": _joined,
    "translate": _translated,
    "format": check_format,
    "format_map": check_format,
}


def guarded_call(budget: Budget, called: Any, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """The result of a method of a built-in type; `NotImplemented` for what is none. Raises `TemplateLimitError`."""
    kind = type(called)
    owner: Any
    if kind is BuiltinMethodType or kind is MethodType:
        owner = called.__self__
    elif kind is FunctionType and hasattr(called, "__wrapped__"):
        # The sandbox wraps the methods that format.
        owner = getattr(called.__wrapped__, "__self__", None)
    else:
        return NotImplemented
    if not isinstance(owner, (str, bytes, int, float, list, tuple, dict, type)):
        return NotImplemented
    # Jinja's own, for functions that take a context.
    named.pop("_loop_vars", None)
    named.pop("_block_vars", None)
    name = called.__name__
    check_compared(budget, *args, *named.values())
    if isinstance(owner, (list, tuple)):
        # `index` and `count` compare with what is in them.
        check_compared(budget, owner)
    if name in _PLAIN:
        if isinstance(owner, (str, bytes)) and len(owner) > _LONG:
            budget.spend(len(owner) // 8)
        return called(*args, **named)
    check = _METHODS.get(name)
    if check is None or isinstance(owner, type):
        raise TemplateLimitError(f"chat templates must not call {type(owner).__name__}.{name}")
    if name == "join" and len(args) == 1:
        args = ([*counted(budget, args[0])],)
    check(budget, owner, *args, **named)
    return called(*args, **named)


def counted(budget: Budget, items: Any) -> Iterator[Any]:
    """The items, each one counted."""
    for item in items:
        budget.spend(1)
        yield item


def check_operation(budget: Budget, operator: str, left: Any, right: Any) -> None:
    """Raise `TemplateLimitError` for a product, power or format whose result may be large."""
    if operator == "%" and isinstance(left, (str, bytes)):
        values = right if isinstance(right, tuple) else (right,)
        check_format(budget, left if isinstance(left, str) else left.decode(errors="replace"), *values)
    elif operator in ("*", "**", "%", "//"):
        _check_numbers(budget, operator, left, right)


def _check_numbers(budget: Budget, operator: str, left: Any, right: Any) -> None:
    for one, other in ((left, right), (right, left)):
        if isinstance(one, (str, bytes, list, tuple)) and isinstance(other, int):
            budget.has_made = True
            budget.copied(len(one) * max(0, other))
            return
    if isinstance(left, int) and isinstance(right, int):
        bits = left.bit_length() * max(right, 0) if operator == "**" else left.bit_length() + right.bit_length()
        if bits > _BITS:
            raise TemplateLimitError("the template computes an integer that is too large")
