from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from jaxllm.errors import RequestError
from jaxllm.serving.openai.chat.prompt import conversation, last_content, render, tool_dictionaries
from jaxllm.serving.openai.protocol.chat import ChatCompletionRequest
from jaxllm.serving.openai.protocol.messages import Message, Tool
from jaxllm.serving.options.server import ServerOptions
from jaxllm.serving.text.tokenizer import Tokenizer

CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}


def plain(*messages: dict[str, Any]) -> list[dict[str, Any]]:
    return conversation(msgspec.convert(messages, list[Message]))


def test_only_what_was_given_reaches_the_template() -> None:
    user = {"role": "user", "content": "hello", "name": "Ada"}
    answer = {"role": "assistant", "tool_calls": [CALL]}
    result = {"role": "tool", "content": "2", "tool_call_id": "1"}
    assert plain(user, answer, result) == [user, answer, result]


def test_what_openais_client_sends_back_of_an_answer() -> None:
    sent: dict[str, Any] = {"role": "assistant", "content": "hi", "refusal": None, "annotations": [], "audio": None}
    assert plain(sent) == [{"role": "assistant", "content": "hi"}]
    assert plain({"role": "assistant", "refusal": "No."}) == [{"role": "assistant", "content": "No."}]


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
def test_reasoning_has_both_its_names(name: str) -> None:
    (message,) = plain({"role": "assistant", "content": "4", name: "2 + 2"})
    assert message == {"role": "assistant", "content": "4", "reasoning": "2 + 2", "reasoning_content": "2 + 2"}


def test_parts_keep_their_text() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "refusal", "refusal": "b"}]
    (message,) = plain({"role": "assistant", "content": parts})
    assert message["content"] == [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert last_content([message], "assistant") == "a\nb"
    assert last_content([message], "user") == ""


@pytest.mark.parametrize(
    ("message", "parameter"),
    [
        ({"role": "user"}, "messages[0].content"),
        ({"role": "tool", "content": None}, "messages[0].content"),
        ({"role": "user", "content": [{"type": "video", "text": "x"}]}, "messages[0].content[0].type"),
        ({"role": "user", "content": [{"type": "text", "refusal": "x"}]}, "messages[0].content[0].text"),
        ({"role": "assistant", "tool_calls": [{"id": "1"}]}, "messages[0].tool_calls[0].function"),
    ],
)
def test_errors_name_the_place(message: dict[str, Any], parameter: str) -> None:
    with pytest.raises(RequestError) as caught:
        plain(message)
    assert caught.value.parameter == parameter


@pytest.mark.parametrize(("form", "prompt"), [("auto", "hi"), ("string", "hi"), ("openai", "[hi]")])
def test_the_operators_form_of_contents(tokenizer: Tokenizer, form: Any, prompt: str) -> None:
    template = (
        "{% for m in messages %}{% if m.content is string %}{{ m.content }}"
        "{% else %}{% for p in m.content %}[{{ p.text }}]{% endfor %}{% endif %}{% endfor %}"
    )
    options = ServerOptions(chat_template_content_format=form)
    server: Any = SimpleNamespace(
        options=options, tokenizer=tokenizer, llm=SimpleNamespace(chat_template=template), media={}
    )
    body = ChatCompletionRequest(messages=[Message(role="user", content="hi")])
    assert render(server, body)[1] == prompt


def test_tools() -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    assert tool_dictionaries(msgspec.convert([tool], list[Tool])) == [tool]
    assert tool_dictionaries([]) is tool_dictionaries(None) is None
    with pytest.raises(RequestError, match="function: this field is required"):
        tool_dictionaries([Tool()])
