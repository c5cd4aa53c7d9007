"""Grammars that are rejected before they are compiled, because of how they are written."""

import json
import re
from typing import Any, Final

from jaxllm.errors import RequestError
from jaxllm.requests.structured_outputs import StructuredOutputsParams
from jaxllm.structured.complexity.regexes import measure_regex
from jaxllm.structured.complexity.rules import Rules
from jaxllm.structured.complexity.schemas import Schema

MAX_LEVELS: Final = 1000
"""Most levels along references or rules. llguidance needs up to 3.5 kB of stack for each, so 3.5 MB."""

MAX_OPTIONAL: Final = 500
"""Most optional parts in a row: the time of a mask grows with their square, and 1,000 take llguidance 17 ms."""


MAX_LITERAL: Final = 16_384
"""Most characters of one fixed text: all of it is looked at for each mask, 5 ms for so many."""


def check_complexity(form: StructuredOutputsParams) -> None:
    """Raise `RequestError` for a form with too long a text, or nested too deeply, or with too many optional parts."""
    literal = longest_literal(form)
    if literal > MAX_LITERAL:
        raise RequestError(
            f"{form.kind}: too complex: a constant, name or pattern of {literal} characters; at most {MAX_LITERAL} are "
            "allowed",
            form.kind,
        )
    levels, longest = _measure(form)
    if form.whitespace_pattern is not None:
        longest = max(longest, measure_regex(form.whitespace_pattern).longest)
    if levels > MAX_LEVELS:
        raise RequestError(
            f"{form.kind}: nested too deeply: {levels} levels along its references or rules; at most {MAX_LEVELS} are "
            f"allowed",
            form.kind,
        )
    if longest > MAX_OPTIONAL:
        raise RequestError(
            f"{form.kind}: too complex: {longest} optional parts in a row; at most {MAX_OPTIONAL} are allowed",
            form.kind,
        )


def _measure(form: StructuredOutputsParams) -> tuple[int, int]:
    """Levels, and optional parts in a row."""
    match form.kind:
        case "regex":
            return 0, measure_regex(form.regex or "").longest
        case "grammar":
            rules = Rules(form.grammar or "")
            return rules.levels, rules.longest
        case "json":
            schemas = [_decoded(form.json)]
        case "structural_tag":
            tag = _decoded(form.structural_tag)
            structures = tag.get("structures") if isinstance(tag, dict) else None
            schemas = [
                item.get("schema")
                for item in (structures if isinstance(structures, list) else [])
                if isinstance(item, dict)
            ]
        case _:
            schemas = []
    found = [Schema(schema) for schema in schemas]
    return max((each.levels() for each in found), default=0), max((each.longest for each in found), default=0)


def _decoded(value: Any) -> Any:
    return json.loads(value) if isinstance(value, str) else value


_PROSE: Final = frozenset(("title", "description", "$comment", "examples", "default"))
"""Members of a schema that say nothing of its values."""
_QUOTED: Final = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)


def longest_literal(form: StructuredOutputsParams) -> int:
    """Characters of the longest text that stands in an output as it is: a constant, a name, a choice, a pattern."""
    match form.kind:
        case "json":
            return _longest_in_schema(_decoded(form.json))
        case "choice":
            return max(map(len, form.choice or ()), default=0)
        case "regex":
            return len(form.regex or "")
        case "grammar":
            return max((len(found[0]) for found in _QUOTED.finditer(form.grammar or "")), default=0)
        case "structural_tag":
            return _longest_in_schema(_decoded(form.structural_tag))
    return 0


def _longest_in_schema(schema: Any) -> int:
    longest, waiting = 0, [schema]
    while waiting:
        each = waiting.pop()
        if isinstance(each, str):
            longest = max(longest, len(each))
        elif isinstance(each, list):
            waiting += each
        elif isinstance(each, dict):
            longest = max(longest, *map(len, each), 0)
            waiting += [value for name, value in each.items() if name not in _PROSE or isinstance(value, dict)]
    return longest
