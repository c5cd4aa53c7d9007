"""Jinja's filters, each with what its result may cost."""

import json
from collections.abc import Callable, Iterable, Mapping, Sized
from typing import Any, Final

from jinja2 import pass_context
from jinja2.filters import FILTERS
from jinja2.runtime import Context
from jinja2.utils import _PassArg

from jaxllm.serving.text.templates.budget import Budget, TemplateLimitError, size_of
from jaxllm.serving.text.templates.guards import (
    _replaced,
    check_compared,
    check_format,
    check_value,
    check_width,
    check_widths,
    counted,
)

Filter = Callable[..., Any]
Check = Callable[..., None]

_UNCHECKED = frozenset(["length", "count", "first", "last", "default", "d", "items", "abs", "float"])
"""They make nothing larger."""
_LAZY = frozenset(["map", "select", "reject", "selectattr", "rejectattr"])
_NESTING = frozenset(("batch", "slice", "groupby"))
"""They put values into lists."""
_MOST_DIGITS: Final = 1000
_MOST_OF_SLOW: Final = 1 << 16


def _widths(budget: Budget, value: Any, *args: Any, **named: Any) -> None:
    check_value(budget, value)
    check_widths(*args, *named.values())


def _indented(budget: Budget, value: Any, width: Any = 4, *_: Any, **named: Any) -> None:
    width = named.get("width", width)
    check_widths(width)
    text = str(value) if isinstance(value, str) else ""
    budget.copied(len(text) + (1 + text.count("\n")) * (len(width) if isinstance(width, str) else abs(width)))


def _joined(budget: Budget, value: Any, d: Any = "", attribute: Any = None) -> None:
    between = len(d) if isinstance(d, str) else 0
    size = 0
    for item in value if isinstance(value, (list, tuple, dict)) else ():
        size += between + (len(item) if isinstance(item, str) else size_of(item, budget.largest))
        if size > budget.largest:
            break
    budget.copied(size)


def _as_integer(budget: Budget, value: Any, *args: Any, **named: Any) -> None:
    check_widths(*args, *named.values())
    if isinstance(value, (str, bytes)) and len(value) > _MOST_DIGITS:
        raise TemplateLimitError(f"the template reads a number of more than {_MOST_DIGITS:,} digits")


def _summed(budget: Budget, value: Any, *_: Any, **named: Any) -> None:
    start = named.get("start", _[1] if len(_) > 1 else 0)
    if not isinstance(start, (int, float)):
        raise TemplateLimitError("the template sums values that are not numbers")
    # Items of a generator are counted as they come.
    budget.spend(len(value) if isinstance(value, Sized) else 1)


def _items_only(budget: Budget, value: Any, *args: Any, **named: Any) -> None:
    check_value(budget, value)
    for each in (*args, *named.values()):
        check_value(budget, each)


def _short(budget: Budget, value: Any, *args: Any, **named: Any) -> None:
    if (len(value) if isinstance(value, str) else size_of(value, _MOST_OF_SLOW)) > _MOST_OF_SLOW:
        raise TemplateLimitError(f"the template uses a slow filter on more than {_MOST_OF_SLOW:,} characters")
    _widths(budget, value, *args, **named)


_CHECKS: dict[str, Check] = {
    **dict.fromkeys(["center", "batch", "slice", "round", "truncate", "filesizeformat"], _widths),
    **dict.fromkeys(["pprint", "striptags", "urlize", "wordwrap"], _short),
    "indent": _indented,
    "join": _joined,
    "replace": _replaced,
    "format": check_format,
    "int": _as_integer,
    "sum": _summed,
}
_LISTED = frozenset(("join", "replace", "sort", "unique", "groupby", "min", "max"))
"""They may be given a generator, whose items are looked at before."""


def to_json(
    value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    """JSON as Hugging Face's templates expect it: nothing is escaped for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


@pass_context
def _guarded_json(context: Context, value: Any, *args: Any, **named: Any) -> str:
    budget: Budget = context.budget  # type: ignore[attr-defined]
    if budget.has_made:
        check_value(budget, value)
    if args or named:
        for each in (*args, *named.values()):
            check_width(each)
            if isinstance(each, (str, list, tuple)) and size_of(each, _MOST_DIGITS) > _MOST_DIGITS:
                raise TemplateLimitError("the template indents or separates JSON with a string that is too long")
        indent = named.get("indent", args[1] if len(args) > 1 else None)
        if isinstance(indent, int) and indent > 32:
            raise TemplateLimitError("the template indents JSON by more than 32 spaces")
    text = to_json(value, *args, **named)
    budget.copied(len(text))
    return text


def guarded_filters() -> Mapping[str, Filter]:
    """All filters of chat templates, by name. They find the budget in the context."""
    made = {name: each if name in _UNCHECKED else _guarded(name, each) for name, each in FILTERS.items()}
    return {**made, "tojson": _guarded_json}


def _to_compare(budget: Budget, items: Iterable[Any], *others: Any) -> Iterable[Any]:
    """The items; a test may compare each with `others`."""
    large = [each for each in others if not isinstance(each, str)]
    for item in counted(budget, items):
        if large:
            check_compared(budget, item, *large)
        yield item


def _guarded(name: str, original: Filter) -> Filter:
    check: Check = _CHECKS.get(name, _items_only)
    takes, is_lazy = _PassArg.from_obj(original), name in _LAZY

    def guarded(context: Context, value: Any, *args: Any, **named: Any) -> Any:
        budget: Budget = context.budget  # type: ignore[attr-defined]
        if name in _LISTED and not isinstance(value, (str, list, tuple, dict)) and isinstance(value, Iterable):
            value = [*counted(budget, value)]
        if is_lazy:
            value = _to_compare(budget, value, *args, *named.values()) if isinstance(value, Iterable) else value
        else:
            check(budget, value, *args, **named)
        if name in _NESTING:
            budget.has_made = True
        first: tuple[Any, ...] = {
            None: (),
            _PassArg.context: (context,),
            _PassArg.eval_context: (context.eval_ctx,),
            _PassArg.environment: (context.environment,),
        }[takes]
        result = original(*first, value, *args, **named)
        budget.spend(1 + (len(result) // 16 if isinstance(result, (str, list)) else 0))
        return result

    return pass_context(guarded)
