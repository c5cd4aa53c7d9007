"""Names of modules that a configuration means, as PEFT reads it."""

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from re import _constants, _parser  # type: ignore[attr-defined]
from typing import Any, Final

from jaxllm.models.adapters.errors import AdapterError

MAX_PATTERN: Final = 10_000
"""Characters of a regular expression."""


def check_pattern(pattern: str, where: str) -> None:
    """Raise `AdapterError` unless a regular expression can be used.

    One that repeats what itself repeats without an end may take for ever on a name that it does not match.
    """
    if len(pattern) > MAX_PATTERN:
        raise AdapterError(
            f"{where}: a regular expression of {len(pattern)} characters; at most {MAX_PATTERN} are read"
        )
    try:
        re.compile(pattern)
        parsed: Any = _parser.parse(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        raise AdapterError(f"{where}: {pattern[:200]!r} is not a regular expression ({error})") from None
    if _repeats_repeats(parsed, inside=False):
        raise AdapterError(f"{where}: {pattern[:200]!r} repeats what is repeated inside, which may take for ever")


def _repeats_repeats(parsed: Any, *, inside: bool) -> bool:
    """Whether a parsed expression has an unbounded repetition in another one, or is `inside` of one and has any."""
    for operation, argument in parsed:
        is_repeat = str(operation) in ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT")
        is_unbounded = is_repeat and argument[1] is _constants.MAXREPEAT
        if is_unbounded and inside:
            return True
        if any(_repeats_repeats(part, inside=inside or is_unbounded) for part in _parts(argument)):
            return True
    return False


def _parts(argument: Any) -> Iterable[Any]:
    """The expressions inside an operation's argument."""
    if isinstance(argument, _parser.SubPattern):
        yield argument
    elif isinstance(argument, list | tuple):
        for each in argument:
            yield from _parts(each)


@lru_cache(maxsize=256)
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern)


def is_inside(pattern: str, module: str) -> bool:
    """Whether a module's name is, as a whole, one that a regular expression describes."""
    return bool(pattern) and _compiled(pattern).fullmatch(module) is not None


def ends_with(module: str, endings: Sequence[str]) -> bool:
    """Whether a name is one of the endings, or ends with a dot and one."""
    return any(matches(module, ending) for ending in endings)


def matches(module: str, ending: str) -> bool:
    """Whether a name is this, or ends with a dot and this."""
    return module == ending or module.endswith(f".{ending}")


def first_match(patterns: Iterable[str], module: str) -> str | None:
    """The first expression that describes a name, or its end after a dot."""
    return next((each for each in patterns if _compiled(rf"(.*\.)?({each})$").match(module)), None)


def layer_number(module: str, patterns: Sequence[str]) -> int | None:
    """The number of the layer that a module is in: the first number, or the first after one of the `patterns`."""
    expressions = [rf"(?:^|.*?\.){each}\.(\d+)\." for each in patterns] or [r".*?\.[^.]*\.(\d+)\."]
    found = next((match for each in expressions if (match := _compiled(each).match(module))), None)
    return None if found is None else int(found[1])
