"""Depth is counted along references of every kind, and what is accepted llguidance survives on the stacks it has."""

import json
from bisect import bisect_right
from collections.abc import Iterator
from functools import partial
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxllm.errors import RequestError
from jaxllm.requests.structured_outputs import StructuredOutputsParams
from jaxllm.structured.backend import make_backend
from jaxllm.structured.complexity.check import MAX_LEVELS, MAX_OPTIONAL, check_complexity, longest_literal
from jaxllm.structured.complexity.regexes import measure_regex
from jaxllm.structured.complexity.rules import Rules
from jaxllm.structured.complexity.schemas import Schema
from jaxllm.structured.grammar_sandbox.client import Canary
from jaxllm.structured.grammar_sandbox.messages import Budget
from jaxllm.structured.grammar_sandbox.trial import attempt
from tests.jaxllm.structured.grammar_sandbox.demo import demo_canary, demo_vocabulary

LINKS: dict[str, tuple[Any, int]] = {
    "plain": (lambda below: below, 1),
    "anchor": (lambda below: {"$ref": "#a" + below["$ref"].rpartition("/")[2]}, 1),
    "dynamic": (lambda below: {"$dynamicRef": "#a" + below["$ref"].rpartition("/")[2]}, 1),
    "all": (lambda below: {"allOf": [below, {"minLength": 1}]}, 3),
    "any": (lambda below: {"anyOf": [below, {"type": "null"}]}, 3),
    "property": (lambda below: {"type": "object", "properties": {"a": below}}, 3),
    "items": (lambda below: {"type": "array", "items": below}, 2),
    "others": (lambda below: {"type": "object", "additionalProperties": below}, 2),
}
"""Ways for a definition to refer to the next one, and the levels of each."""


def chain(kinds: list[str]) -> dict[str, Any]:
    """A schema in which each definition refers to the next one in its own way."""
    definitions: dict[str, Any] = {}
    for number, kind in enumerate(kinds):
        made = dict(LINKS[kind][0]({"$ref": f"#/$defs/{number + 1}"}))
        definitions[str(number)] = {**made, "$anchor": f"a{number}"}
    last = {"type": "string", "$anchor": f"a{len(kinds)}"}
    return {"$defs": {**definitions, str(len(kinds)): last}, "$ref": "#/$defs/0"}


@pytest.fixture(scope="module")
def canary() -> Iterator[Canary]:
    made = demo_canary()
    yield made
    made.close()


COMPILED = [kind for kind in LINKS if kind not in ("anchor", "dynamic")]
"""llguidance does not follow the others."""


@settings(max_examples=20, deadline=None)
@given(st.lists(st.sampled_from(COMPILED), min_size=1, max_size=6), st.integers(1, 900))
def test_what_is_not_too_deep_is_compiled(canary: Canary, kinds: list[str], count: int) -> None:
    """Chains of kinds that repeat, as long as allowed or longer."""
    repeated = (kinds * count)[:count]
    schema = chain(repeated)
    levels = sum(LINKS[kind][1] for kind in repeated)
    assert levels <= Schema(schema).levels() <= levels + 3
    verdict = canary.ask(StructuredOutputsParams(json=schema)).result()
    if Schema(schema).levels() > MAX_LEVELS:
        assert "nested too deeply" in (verdict.error or "")
    else:
        # Of some chains almost as long as allowed, 232 times "all" or "any" in turn, llguidance itself has had enough.
        assert verdict.error in (None, "json: schema too large")


@given(st.lists(st.sampled_from(list(LINKS)), min_size=MAX_LEVELS, max_size=MAX_LEVELS + 200))
@settings(max_examples=10, deadline=None)
def test_chains_of_all_kinds_are_counted(kinds: list[str]) -> None:
    schema = chain(kinds)
    with pytest.raises(RequestError, match="nested too deeply"):
        check_complexity(StructuredOutputsParams(json=json.dumps(schema)))


def rules(count: int, *, name: str, form: str) -> str:
    """A chain of rules or terminals in Lark's form or in GBNF, some in groups."""
    sign, start = (" ::=", "root") if form == "gbnf" else (":", "start")
    lines = [
        f'{name}{number}{sign} ("x" | {name}{number + 1}) "a"'
        if number % 3
        else f'{name}{number}{sign} {name}{number + 1} "a"'
        for number in range(count)
    ]
    return "\n".join([f"{start}{sign} {name}0", *lines, f'{name}{count}{sign} "b"'])


def _levels(count: int, **form: str) -> int:
    return Rules(rules(count, **form)).levels


@pytest.mark.parametrize(("name", "form"), [("r", "lark"), ("T", "lark"), ("r", "gbnf")])
def test_rules_are_counted(canary: Canary, name: str, form: str) -> None:
    levels = partial(_levels, name=name, form=form)
    longest = bisect_right(range(1000), MAX_LEVELS, key=levels) - 1
    good = rules(longest, name=name, form=form)
    assert canary.ask(StructuredOutputsParams(grammar=good)).result().error is None
    bad = rules(longest + 1, name=name, form=form)
    assert "nested too deeply" in (canary.ask(StructuredOutputsParams(grammar=bad)).result().error or "")


def test_schemas_inside_rules_and_tags_are_counted() -> None:
    deep = chain(["plain"] * 2000)
    for form in (
        {"grammar": f"start: r1\nr1: %json {json.dumps(deep)}\n"},
        {"structural_tag": {"structures": [{"begin": "<a>", "schema": deep, "end": "x"}], "triggers": ["<a>"]}},
    ):
        with pytest.raises(RequestError, match="nested too deeply"):
            check_complexity(StructuredOutputsParams(**form))


