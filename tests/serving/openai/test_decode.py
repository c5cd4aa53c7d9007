"""Everything that can be wrong with a body, and what the client is told."""

from typing import Any

import pytest

from jaxllm.serving.http.body.base import UnsupportedError
from jaxllm.serving.http.body.decode import decode
from jaxllm.serving.http.body.ignored_fields import FieldPolicy, IgnoredFields
from jaxllm.serving.http.body.settle import settle
from jaxllm.serving.http.errors import BodyError
from jaxllm.serving.openai.protocol.chat import ChatCompletionRequest
from jaxllm.serving.openai.protocol.completions import CompletionRequest

CHAT = b'{"messages":[{"role":"user","content":"hello"}]'


@pytest.mark.parametrize(
    ("rest", "param", "code", "says"),
    [
        (b"", None, "invalid_json", "truncated"),
        (b', "temprature": 1}', "temprature", "unknown_parameter", "'temperature'"),
        (b', "guided_jsn": {}}', "guided_jsn", "unknown_parameter", "'guided_json'"),
        (b', "stream_options": {"include_usages": true}}', "stream_options.include_usages", "unknown_parameter",
         "'include_usage'"),
        (b', "tools": [{"function": {"name": "f", "params": {}}}]}', "tools[0].function.params", "unknown_parameter",
         "'parameters'"),
        (b', "n": "3"}', "n", "invalid_type", "expected an integer, got a string"),
        (b', "n": 1.5}', "n", "invalid_type", "expected an integer, got a number"),
        (b', "stream": 1}', "stream", "invalid_type", "expected true or false, got an integer"),
        (b', "stop": [1]}', "stop[0]", "invalid_type", "expected a string, got an integer"),
        (b', "logit_bias": {"5": "x"}}', "logit_bias", "invalid_type", "expected a number, got a string"),
        (b', "temperature": NaN}', "temperature", "invalid_json", "nan is not a JSON number"),
        (b', "logit_bias": {"5": -Infinity}}', "logit_bias.5", "invalid_json", "-inf is not a JSON number"),
        (b', "temperature": 1e999}', "temperature", "invalid_type", "out of range"),
        (b', "user": "\\ud800"}', "user", "invalid_json", "lone surrogate"),
        (b', "user": "\xff"}', None, "invalid_json", "not UTF-8"),
        (b', "metadata": ' + b'{"a":' * 100_000, None, "invalid_json", "nested too deeply"),
        (b', "response_format": {"type": "json"}}', "response_format.type", "invalid_type",
         "'json'; choose one of 'text', 'json_object', 'json_schema', 'structural_tag'"),
        (b"} and more", None, "invalid_json", "trailing characters"),
    ],
)  # fmt: skip
def test_errors_name_the_field(rest: bytes, param: str | None, code: str, says: str) -> None:
    with pytest.raises(BodyError) as caught:
        decode(CHAT + rest, ChatCompletionRequest)
    assert (caught.value.parameter, caught.value.code) == (param, code)
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        (b"", None, "invalid_json"),
        (b" \n", None, "invalid_json"),
        (b"not json", None, "invalid_json"),
        (b"[1, 2]", None, "invalid_type"),
        (b"{}", "messages", "missing_required_parameter"),
        (b'{"messages": "hello"}', "messages", "invalid_type"),
        (b'{"messages": ["hello"]}', "messages[0]", "invalid_type"),
        (b'{"messages": [{"content": "hello"}]}', "messages[0].role", "missing_required_parameter"),
        (b'{"messages": [{"role": "user", "contents": "x"}]}', "messages[0].contents", "unknown_parameter"),
        (b'{"messages": [{"role": "user", "content": [{"type": "text", "txt": "x"}]}]}', "messages[0].content[0].txt",
         "unknown_parameter"),
        (b'{"messages": ' + b"[" * 100_000, "messages[0]", "invalid_type"),
        (b'{"messages": [{"role": "user", "content": "\\udc00 there"}]}', "messages[0].content", "invalid_json"),
    ],
)  # fmt: skip
def test_errors_in_messages(body: bytes, param: str | None, code: str) -> None:
    with pytest.raises(BodyError) as caught:
        decode(body, ChatCompletionRequest)
    assert (caught.value.parameter, caught.value.code) == (param, code)


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (b'"\xff"}', "not UTF-8"),
        (b'{"a":' * 100_000, "nested too deeply"),
        (b'"\\ud800"}', "lone surrogate"),
    ],
)
def test_unknown_fields_may_hold_what_is_wrong(value: bytes, says: str) -> None:
    """They are skipped at first, and their values are read only when the body is parsed again."""
    with pytest.raises(BodyError, match=says) as caught:
        decode(CHAT + b', "client_note": ' + value, ChatCompletionRequest, IgnoredFields(FieldPolicy()))
    assert caught.value.code == "invalid_json"


@pytest.mark.parametrize("prompt", [b'"text"', b'["a", "b"]', b"[1, 2, 3]", b"[[1, 2], [3]]"])
def test_prompts_of_all_shapes(prompt: bytes) -> None:
    assert decode(b'{"prompt":' + prompt + b"}", CompletionRequest).prompt


@pytest.mark.parametrize(
    ("kind", "field", "value"),
    [
        (CompletionRequest, b"suffix", b'"end"'),
        (CompletionRequest, b"guided_decoding_backend", b'"outlines"'),
        (ChatCompletionRequest, b"modalities", b'["text", "audio"]'),
        (ChatCompletionRequest, b"store", b"true"),
    ],
)
def test_known_fields_that_are_not_served_say_why(kind: Any, field: bytes, value: bytes) -> None:
    body = _with(kind, field, value)
    with pytest.raises(UnsupportedError) as caught:
        settle(body)
    assert caught.value.parameter == field.decode()
    assert len(str(caught.value)) > len(field) + 10


@pytest.mark.parametrize(
    ("kind", "field", "value"),
    [
        (CompletionRequest, b"suffix", b"null"),
        (CompletionRequest, b"suffix", b'""'),
        (ChatCompletionRequest, b"response_format", b'{"type": "text"}'),
        (ChatCompletionRequest, b"modalities", b'["text"]'),
        (ChatCompletionRequest, b"store", b"false"),
    ],
)
def test_values_of_theirs_that_ask_for_nothing_are_accepted(kind: Any, field: bytes, value: bytes) -> None:
    settle(_with(kind, field, value))


@pytest.mark.parametrize(
    ("field", "value"), [(b"file", b'{"type": "file", "file": {"file_id": "a"}}'),
                         (b"data", b'{"type": "prompt_embeds", "data": "UEsDBAAA"}')],
)  # fmt: skip
def test_parts_that_are_not_text_are_refused_where_they_stand(field: bytes, value: bytes) -> None:
    body = decode(b'{"messages": [{"role": "user", "content": [' + value + b"]}]}", ChatCompletionRequest)
    with pytest.raises(UnsupportedError) as caught:
        settle(body)
    assert caught.value.parameter == "messages[0].content[0]." + field.decode()


def _with(kind: Any, field: bytes, value: bytes) -> Any:
    begin = b'{"prompt": "x"' if kind is CompletionRequest else CHAT
    return decode(begin + b', "' + field + b'": ' + value + b"}", kind)
