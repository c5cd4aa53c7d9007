"""Fields that the server does not know or serve: ignored and named, or refused where they look like misspellings."""

import json
from collections.abc import Iterator
from typing import Any, get_type_hints

import httpx
import msgspec
import pytest
from anthropic.types import message_count_tokens_params, message_create_params
from anthropic.types.beta import message_create_params as beta_messages
from openai.types import completion_create_params, embedding_create_params
from openai.types.chat import completion_create_params as chat_params
from openai.types.responses import response_create_params

from jaxllm.serving.anthropic.requests import CountTokensRequest, MessagesRequest
from jaxllm.serving.http.body.base import Body, Ignored, UnsupportedError, refused_fields
from jaxllm.serving.http.body.decode import decode
from jaxllm.serving.http.body.ignored_fields import FieldPolicy, IgnoredFields, settle
from jaxllm.serving.http.errors import BodyError
from jaxllm.serving.openai.protocol.chat import ChatCompletionRequest
from jaxllm.serving.openai.protocol.completions import CompletionRequest
from jaxllm.serving.openai.protocol.pooling import EmbeddingRequest
from jaxllm.serving.openai.protocol.responses import ResponsesRequest

MESSAGES = [{"role": "user", "content": "hello"}]
CHAT = {"messages": MESSAGES}
FOREIGN: dict[str, Any] = {
    # What clients of other servers send with a chat.
    "cache_prompt": True, "client_metadata": {"a": "b"}, "context_management": {"edits": []}, "id_slot": -1,
    "slot_id": 0, "mirostat": 0, "mirostat_tau": 5.0, "num_ctx": 4096, "num_predict": 10, "keep_alive": "5m",
    "options": {}, "repeat_penalty": 1.1, "repeat_last_n": 64, "tfs_z": 1, "typical_p": 1, "top_a": 0, "models": ["a"],
    "provider": {"order": []}, "transforms": [], "route": "fallback", "plugins": [], "usage": {"include": True},
    "reasoning_format": "parsed", "reasoning_split": True, "reasoning": {"effort": "low"}, "thinking": {"type": "auto"},
    "safe_prompt": False, "random_seed": 1, "do_sample": True, "search_parameters": {}, "enable_search": False,
    "extra_body": {}, "conversation_id": "x", "trace_id": "y", "user_id": "z", "timings_per_token": True,
    "dry_multiplier": 0, "xtc_probability": 0, "grammar": None, "samplers": ["top_k"], "t_max_predict_ms": 1,
    "rid": "x", "lora_path": None, "separate_reasoning": True, "ebnf": None, "regex": None,
}  # fmt: skip


def fresh(*, strict: bool = False) -> IgnoredFields:
    return IgnoredFields(FieldPolicy(strict=strict))


def read(body: Any, kind: type[Body], ignored: IgnoredFields | None = None) -> Any:
    ignored = fresh() if ignored is None else ignored
    made = decode(json.dumps(body).encode(), kind, ignored)
    settle(made, "", ignored)
    return made


def names(ignored: IgnoredFields) -> set[str]:
    return set((ignored.header() or "").split(", ")) - {""}


@pytest.mark.parametrize("field", FOREIGN)
def test_fields_of_other_servers_are_ignored_and_named(field: str) -> None:
    ignored = fresh()
    assert read({**CHAT, field: FOREIGN[field]}, ChatCompletionRequest, ignored) == read(CHAT, ChatCompletionRequest)
    assert names(ignored) == {field}
    with pytest.raises((BodyError, UnsupportedError)) as caught:
        read({**CHAT, field: FOREIGN[field]}, ChatCompletionRequest, fresh(strict=True))
    assert caught.value.parameter == field


@pytest.mark.parametrize(
    ("change", "field", "says"),
    [
        ({"temprature": 1}, "temprature", "'temperature'"),
        ({"max_token": 1}, "max_token", "'max_tokens'"),
        ({"maxTokens": 1}, "maxTokens", "'max_tokens'"),
        ({"max_new_tokens": 1}, "max_new_tokens", "'max_tokens'"),
        ({"tool": []}, "tool", "'tools'"),
        ({"stream_options": {"include_usages": True}}, "stream_options.include_usages", "'include_usage'"),
        ({"tools": [{"function": {"name": "f", "params": {}}}]}, "tools[0].function.params", "'parameters'"),
        ({"messages": [*MESSAGES, {"role": "user", "contents": "x"}]}, "messages[1].contents", "'content'"),
    ],
)
def test_misspellings_are_refused(change: dict[str, Any], field: str, says: str) -> None:
    with pytest.raises(BodyError) as caught:
        read({**CHAT, **change, "foreign_thing": 1}, ChatCompletionRequest)
    assert (caught.value.parameter, caught.value.code) == (field, "unknown_parameter")
    assert says in str(caught.value)