def test_circles_are_no_depth() -> None:
    """A schema of a language: everything may hold everything."""
    names = [f"node{number}" for number in range(60)]
    every = [{"$ref": f"#/$defs/{name}"} for name in names]
    node = {"type": "object", "properties": {"a": {"anyOf": every}}}
    schema = {"$defs": dict.fromkeys(names, node), "$ref": "#/$defs/node0"}
    assert Schema(json.loads(json.dumps(schema))).levels() < MAX_LEVELS
    check_complexity(StructuredOutputsParams(json=json.dumps(schema)))
    check_complexity(StructuredOutputsParams(grammar='start: e\ne: e "+" e | "(" e ")" | /[0-9]+/'))


@pytest.mark.parametrize(
    ("regex", "longest"),
    [
        ("abc", 0),
        ("a?b?c?", 3),
        ("a?b?cd?", 2),
        ("(a?b?){3}c*d{0,5}", 4),
        ("((a?)(b*))?(c|d?)", 3),
        ("(?:a?|b?c?)x", 2),
        (r"[]a?]?\]?[^\]?]*(?P<n>x{,3})\p{L}?", 5),
        ("a+b{1,}c{2}", 0),
        ("(a?b?", 2),
        ("a?)b?", 2),
    ],
)
def test_optional_parts_in_a_row(regex: str, longest: int) -> None:
    assert measure_regex(regex).longest == longest


@pytest.mark.parametrize(
    ("grammar", "longest"),
    [
        ('start: "a"? "b"? c\nc: "x"?', 3),
        ('start: ["a"] "b" "c"*', 1),
        ("start: /a?b?c?/ T\nT: U U\nU: V V\nV: /x?/", 7),
        ('root ::= "a"? [b?]? (c | "x")\nc ::= "y"*  # "a"? "a"? "a"?', 3),
        ('start: "a?b?c?" // "a"? "b"?', 0),
        ('start: start? "a"? start', 2),
    ],
)
def test_optional_parts_of_rules(grammar: str, longest: int) -> None:
    assert Rules(grammar).longest == longest


def test_too_many_optional_parts_are_refused() -> None:
    pattern = {"patternProperties": {"a?" * (MAX_OPTIONAL + 1): True}}
    for form in (
        {"regex": "x" + "a?" * (MAX_OPTIONAL + 1)},
        {"json": pattern},
        {"json_object": True, "whitespace_pattern": " ?" * 600},
    ):
        with pytest.raises(RequestError, match="optional parts in a row"):
            check_complexity(StructuredOutputsParams(**form))
    check_complexity(StructuredOutputsParams(regex="x" + "a?" * MAX_OPTIONAL))


LONG = "lorem ipsum dolor " * 1000


def form(schema: Any) -> StructuredOutputsParams:
    return StructuredOutputsParams(json=json.dumps(schema))


@pytest.mark.parametrize(
    ("given", "size"),
    [
        (form({"const": "abcdefg"}), 7),
        (form({"description": "x" * 999, "enum": ["a", "bc"]}), len("description")),
        (form({"properties": {"description": {"const": "abcdefghijklmno"}}}), 15),
        (StructuredOutputsParams(choice=["a", "bc"]), 2),
        (StructuredOutputsParams(regex="a{3}"), 4),
        (StructuredOutputsParams(grammar='root ::= "a\\"c" "b"'), 6),
        (StructuredOutputsParams(json_object=True), 0),
    ],
)
def test_the_longest_text(given: StructuredOutputsParams, size: int) -> None:
    assert longest_literal(given) == size


@pytest.mark.parametrize(
    "given",
    [
        form({"const": LONG}),
        form({"enum": ["a", LONG]}),
        form({"properties": {"a": {"const": LONG}}, "required": ["a"]}),
        form({"properties": {LONG: {}}}),
        form({"type": "string", "pattern": LONG}),
        form({"$defs": {"a": {"const": [1, [LONG]]}}}),
        StructuredOutputsParams(choice=[LONG]),
        StructuredOutputsParams(regex=LONG),
        StructuredOutputsParams(grammar=f'root ::= "{LONG}"'),
    ],
)
def test_a_long_text_is_refused_before_it_is_compiled(given: StructuredOutputsParams) -> None:
    with pytest.raises(RequestError, match=r"of \d+ characters; at most 16384 are allowed"):
        check_complexity(given)


def test_long_prose_is_none() -> None:
    check_complexity(form({"description": LONG, "type": "object", "title": LONG}))


def test_a_slow_one_is_the_last_of_its_grammar(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jaxllm.structured.llguidance_backend.SLOW_FORCED_SECONDS", -1.0)
    grammar = make_backend("llguidance", demo_vocabulary()).compile(StructuredOutputsParams(choice=["hello"]))
    assert grammar.matcher().forced()
    assert grammar.matcher().forced() == []


def test_what_the_text_does_not_show_is_tried_before() -> None:
    backend = make_backend("llguidance", demo_vocabulary())
    data = msgspec.msgpack.encode(StructuredOutputsParams(choice=["hello"]))
    verdict = attempt(backend, 1536, data, Budget(forced_seconds=-1.0))
    assert "a forced string is too long" in (verdict.error or "")
