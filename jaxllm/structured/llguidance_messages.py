"""What llguidance says is wrong, in the words of this project: some of its advice is about options not given here."""

import re
from typing import Final

from jaxllm.errors import shortened

_REWRITTEN: Final = (
    (
        re.compile(r"oneOf constraints are not supported\. Enable 'coerce_one_of'.*"),
        "oneOf needs schemas that differ in type, or in a constant of a required property: or write anyOf",
    ),
    (
        re.compile(r"Resource '([^']{0,80})[^']*' is not present in a registry.*"),
        r"$ref leads to another document, '\1', and none is fetched: put what it refers to into this schema",
    ),
    (
        re.compile(r"Unimplemented keys: \[(.*)\]"),
        r"these keywords of JSON Schema are not supported: \1",
    ),
    (re.compile(r"(Unsatisfiable schema: Regex is empty):.*"), r"\1"),
    (
        re.compile(r"(Too many items [^)]*\)); try avoiding single-byte/short lexemes"),
        r"\1; rules that can be read in fewer ways, or are regular expressions, need less",
    ),
    (re.compile(r"; consider making your grammar left-recursive if it's right-recursive"), ""),
)


def first_line(message: str) -> str:
    """What llguidance says, without its state and without pages of grammar."""
    if message.startswith("panic"):
        return "the grammar is too complex, or a defect of llguidance"
    message = message.split("\n<state>", maxsplit=1)[0].replace("\n<non-verbose/>", "").strip()
    message = re.sub(r"\s*\n\s*", " | ", message or "the grammar cannot be followed any further")
    for pattern, better in _REWRITTEN:
        message = pattern.sub(better, message)
    return shortened(message)
