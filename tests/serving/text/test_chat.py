"""Conversations become the prompt transformers makes of them; what cannot is named."""

from pathlib import Path
from typing import Any

import pytest

from jaxllm.errors import ConfigError, RequestError
from jaxllm.serving.text.chat import load_chat_template, render_chat
from jaxllm.serving.text.messages import normalise_messages
from jaxllm.serving.text.tokenizer import Tokenizer

TALK = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi 🙂"}]
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]


def test_rendering_is_transformers_rendering(tokenizer: Tokenizer) -> None:
    text = render_chat(tokenizer, TALK, tools=TOOLS, chat_template_kwargs={"thinking": True})
    want = tokenizer.hf.apply_chat_template(TALK, tools=TOOLS, add_generation_prompt=True, thinking=True)["input_ids"]
    assert tokenizer.encode([text], add_special_tokens=False)[0] == want
    assert text.startswith("TOOLS")
    assert text.endswith("<|start|>assistant\n<think>")


def test_continuing_the_final_message(tokenizer: Tokenizer) -> None:
    talk = [*TALK, {"role": "assistant", "content": "Hello th"}]
    text = render_chat(tokenizer, talk, add_generation_prompt=False, continue_final_message=True)
    assert text.endswith("<|start|>assistant\nHello th")
    with pytest.raises(RequestError, match="requires add_generation_prompt=False"):
        render_chat(tokenizer, talk, continue_final_message=True)


def test_a_template_of_the_callers(tokenizer: Tokenizer, fallback_tokenizer: Tokenizer) -> None:
    template = "{% for m in messages %}[{{ m.content }}]{% endfor %}"
    assert render_chat(tokenizer, TALK, chat_template=template) == "[Be brief.][Hi 🙂]"
    assert render_chat(fallback_tokenizer, TALK, chat_template=template) == "[Be brief.][Hi 🙂]"
    with pytest.raises(RequestError, match=r"no chat template: give one with chat_template="):
        render_chat(fallback_tokenizer, TALK)


def test_tool_calls_and_parts_are_normalised_in_a_copy(tokenizer: Tokenizer) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
    talk: list[dict[str, Any]] = [
        {"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "2", "tool_call_id": "1"},
    ]
    text = render_chat(tokenizer, talk)
    assert "<|start|>user\none\ntwo<|end|>" in text
    assert '<|start|>assistant\nCALL add {"a": 1}<|end|>' in text
    assert call["function"]["arguments"] == '{"a": 1}', "the caller's message was changed"  # type: ignore[index]


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ("hello", "expected a list of messages, got str"),
        ([], "the list is empty"),
        (["hello"], r"messages\[0\]: expected an object with role and content, got str"),
        ([{"content": "x"}], r"messages\[0\]: role=None must be a string"),
        ([TALK[0], {"role": "user", "content": 5}], r"messages\[1\]: content must be text or a list of parts, got int"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], r"content\[0\] is of type 'image_url'; .*text only"),
        (
            [{"role": "assistant", "tool_calls": [{}]}],
            r"messages\[0\].tool_calls\[0\]: expected an object with a function",
        ),
        ([{"role": "user", "content": [{"type": "text"}]}], r"content\[0\] is of type 'text' and has no text"),
    ],
)
def test_wrong_messages_are_named(messages: Any, message: str) -> None:
    with pytest.raises(RequestError, match=message) as error:
        normalise_messages(messages)
    assert error.value.parameter == "messages"


def test_what_a_template_raises_is_the_requests_error(tokenizer: Tokenizer) -> None:
    with pytest.raises(RequestError, match="the chat template rejects these messages: bad role robot"):
        render_chat(tokenizer, [{"role": "robot", "content": ""}])
    with pytest.raises(RequestError, match="the chat template rejects"):
        render_chat(tokenizer, TALK, chat_template="{% for %}")
    with pytest.raises(RequestError, match="the chat template rejects"):
        render_chat(tokenizer, TALK, chat_template="{{ 1 / 0 }}")


def test_a_template_is_text_or_a_file(tmp_path: Path) -> None:
    (tmp_path / "a.jinja").write_text("{{ messages }}", encoding="utf-8")
    assert load_chat_template(str(tmp_path / "a.jinja")) == load_chat_template("{{ messages }}") == "{{ messages }}"
    with pytest.raises(ConfigError, match="neither Jinja text nor a readable file"):
        load_chat_template("missing.jinja")


@pytest.mark.parametrize("name", ["messages", "tools", "add_generation_prompt", "continue_final_message", "tokenize"])
def test_names_of_the_conversation_itself_are_no_variables(tokenizer: Tokenizer, name: str) -> None:
    with pytest.raises(RequestError, match=rf"chat_template_kwargs\.{name}: not a template argument") as refused:
        render_chat(tokenizer, [{"role": "user", "content": "a"}], chat_template_kwargs={name: []})
    assert refused.value.parameter == "chat_template_kwargs"
    variable = {"self": 1}
    assert render_chat(tokenizer, [{"role": "user", "content": "a"}], chat_template_kwargs=variable)
