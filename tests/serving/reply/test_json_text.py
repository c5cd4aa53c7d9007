"""Objects that are JSON, nearly JSON, and cut: what is handed on, however the text is cut."""

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from jaxllm.serving.reply.compose import make_parser
from jaxllm.serving.reply.json_text import whole_json
from jaxllm.serving.reply.parts import fold, read_whole
from jaxllm.serving.reply.registry import tool_format


def strict(text: str) -> Any:
    """The value of JSON as its standard has it."""

    def refuse(name: str) -> None:
        raise ValueError(name)

    return json.loads(text, parse_constant=refuse)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"a": NaN, "b": -Infinity, "c": [Infinity]}', {"a": "NaN", "b": "-Infinity", "c": ["Infinity"]}),
        ('{"a": 007, "b": +1, "c": .5, "d": 5., "e": -01.50}', {"a": 7, "b": 1, "c": 0.5, "d": 5, "e": -1.5}),
        ('{"a": True, "b": False, "c": None}', {"a": True, "b": False, "c": None}),
        ("{'a': 'it\\'s \"x\"', 'b': ['c']}", {"a": 'it\'s "x"', "b": ["c"]}),
        ('{"a": [1, 2,], "b": {"c": 1,},}', {"a": [1, 2], "b": {"c": 1}}),
        ('{"a": 1,, "b": 2}', {"a": 1, "b": 2}),
        ('{"a": 1 "b": 2}', {"a": 1, "b": 2}),
        ('{"a": 1\n"b": 2}', {"a": 1, "b": 2}),
        ("{a: 1, b_c: Oak Hill}", {"a": 1, "b_c": "Oak Hill"}),
        ('{"a": "two\nlines\tand a tab"}', {"a": "two\nlines\tand a tab"}),
        (r'{"a": "\d+ \' \x41 \u12"}', {"a": r"\d+ ' \x41 \u12"}),
        ('{"a": "say "hi" now"}', {"a": 'say "hi" now'}),
        ('{"a": , "b"}', {"a": None, "b": None}),
        ('{{"a": 1}}', {"a": 1}),
        ('{"a": [1}}', {"a": [1]}),
        ('{"a": (1)}', {"a": "(1)"}),
    ],
)
def test_what_is_nearly_json_becomes_json(text: str, expected: dict[str, Any]) -> None:
    found = whole_json(text)
    assert found is not None
    assert strict(found) == expected


@given(st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=8,
).filter(lambda value: isinstance(value, (dict, list))), st.sampled_from([None, 1]), st.booleans())  # fmt: skip
def test_json_is_handed_on_to_the_last_character(value: Any, indent: int | None, ascii_only: bool) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=ascii_only)
    assert whole_json(text) == text


PIECES = [*"{}[],:\"'\\ \n\t-x🙂", '{"a": ', '"b"', "1", "007", "True", "NaN", "\\u12", "\ud800", "</t", "<t>"]


@given(st.lists(st.sampled_from(PIECES), max_size=30).map("".join))
def test_whatever_is_closed_is_json(text: str) -> None:
    found = whole_json("{" + text)
    if found is not None:
        assert isinstance(strict(found), dict)


@given(st.lists(st.sampled_from([*PIECES, "</tool_call>", "<tool_call>", "</tool"]), max_size=30).map("".join))
@example('"-": [1:')
def test_cut_or_whole(text: str) -> None:
    text = '<tool_call>{"name": "f", "arguments": {' + text

    def parser() -> Any:
        return make_parser(tool_format("hermes"), new_id=lambda: "call")

    whole, cut = read_whole(parser(), text), parser()
    parts = [part for character in text for part in cut.push(character)]
    assert fold([*parts, *cut.finish()]) == whole


def test_a_text_without_end_takes_time_by_its_length() -> None:
    for filler in ('"', "'", "\\", "{", "[", ",", ":", "</tool_call>", '"</tool_call>', " ", "\n", '" ', "1 ", "x"):
        text = '<tool_call>{"name": "f", "arguments": {"a": "' + filler * 20_000
        parser = make_parser(tool_format("hermes"))
        for place in range(0, len(text), 7):
            parser.push(text[place : place + 7])
        parser.finish()
