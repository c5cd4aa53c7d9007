"""Long fixed texts, which keep everybody waiting, are refused."""

import json
from typing import Any

import msgspec
import pytest

from jaxllm.errors import RequestError
from jaxllm.requests.structured_outputs import StructuredOutputsParams
from jaxllm.structured.backend import make_backend
from jaxllm.structured.complexity.check import check_complexity
from jaxllm.structured.complexity.literals import longest_literal
from jaxllm.structured.grammar_sandbox.messages import Budget
from jaxllm.structured.grammar_sandbox.trial import attempt
from tests.jaxllm.structured.grammar_sandbox.demo import demo_vocabulary

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
    assert "must follow at one place is too long" in (verdict.error or "")
