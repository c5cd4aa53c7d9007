"""The longest fixed text of a form, which an output may have to repeat."""

import json
import re
from typing import Any, Final

from jaxllm.requests.structured_outputs import StructuredOutputsParams

_PROSE: Final = frozenset(("title", "description", "$comment", "examples", "default"))
"""Members of a schema that say nothing of its values."""
_QUOTED: Final = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)


def longest_literal(form: StructuredOutputsParams) -> int:
    """Characters of the longest text that stands in an output as it is: a constant, a name, a choice, a pattern."""
    match form.kind:
        case "json":
            return _in_schema(_decoded(form.json))
        case "choice":
            return max(map(len, form.choice or ()), default=0)
        case "regex":
            return len(form.regex or "")
        case "grammar":
            return max((len(found[0]) for found in _QUOTED.finditer(form.grammar or "")), default=0)
        case "structural_tag":
            return _in_schema(_decoded(form.structural_tag))
    return 0


def _decoded(value: Any) -> Any:
    return json.loads(value) if isinstance(value, str) else value


def _in_schema(schema: Any) -> int:
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
