"""How deep the rules of a grammar in Lark's form or in GBNF go, and what they consist of."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from jaxllm.structured.complexity.heights import heights
from jaxllm.structured.complexity.regexes import measure_regex
from jaxllm.structured.complexity.schemas import Schema
from jaxllm.structured.complexity.sequences import (
    AGAIN,
    ATOM,
    CLOSE,
    CLOSE_MAYBE,
    EITHER,
    MAYBE,
    OPEN,
    OPEN_MAYBE,
    Measure,
    Token,
    measure,
)

_COMMON: Final = r"""
      (?P<comment>//[^\n]*|\#[^\n]*)
    | (?P<define>^[ \t]*[?!]*(?P<defined>[A-Za-z_][\w-]*)(?:\.-?\d+)?(?:\[[^\]\n]*\])?\s*(?:::=|:(?!:)))
    | (?P<text>"(?:\\.|[^"\\\n])*")
    | (?P<json>%(?:json|regex)\s*)
    | (?P<special><[^<>\s]*>)
    | (?P<name>[A-Za-z_][\w-]*)
    | (?P<open>[({]|\((?=\?))
    | (?P<close>[)}])
    | (?P<either>[|&])
"""
_QUANTIFIERS: Final = (
    r"(?P<maybe>[?*]|\{0*(?:,\d*)?\}|\{0+,\d*\})|(?P<again>\+|\{\d+(?:,\d*)?\}|~\s*\d+(?:\s*\.\.\s*\d+)?)"
)
_GBNF: Final = re.compile(
    rf"{_QUANTIFIERS}|(?P<special_class>\[(?:\\.|[^\]\\\n])*\])|{_COMMON}", re.VERBOSE | re.MULTILINE
)
_LARK: Final = re.compile(
    rf"{_QUANTIFIERS}|(?P<regex>/(?![/*])(?:\\.|[^/\\\n])+/)|{_COMMON}|(?P<open_maybe>\[)|(?P<close_maybe>\])",
    re.VERBOSE | re.MULTILINE,
)
_IS_LARK: Final = re.compile(r"(?m)^\s*(%llguidance\b|start\s*:)")
"""As llguidance tells the forms apart."""
_TOKENS: Final = {
    "open": OPEN,
    "close": CLOSE,
    "either": EITHER,
    "maybe": MAYBE,
    "again": AGAIN,
    "open_maybe": OPEN_MAYBE,
    "close_maybe": CLOSE_MAYBE,
}
_ATOMS: Final = ("text", "special", "special_class")


class _Name(NamedTuple):
    """Stands for the rule that it names."""

    name: str


@dataclass
class _Rule:
    tokens: list[Token | _Name] = field(default_factory=list)
    below: list[tuple[str, int]] = field(default_factory=list)
    """The rules that it names, and how many levels down."""
    groups: int = 0
    """The most groups and objects inside one another."""


class Rules:
    """The rules of a grammar; `levels` and `longest` are those of a `Schema`."""

    def __init__(self, grammar: str) -> None:
        self._rules: dict[str, _Rule] = {}
        self.levels = 0
        self.longest = 0
        self._read(grammar)
        self._measure()

    def _read(self, grammar: str) -> None:
        parts = _LARK if _IS_LARK.search(grammar) else _GBNF
        rule, depth, place = _Rule(), 0, 0
        while (part := parts.search(grammar, place)) is not None:
            kind, place = part.lastgroup, part.end()
            if kind == "define":
                rule, depth = self._rules.setdefault(part["defined"], _Rule()), 0
                if rule.tokens:
                    rule.tokens.append(EITHER)
            elif kind == "name":
                rule.tokens.append(_Name(part[0]))
                rule.below.append((part[0], depth + 1))
            elif kind == "regex":
                rule.tokens.append(measure_regex(part[0][1:-1]))
            elif kind == "json":
                place = self._read_json(grammar, place, rule, depth)
            elif kind in _ATOMS:
                rule.tokens.append(ATOM)
            elif kind is not None and kind in _TOKENS:
                rule.tokens.append(_TOKENS[kind])
                depth += (kind in ("open", "open_maybe")) - (kind in ("close", "close_maybe"))
                rule.groups = max(rule.groups, depth)

    def _read_json(self, grammar: str, place: int, rule: _Rule, depth: int) -> int:
        """Take the JSON at a place into account; where it ends."""
        try:
            found, place = json.JSONDecoder().raw_decode(grammar, place)
        except (ValueError, RecursionError):
            return place
        schema = Schema(found)
        self.longest = max(self.longest, schema.longest)
        rule.groups = max(rule.groups, depth + schema.levels())
        rule.tokens.append(ATOM)
        return place

    def _measure(self) -> None:
        every = _Rule(below=[(name, 0) for name in self._rules])
        rules: dict[str, Any] = {**self._rules, "": every}
        # A rule has a level for each of its own groups, as if they were rules that name nothing.
        found = heights("", lambda name: self._below(rules, name))
        self.levels = found[""]
        measures: dict[str, Measure] = {}
        for name in found:
            if name in self._rules:
                measures[name] = made = measure(self._known(self._rules[name], measures))
                self.longest = max(self.longest, made.longest)

    @staticmethod
    def _below(rules: dict[str, _Rule], name: str) -> Iterator[tuple[str, int]]:
        rule = rules.get(name)
        if rule is not None:
            yield "/", rule.groups
            yield from rule.below

    @staticmethod
    def _known(rule: _Rule, measures: dict[str, Measure]) -> Iterator[Token]:
        for token in rule.tokens:
            yield measures.get(token.name, ATOM) if isinstance(token, _Name) else token
