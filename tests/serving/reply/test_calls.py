"""Calls written as JSON objects: what their arguments may be, and what models write too much of."""

import pytest

from jaxllm.serving.reply.compose import make_parser
from jaxllm.serving.reply.parts import Reply, read_whole
from jaxllm.serving.reply.registry import tool_format


def read(text: str, name: str = "hermes") -> Reply:
    return read_whole(make_parser(tool_format(name), schemas={"f": {}}), text)


def hermes(call: str) -> Reply:
    return read(f"<tool_call>\n{call}\n</tool_call>")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ('{"a": 1}', '{"a": 1}'),
        ("null", "{}"),
        (r'"{\"a\": 1}"', '{"a": 1}'),
        ('"{}"', "{}"),
        ('""', "{}"),
        ("[]", "{}"),
        ("{}", "{}"),
    ],
)
@pytest.mark.parametrize("order", ["name first", "arguments first"])
def test_arguments_that_are_an_object_in_some_form(arguments: str, expected: str, order: str) -> None:
    parts = ['"name": "f"', f'"arguments": {arguments}']
    reply = hermes("{" + ", ".join(parts if order == "name first" else parts[::-1]) + "}")
    assert [(call.name, call.arguments) for call in reply.tool_calls] == [("f", expected)]
    assert reply.content is None


@pytest.mark.parametrize("arguments", ['"a: 1"', '"[1]"', '"null"', "[1]", "5", "true", '"{broken"'])
def test_arguments_that_are_no_object_make_no_call(arguments: str) -> None:
    text = f'<tool_call>\n{{"name": "f", "arguments": {arguments}}}\n</tool_call>'
    assert read(text) == Reply(text)


def test_a_call_without_arguments() -> None:
    assert [(call.name, call.arguments) for call in hermes('{"name": "f"}').tool_calls] == [("f", "{}")]


@pytest.mark.parametrize("surplus", ["}", "}}", "]", "]}", "}\n", " } ] "])
def test_brackets_too_many_before_the_end_are_dropped(surplus: str) -> None:
    call = '{"name": "f", "arguments": {"a": 1}}'
    reply = read(f"<tool_call>\n{call}{surplus}</tool_call> and on")
    assert [call.arguments for call in reply.tool_calls] == ['{"a": 1}']
    assert (reply.content or "").strip() == "and on"


def test_brackets_that_no_end_follows_are_content() -> None:
    reply = read('<tool_call>\n{"name": "f", "arguments": {}}}] and on')
    assert (reply.content or "").strip() == "}] and on"