def test_misspellings_are_ignored_and_named_where_the_operator_says_so() -> None:
    ignored = IgnoredFields(FieldPolicy(strict=False, ignore_typos=True))
    tools = [{"function": {"name": "f", "params": {}}}]
    made = read({**CHAT, "temprature": 1, "tools": tools}, ChatCompletionRequest, ignored)
    assert made == read({**CHAT, "tools": [{"function": {"name": "f"}}]}, ChatCompletionRequest)
    assert names(ignored) == {"temprature", "tools.function.params"}
    with pytest.raises(BodyError, match="expected"):
        read({**CHAT, "temprature": 1, "temperature": "x"}, ChatCompletionRequest, ignored)


def test_what_stands_inside_others_is_ignored_too() -> None:
    body = {
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "hi", "cache_control": {"type": "ephemeral"}}]},
            {"role": "assistant", "content": "x", "metadata": {}, "tool_calls": [
                {"id": "a", "function": {"name": "f", "arguments": "{}", "thought_signature": "s"}}]},
        ],
        "tools": [{"type": "function", "function": {"name": "f"}, "cache_control": {}}, {"type": "web_search"},
                  {"type": "mcp", "server_label": "x", "tool": "y"}],
        "stream_options": {"chunk_wishes": 1},
    }  # fmt: skip
    ignored = fresh()
    made = read(body, ChatCompletionRequest, ignored)
    assert names(ignored) == {
        "messages.content.cache_control", "messages.metadata", "messages.tool_calls.function.thought_signature",
        "tools.cache_control", "tools.type=web_search", "tools.type=mcp", "stream_options.chunk_wishes",
    }  # fmt: skip
    assert [tool.function.name for tool in made.tools] == ["f"]
    assert made.messages[0].content[0].text == "hi"


def test_items_tools_and_include_of_responses() -> None:
    body = {
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "hi", "client_note": 1}], "client_note": 1},
            {"type": "reasoning", "summary": [], "encrypted_content": "abc"},
            {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}", "client_note": 2},
        ],
        "tools": [{"type": "web_search_preview"}, {"type": "function", "name": "f", "client_note": 3}],
        "include": ["reasoning.encrypted_content", "message.output_text.logprobs"],
        "text": {"verbosity": "low"},
        "context_management": [{"type": "compaction"}],
        "client_metadata": {},
    }
    ignored = fresh()
    made = read(body, ResponsesRequest, ignored)
    assert names(ignored) == {
        "input.client_note", "input.content.client_note", "input.encrypted_content", "tools.type=web_search_preview",
        "tools.client_note", "include=reasoning.encrypted_content", "text.verbosity", "context_management",
        "client_metadata",
    }  # fmt: skip
    assert made.include == ["message.output_text.logprobs"]
    assert made.tools == [{"type": "function", "name": "f"}]
    for wrong in ({"include": ["message.output_text.logprob"]}, {"input": [{**body["input"][0], "contents": ""}]}):  # type: ignore[index]
        with pytest.raises(BodyError, match="did you mean"):
            read({"input": "x", **wrong}, ResponsesRequest)


def test_blocks_and_tools_of_messages() -> None:
    body = {
        "max_tokens": 5,
        "system": [{"type": "text", "text": "x", "first": 1}],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "hi", "note": 1}, {
                "type": "tool_result", "tool_use_id": "a", "content": [{"type": "text", "text": "r", "second": 2}]}]},
        ],
        "tools": [{"type": "web_search_20250305", "name": "web_search", "max_uses": 5},
                  {"name": "f", "input_schema": {"type": "object"}, "note": 3}],
        "mcp_servers": [{"type": "url"}], "context_management": {"edits": []}, "betas": ["x"],
    }  # fmt: skip
    ignored = fresh()
    made = read(body, MessagesRequest, ignored)
    assert names(ignored) == {
        "system.first", "messages.content.note", "messages.content.content.second", "tools.type=web_search_20250305",
        "tools.note", "mcp_servers", "context_management", "betas",
    }  # fmt: skip
    assert [tool["name"] for tool in made.tools] == ["f"]


LOST = {
    # To ignore these would answer something else than what was asked.
    (CompletionRequest, "suffix"),
    (ResponsesRequest, "conversation"),
    (ResponsesRequest, "prompt"),
    (MessagesRequest, "stop"),
}


def schemas() -> Iterator[tuple[type[Body], str]]:
    pairs: list[tuple[type[Body], Any]] = [
        (ChatCompletionRequest, chat_params.CompletionCreateParamsBase),
        (CompletionRequest, completion_create_params.CompletionCreateParamsBase),
        (ResponsesRequest, response_create_params.ResponseCreateParamsBase),
        (EmbeddingRequest, embedding_create_params.EmbeddingCreateParams),
        (MessagesRequest, message_create_params.MessageCreateParamsBase),
        (CountTokensRequest, message_count_tokens_params.MessageCountTokensParams),
        (MessagesRequest, beta_messages.MessageCreateParamsBase),
    ]
    for kind, schema in pairs:
        yield from ((kind, name) for name in get_type_hints(schema))


