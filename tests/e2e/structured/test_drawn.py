"""Whatever the schema or the regular expression, outputs that end by themselves follow it."""

import json
import re
from collections.abc import Iterator
from datetime import date
from typing import Any

import jsonschema
import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from jaxllm import LLM, SamplingParams
from tests.e2e.structured.drawn import regexes, schemas
from tests.thinned import EVERY_CASE

# Without the drafts that came before: in the third a time had no zone.
FORMATS = jsonschema.FormatChecker(jsonschema.Draft202012Validator.FORMAT_CHECKER.checkers)


@FORMATS.checks("date", ValueError)
def is_date(value: object) -> bool:
    """As RFC 3339 has it: Python's dates begin with the year 1, so the year 0 is looked at as the year 4000."""
    return not isinstance(value, str) or bool(date.fromisoformat(re.sub("^0000", "4000", value)))


PROMPT = "Give me a JSON object for Mira with name, animal and likes."


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    """The demo model."""
    with LLM("demo", max_model_len=512, max_num_seqs=64, optimization_level=0, strict_compilation=True) as made:
        yield made


def drawn(strategy: st.SearchStrategy[Any], count: int, number: int) -> list[Any]:
    """Different values, the same in every run."""
    found: dict[str, Any] = {}

    @seed(number)
    @settings(
        max_examples=4 * count, database=None, phases=[Phase.generate], deadline=None,
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(strategy)
    def collect(value: Any) -> None:
        if len(found) < count:
            found.setdefault(json.dumps(value), value)

    collect()
    return list(found.values())


def answers(llm: LLM, forms: list[dict[str, Any]]) -> list[tuple[str, str | None]]:
    """(text, finish reason) for each form; every third greedy."""
    params = [
        SamplingParams(temperature=0.0 if index % 3 == 0 else 1.0, seed=index, max_tokens=200, structured_outputs=form)  # type: ignore[arg-type]
        for index, form in enumerate(forms)
    ]
    conversations: list[Any] = [[{"role": "user", "content": PROMPT}]] * len(forms)
    results = llm.chat(conversations, params, use_tqdm=False)
    return [(result.outputs[0].text, result.outputs[0].finish_reason) for result in results]


def check_schemas(llm: LLM, count: int) -> None:
    """Every output that ended is valid, and most end."""
    found = drawn(schemas(), count, 1)
    assert len(found) == count
    ended = 0
    for schema, (text, reason) in zip(found, answers(llm, [{"json": schema} for schema in found]), strict=True):
        if reason == "length":
            continue
        ended += 1
        value = json.loads(text)
        jsonschema.Draft202012Validator(schema, format_checker=FORMATS).validate(value)
    assert ended >= 0.75 * count, "some texts may be of any length"


def check_regexes(llm: LLM, count: int) -> None:
    """Every output that ended matches."""
    found = drawn(regexes, count, 2)
    assert len(found) == count
    ended = 0
    for regex, (text, reason) in zip(found, answers(llm, [{"regex": regex} for regex in found]), strict=True):
        ended += reason == "stop"
        assert reason == "length" or re.fullmatch(regex, text), (regex, text)
    assert ended >= 0.9 * count


def test_schemas(llm: LLM) -> None:
    check_schemas(llm, 30)


def test_regexes(llm: LLM) -> None:
    check_regexes(llm, 60)


@pytest.mark.slow
def test_many_schemas(llm: LLM) -> None:
    check_schemas(llm, 500 if EVERY_CASE else 150)


@pytest.mark.slow
def test_many_regexes(llm: LLM) -> None:
    check_regexes(llm, 200 if EVERY_CASE else 120)