@pytest.mark.parametrize(("kind", "name"), sorted(set(schemas()), key=str))
def test_all_of_the_official_schemas_is_accepted(kind: type[Body], name: str) -> None:
    if name not in kind.__struct_fields__:
        fresh().add_unknown(kind, name, "")
        return
    mark = refused_fields(kind).get(name)
    assert mark is None or isinstance(mark, Ignored) or (kind, name) in LOST


def test_many_and_long_names_are_bounded() -> None:
    ignored = fresh()
    read({**CHAT, **{f"thing-{index:02}, ü\n{'x' * 30}": 1 for index in range(60)}, "y" * 10_000: 1},
         ChatCompletionRequest, ignored)  # fmt: skip
    header = ignored.header()
    assert header is not None
    assert len(header) <= 1024
    assert header.isascii()
    assert header.isprintable()
    with pytest.raises(BodyError, match="more than 64 unknown fields"):
        read({**CHAT, **{f"thing{index}": 1 for index in range(100)}}, ChatCompletionRequest)
    policy = FieldPolicy(strict=False)
    for index in range(10_000):
        policy.log(f"thing{index}")
    assert len(policy._logged) <= 256


def test_the_log_names_each_once(caplog: pytest.LogCaptureFixture) -> None:
    policy = FieldPolicy(strict=False)
    for _ in range(3):
        read({**CHAT, "client_note": 1}, ChatCompletionRequest, IgnoredFields(policy))
    (line,) = [record.getMessage() for record in caplog.records]
    assert "client_note" in line


def test_lists_say_what_they_ignore_once() -> None:
    body = {"messages": [{"role": "user", "content": "x", "client_note": index} for index in range(5000)]}
    ignored = fresh()
    made = read(body, ChatCompletionRequest, ignored)
    assert names(ignored) == {"messages.client_note"}
    assert msgspec.to_builtins(made.messages[-1]) == {"role": "user", "content": "x"}


# With a server


def test_the_response_names_what_is_ignored(http: httpx.Client) -> None:
    body = {**CHAT, "max_tokens": 2, "temperature": 0}
    plain = http.post("/v1/chat/completions", json=body)
    assert "x-ignored-fields" not in plain.headers
    for stream in (False, True):
        more = {**body, "store": True, "verbosity": "low", "cache_prompt_of_test": True, "stream": stream}
        response = http.post("/v1/chat/completions", json=more)
        assert response.status_code == 200, response.text
        assert set(response.headers["x-ignored-fields"].split(", ")) == {"store", "verbosity", "cache_prompt_of_test"}
        if not stream:
            assert response.json()["choices"] == plain.json()["choices"]
    wrong = http.post("/v1/chat/completions", json={**body, "cache_prompt_of_test": 1, "n": -1})
    assert wrong.status_code == 400
    assert wrong.headers["x-ignored-fields"] == "cache_prompt_of_test"


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": "x", "max_tokens": 1}),
        ("/v1/responses", {"input": "x", "max_output_tokens": 1, "include": ["reasoning.encrypted_content"]}),
        ("/v1/responses/input_tokens", {"input": "x"}),
        ("/v1/messages", {**CHAT, "max_tokens": 1}),
        ("/v1/messages/count_tokens", CHAT),
        ("/tokenize", {"prompt": "x"}),
        ("/detokenize", {"tokens": [5]}),
    ],
)
def test_every_route_ignores_what_it_does_not_know(http: httpx.Client, path: str, body: dict[str, Any]) -> None:
    response = http.post(path, json={**body, "client_note": {"a": 1}})
    assert response.status_code == 200, response.text
    assert "client_note" in response.headers["x-ignored-fields"]


def test_a_forced_tool_cannot_be_ignored(http: httpx.Client) -> None:
    search = [{"type": "web_search_preview"}]
    for path, body in [
        ("/v1/chat/completions", {**CHAT, "tools": search, "tool_choice": "required"}),
        ("/v1/responses", {"input": "x", "tools": search, "tool_choice": {"type": "web_search_preview"}}),
        ("/v1/messages", {**CHAT, "max_tokens": 5, "tools": [{"type": "bash_20250124", "name": "bash"}],
                          "tool_choice": {"type": "tool", "name": "bash"}}),
    ]:  # fmt: skip
        response = http.post(path, json=body)
        assert response.status_code == 400, response.text
        assert "tool_choice" in response.text


def test_enable_thinking_is_an_argument_of_the_template(http: httpx.Client) -> None:
    """The demo's template begins the answer with its thinking, unless told not to."""

    def tokens(**more: Any) -> list[int]:
        found: list[int] = http.post("/tokenize", json={**CHAT, **more}).json()["tokens"]
        return found

    assert tokens(enable_thinking=True) == tokens(chat_template_kwargs={"enable_thinking": True})
    assert tokens(enable_thinking=False) == tokens(chat_template_kwargs={"enable_thinking": False})
    both = tokens(enable_thinking=True, chat_template_kwargs={"enable_thinking": False})
    assert both == tokens(enable_thinking=False)
