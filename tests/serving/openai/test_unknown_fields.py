"""Fields that the server does not know or serve: refused by name, or ignored and named."""

import contextlib
import json
from collections.abc import Iterable, Iterator
from typing import Any, Literal, get_args, get_origin, get_type_hints

import anthropic
import httpx
import msgspec
import pytest
from anthropic.types import message_count_tokens_params, message_create_params
from anthropic.types.beta import message_count_tokens_params as beta_counts
from anthropic.types.beta import message_create_params as beta_messages
from openai.types import chat as chat_types
from openai.types import completion_create_params, embedding_create_params, responses, shared_params
from openai.types.chat import completion_create_params as chat_params
from openai.types.responses import input_token_count_params, response_create_params

from jaxllm.errors import nearest
from jaxllm.serving.anthropic.requests import BLOCK_KINDS, CountTokensRequest, MessagesRequest, MessagesTool
from jaxllm.serving.http.body import ignored_fields
from jaxllm.serving.http.body.base import Body, Ignored, UnsupportedError, refused_fields
from jaxllm.serving.http.body.decode import decode
from jaxllm.serving.http.body.ignored_fields import IN_BODIES, INSIDE, FieldPolicy, IgnoredFields
from jaxllm.serving.http.body.settle import settle
from jaxllm.serving.http.errors import BodyError
from jaxllm.serving.openai.chat.prompt import conversation, tool_dictionaries
from jaxllm.serving.openai.protocol.chat import ChatCompletionRequest
from jaxllm.serving.openai.protocol.completions import CompletionRequest
from jaxllm.serving.openai.protocol.generation import StreamOptions
from jaxllm.serving.openai.protocol.messages import ContentPart, Function, Message, Tool, ToolCall
from jaxllm.serving.openai.protocol.pooling import EmbeddingRequest
from jaxllm.serving.openai.protocol.response_format import JsonSchemaFormat
from jaxllm.serving.openai.protocol.response_items import ITEM_KINDS, TOOL_KINDS
from jaxllm.serving.openai.protocol.responses import ReasoningSettings, ResponsesRequest, TextSettings
from jaxllm.serving.server.interfaces import OPERATIONS

MESSAGES = [{"role": "user", "content": "hello"}]
CHAT = {"messages": MESSAGES}


def fresh(*, strict: bool = False, ignore_unknown: bool = False) -> IgnoredFields:
    return IgnoredFields(FieldPolicy(strict=strict, ignore_unknown=ignore_unknown))


def read(body: Any, kind: type[Body], ignored: IgnoredFields | None = None) -> Any:
    ignored = fresh() if ignored is None else ignored
    made = decode(json.dumps(body).encode(), kind, ignored)
    settle(made, "", ignored)
    return made


def names(ignored: IgnoredFields) -> set[str]:
    return set((ignored.header() or "").split(", ")) - {""}


OF_CLIENTS = (
    "chat_id", "title", "files", "features", "id", "background_tasks", "tool_ids", "variables",
    "cache_prompt", "mirostat", "keep_alive", "num_ctx", "thinking", "provider", "grammar", "extra_body",
    "max_new_tokens", "maxTokens", "betas", "conversation_id", "api-version", "client_note", "xyz",
)  # fmt: skip


def test_unknown_fields_are_ignored_and_named() -> None:
    for field in [*OF_CLIENTS, *IN_BODIES]:
        ignored, body = fresh(), {**CHAT, field: {"a": [1]}}
        assert read(body, ChatCompletionRequest, ignored) == read(CHAT, ChatCompletionRequest)
        assert names(ignored) == {field}
        with pytest.raises((BodyError, UnsupportedError)) as caught:
            read(body, ChatCompletionRequest, fresh(strict=True))
        assert caught.value.parameter == field


@pytest.mark.parametrize(
    ("change", "field", "says"),
    [
        # One letter is missing, too many, wrong, or in another's place.
        ({"temperatur": 1}, "temperatur", "did you mean 'temperature'?"),
        ({"temprature": 1}, "temprature", "did you mean 'temperature'?"),
        ({"temperatures": 1}, "temperatures", "did you mean 'temperature'?"),
        ({"Temperature": 1}, "Temperature", "did you mean 'temperature'?"),
        ({"tempreature": 1}, "tempreature", "did you mean 'temperature'?"),
        ({"max_token": 1}, "max_token", "'max_tokens'"),
        ({"max-tokens": 1}, "max-tokens", "'max_tokens'"),
        ({"xn": 1}, "xn", "'n'"),
        ({"top_x": 1}, "top_x", "'top_p' or 'top_k'"),
        ({"tool": []}, "tool", "'tools'"),
        ({"stream_options": {"include_usages": True}}, "stream_options.include_usages", "'include_usage'"),
        ({"tools": [{"function": {"name": "f", "params": {}}}]}, "tools[0].function.params", "'parameters'"),
        ({"messages": [*MESSAGES, {"role": "user", "contents": "x"}]}, "messages[1].contents", "'content'"),
        ({"messages": [{**MESSAGES[0], "nmae": 1}]}, "messages[0].nmae", "'name'"),
        (
            {"messages": [{"role": "user", "content": [{"type": "text", "txt": "x"}]}]},
            "messages[0].content[0].txt",
            "'text'",
        ),
        (
            {"tools": [{"function": {"name": "f"}, "xyz": 1}]},
            "tools[0].xyz",
            "unknown field 'tools[0].xyz'; a server with --ignore-unknown-fields ignores it",
        ),
        # The tools of other interfaces, and a schema without its wrapper.
        ({"tools": [{"name": "f", "input_schema": {}}]}, "tools[0].name", '{"type": "function", "function": {"name"'),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"type": "object", "properties": {}}}},
            "response_format.json_schema.type",
            'the form is {"type": "json_schema", "json_schema": {"name": ..., "schema": SCHEMA}}',
        ),
        ({"response_format": {"type": "json_schema", "schema": {}}}, "response_format.schema", "the form is {"),
        # The first of several, whatever the order of a set.
        ({f"{name}max_tokens": 1 for name in "qwertyuiop"}, "qmax_tokens", "unknown field 'qmax_tokens'"),
    ],
)
def test_misspellings_are_refused(change: dict[str, Any], field: str, says: str) -> None:
    with pytest.raises(BodyError) as caught:
        read({**CHAT, "cache_prompt": True, **change}, ChatCompletionRequest)
    assert (caught.value.parameter, caught.value.code) == (field, "unknown_parameter")
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("client", "message"),
    [
        ("mistralai", {"content": "x", "tool_calls": None, "prefix": False}),
        ("moonshot", {"content": "x", "partial": False}),
        ("litellm", {"content": "x", "reasoning_items": [{"id": "a"}], "provider_specific_fields": {}}),
        ("groq", {"content": "x", "executed_tools": [{"index": 0}]}),
        ("agents", {"content": "x", "created_by": "me", "end_turn": True}),
        ("langchain", {"content": [{"type": "text", "text": "x", "index": 0, "annotations": []}]}),
        ("copilot", {"content": [{"type": "text", "text": "x", "copilot_cache_control": {"type": "ephemeral"}}],
                     "copilot_cache_control": {"type": "ephemeral"}}),
        ("ollama", {"content": "x", "images": []}),
    ],
)  # fmt: skip
def test_replayed_messages_of_clients_are_taken(client: str, message: dict[str, Any]) -> None:
    del client
    ignored = fresh()
    body = {"messages": [*MESSAGES, {"role": "assistant", **message}]}
    made = read(body, ChatCompletionRequest, ignored)
    marked = {"content", "tool_calls", "prefix", "partial", "images"}
    own = {f"messages.{name}" for name in message.keys() - marked}
    part = message["content"][0] if isinstance(message["content"], list) else {}
    assert names(ignored) == own | {f"messages.content.{name}" for name in part.keys() - {"type", "text"}}
    assert conversation(made.messages)[-1] == {
        "role": "assistant", "content": [{"type": "text", "text": "x"}] if part else "x",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "change", "says"),
    [
        (ChatCompletionRequest, {"messages": [{**MESSAGES[0], "prefix": True}]}, "continue_final_message"),
        (ChatCompletionRequest, {"messages": [{**MESSAGES[0], "partial": True}]}, "continue_final_message"),
        (ChatCompletionRequest, {"messages": [{**MESSAGES[0], "images": ["x"]}]}, "text only"),
        (ChatCompletionRequest, {**CHAT, "num_predict": 5}, "max_tokens"),
        (CompletionRequest, {"prompt": "x", "n_predict": 5}, "max_tokens"),
        (ChatCompletionRequest, {**CHAT, "options": {"num_predict": 5}}, "max_tokens"),
        (EmbeddingRequest, {"input": "x", "truncate": "END"}, "truncate_prompt_tokens"),
    ],
)
@pytest.mark.parametrize("ignore_unknown", [False, True])
def test_what_would_change_the_answer_is_refused(
    kind: type[Body], change: dict[str, Any], says: str, *, ignore_unknown: bool
) -> None:
    with pytest.raises(UnsupportedError, match=says):
        read(change, kind, fresh(ignore_unknown=ignore_unknown))


def test_embeddings_by_the_names_of_others() -> None:
    body = {"input": "x", "truncate": "NONE"}
    assert read(body, EmbeddingRequest).is_normalized is None
    assert read({**body, "normalized": False}, EmbeddingRequest).is_normalized is False
    assert read({**body, "normalized": False, "normalize": True}, EmbeddingRequest).is_normalized is True


def test_metadata_of_messages_may_have_any_keys() -> None:
    ignored = fresh()
    read({**CHAT, "max_tokens": 1, "metadata": {"user_id": "a", "session": 1}}, MessagesRequest, ignored)
    assert not names(ignored)


REQUESTS: dict[str, Any] = {each.path: each.request for each in OPERATIONS if isinstance(each.request, type)}


@pytest.mark.parametrize("path", sorted(path for path, kind in REQUESTS.items() if issubclass(kind, Body)))
def test_every_request_knows_misspellings_of_its_own_fields(path: str) -> None:
    kind, ignored = REQUESTS[path], fresh()
    name = max(kind.__struct_fields__, key=len)
    with pytest.raises(BodyError, match=f"unknown field '{name}x'; did you mean '{name}'"):
        decode(msgspec.json.encode({f"{name}x": 1}), kind, ignored)
    for policy in (ignored, fresh(strict=True)):
        with contextlib.suppress(BodyError):
            read({"client_note": 1}, kind, policy)
    assert names(ignored) == {"client_note"}
    with pytest.raises(BodyError, match="unknown field 'client_note'"):
        decode(b'{"client_note": 1}', kind, fresh(strict=True))
    shared = {"metadata": {}, "store": False, "service_tier": "auto", "safety_identifier": "x",
              "prompt_cache_key": "x", "verbosity": "low", "rid": "a"}  # fmt: skip
    # What the request needs may be missing after it.
    with contextlib.suppress(BodyError):
        read(shared, kind, ignored)
    assert "rid" in names(ignored)
    assert shared.keys() - names(ignored) <= set(kind.__struct_fields__)


def test_requests_of_all_interfaces_are_tested() -> None:
    wanted = {"/v1/embeddings", "/classify", "/pooling", "/score", "/rerank", "/v2/embed", "/v1/batches", "/tokenize"}
    assert wanted <= REQUESTS.keys()


def test_unknown_fields_are_ignored_and_named_where_the_operator_says_so() -> None:
    ignored = fresh(ignore_unknown=True)
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
    }  # fmt: skip
    ignored = fresh()
    made = read(body, ChatCompletionRequest, ignored)
    assert names(ignored) == {
        "messages.content.cache_control", "messages.metadata", "messages.tool_calls.function.thought_signature",
        "tools.cache_control", "tools.type=web_search", "tools.type=mcp",
    }  # fmt: skip
    assert [tool.function.name for tool in made.tools] == ["f"]
    assert made.messages[0].content[0].text == "hi"


def test_items_tools_and_include_of_responses() -> None:
    body = {
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "hi", "timestamp": 1}], "timestamp": 1},
            {"type": "reasoning", "summary": [], "encrypted_content": "abc"},
            {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}", "timestamp": 2},
        ],
        "tools": [{"type": "web_search_preview"}, {"type": "function", "name": "f", "metadata": 3}],
        "include": ["reasoning.encrypted_content", "message.output_text.logprobs"],
        "text": {"verbosity": "low"},
        "context_management": [{"type": "compaction"}],
        "client_metadata": {},
    }
    ignored = fresh()
    made = read(body, ResponsesRequest, ignored)
    assert names(ignored) == {
        "input.timestamp", "input.content.timestamp", "input.encrypted_content", "tools.type=web_search_preview",
        "tools.metadata", "include=reasoning.encrypted_content", "text.verbosity", "context_management",
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
        "system": [{"type": "text", "text": "x", "id": 1}],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "hi", "metadata": 1}, {"type": "tool_result",
                "tool_use_id": "a", "content": [{"type": "text", "text": "r", "timestamp": 2}]}]},
        ],
        "tools": [{"type": "web_search_20250305", "name": "web_search", "max_uses": 5},
                  {"name": "f", "input_schema": {"type": "object"}, "metadata": 3}],
        "mcp_servers": [{"type": "url"}], "context_management": {"edits": []}, "betas": ["x"],
    }  # fmt: skip
    ignored = fresh()
    made = read(body, MessagesRequest, ignored)
    assert names(ignored) == {
        "system.id", "messages.content.metadata", "messages.content.content.timestamp",
        "tools.type=web_search_20250305", "tools.metadata", "mcp_servers", "context_management", "betas",
    }  # fmt: skip
    assert [tool["name"] for tool in made.tools] == ["f"]


LOST = {
    # To ignore these would answer something else than what was asked.
    (CompletionRequest, "suffix"),
    (ResponsesRequest, "conversation"),
    (ResponsesRequest, "prompt"),
    (MessagesRequest, "compaction"),
    (CountTokensRequest, "compaction"),
    (MessagesRequest, "stop"),
    (MessagesRequest, "thread"),
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
        (CountTokensRequest, beta_counts.MessageCountTokensParams),
        (ResponsesRequest, input_token_count_params.InputTokenCountParams),
    ]
    for kind, schema in pairs:
        yield from ((kind, name) for name in get_type_hints(schema))


@pytest.mark.parametrize(("kind", "name"), sorted(set(schemas()), key=str))
def test_all_of_the_official_schemas_is_known(kind: type[Body], name: str) -> None:
    if name not in kind.__struct_fields__:
        fresh().add_unknown(kind, name, "")
        return
    mark = refused_fields(kind).get(name)
    assert mark is None or isinstance(mark, Ignored) or (kind, name) in LOST


def nested() -> Iterator[tuple[type[Body], Any]]:
    """Our part of a body, and an official one of the same type."""
    chat: list[tuple[type[Body], list[Any]]] = [
        (Message, list(get_args(chat_types.ChatCompletionMessageParam))),
        (ContentPart, list(get_args(chat_types.ChatCompletionContentPartParam))),
        (Tool, [chat_types.ChatCompletionFunctionToolParam, chat_types.ChatCompletionCustomToolParam]),
        (Function, [shared_params.FunctionDefinition]),
        (StreamOptions, [chat_types.ChatCompletionStreamOptionsParam]),
        (ToolCall, list(get_args(chat_types.ChatCompletionMessageToolCallUnionParam))),
        (JsonSchemaFormat, [shared_params.response_format_json_schema.JSONSchema]),
        (ReasoningSettings, [shared_params.Reasoning]),
        (TextSettings, [responses.ResponseTextConfigParam]),
    ]
    for kind, theirs in chat:
        yield from ((kind, each) for each in theirs)
    by_type: list[tuple[dict[str, type[Body]], Any]] = [
        (ITEM_KINDS, get_args(responses.response_input_item_param.ResponseInputItemParam)),
        (TOOL_KINDS, get_args(responses.ToolParam)),
        (BLOCK_KINDS, get_args(anthropic.types.ContentBlockParam)),
        ({"custom": MessagesTool}, [anthropic.types.ToolParam]),
    ]
    for kinds, each in ((kinds, each) for kinds, theirs in by_type for each in theirs):
        for name in get_args(_bare(get_type_hints(each).get("type"))):
            if name in kinds:
                yield kinds[name], each


def _bare(hint: Any) -> Any:
    """A hint without `Required[...]` and `Optional`."""
    while hint is not None and get_origin(hint) is not Literal:
        hint = get_args(hint)[0]
    return hint


def test_all_of_the_official_messages_items_and_tools_is_known() -> None:
    unknown = {
        (kind.__name__, name)
        for kind, theirs in nested()
        for name in get_type_hints(theirs)
        if name not in kind.__struct_fields__ and name not in INSIDE
    }
    assert not unknown


def test_many_and_long_names_are_bounded() -> None:
    ignored = fresh(ignore_unknown=True)
    read({**CHAT, **{f"thing-{index:02}, ü\n{'x' * 30}": 1 for index in range(60)}, "y" * 10_000: 1},
         ChatCompletionRequest, ignored)  # fmt: skip
    header = ignored.header()
    assert header is not None
    assert len(header) <= 1024
    assert header.isascii()
    assert header.isprintable()
    with pytest.raises(BodyError, match="more than 64 unknown fields"):
        read({**CHAT, **{f"thing{index}": 1 for index in range(100)}}, ChatCompletionRequest,
             fresh(ignore_unknown=True))  # fmt: skip
    with pytest.raises(BodyError, match="unknown field") as caught:
        read({**CHAT, "tools": [{"function": {"name": "f", "y" * 10_000: 1}}]}, ChatCompletionRequest)
    assert len(str(caught.value)) < 190
    policy = FieldPolicy()
    for index in range(10_000):
        policy.log(f"thing{index}")
    assert len(policy._logged) <= 256


@pytest.mark.parametrize("more", [{}, {"cache_prompt": True}])
def test_many_values_and_types_are_bounded(more: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[str] = []

    def nearest_counted(name: str, known: Iterable[str], *, alike: float) -> str:
        compared.append(name)
        return nearest(name, known, alike=alike)

    monkeypatch.setattr(ignored_fields, "nearest", nearest_counted)
    anagrams = [f"{index:04}sboprogl.txet_tuptuo.egassem" for index in range(2000)]
    for values in (anagrams, [*anagrams[:3], *anagrams]):
        with pytest.raises(BodyError) as caught:
            read({"input": "x", "include": values, **more}, ResponsesRequest)
        assert caught.value.parameter == "include"
        assert len(compared) <= 64
    compared.clear()
    ignored = fresh()
    made = read({"input": "x", "include": anagrams[:2] * 20, **more}, ResponsesRequest, ignored)
    assert not made.include
    assert compared == anagrams[:2]
    with pytest.raises(BodyError, match="more than 64 unknown values") as caught:
        read({"input": "x", "tools": [{"type": f"type{index}"} for index in range(100)], **more}, ResponsesRequest)
    assert caught.value.parameter == "tools.type"
    assert read({"input": "x", "tools": [{"type": "web_search"}] * 100, **more}, ResponsesRequest).tools == []


def test_the_name_of_a_deep_place_is_whole() -> None:
    call = {"id": "a", "function": {"name": "f", "internal_chat_message_metadata_passthrough": 1}}
    body = {"messages": [*MESSAGES, {"role": "assistant", "tool_calls": [call]}]}
    ignored = fresh()
    read(body, ChatCompletionRequest, ignored)
    assert names(ignored) == {"messages.tool_calls.function.internal_chat_message_metadata_passthrough"}
    tools = [{"function": {"name": "f", "quite_a_long_name_of_some_client": 1}}]
    with pytest.raises(BodyError) as caught:
        read({**CHAT, "tools": tools}, ChatCompletionRequest)
    assert caught.value.parameter == "tools[0].function.quite_a_long_name_of_some_client"


def test_the_log_names_each_once(caplog: pytest.LogCaptureFixture) -> None:
    policy = FieldPolicy(ignore_unknown=True)
    for _ in range(3):
        read({**CHAT, "client_note": 1}, ChatCompletionRequest, IgnoredFields(policy))
    (line,) = [record.getMessage() for record in caplog.records]
    assert "client_note" in line
    caplog.clear()
    policy = FieldPolicy()
    for _ in range(3):
        with pytest.raises(BodyError):
            read({**CHAT, "temperatur": 1}, ChatCompletionRequest, IgnoredFields(policy))
    (line,) = [record.getMessage() for record in caplog.records]
    assert "temperatur, which is rejected" in line


def test_what_this_server_alone_does_not_serve() -> None:
    mark = {"vllm_xargs": Ignored("it has no logits processors", ({},))}
    ignored = IgnoredFields(FieldPolicy(without_effect=mark))
    assert read({**CHAT, "vllm_xargs": {"mine": 1}}, ChatCompletionRequest, ignored).vllm_xargs is None
    assert names(ignored) == {"vllm_xargs"}
    strict = IgnoredFields(FieldPolicy(strict=True, without_effect=mark))
    assert read({**CHAT, "vllm_xargs": {}}, ChatCompletionRequest, strict).vllm_xargs == {}
    with pytest.raises(UnsupportedError, match="vllm_xargs: it has no logits processors"):
        read({**CHAT, "vllm_xargs": {"mine": 1}}, ChatCompletionRequest, strict)
    assert read({**CHAT, "vllm_xargs": {"mine": 1}}, ChatCompletionRequest).vllm_xargs == {"mine": 1}


def test_fields_for_the_chat_template_reach_it() -> None:
    part = {"type": "text", "text": "x", "source_lang_code": "de", "template_fields": 1}
    call = {"id": "a", "function": {"name": "f", "arguments": {}, "note": 1}, "note": [2]}
    messages = [{"role": "user", "content": [part], "weight": {"a": 1}},
                {"role": "assistant", "content": None, "tool_calls": [call]}]  # fmt: skip
    sent = json.dumps({"messages": messages}).encode()
    for ignored in (fresh(), None):
        made = decode(sent, ChatCompletionRequest, ignored)
        assert conversation(made.messages) == [messages[0], {"role": "assistant", "tool_calls": [call]}]
        assert ignored is None or not names(ignored)
    with pytest.raises(BodyError, match="unknown field"):
        decode(sent, ChatCompletionRequest, fresh(strict=True))
    with pytest.raises(BodyError, match="did you mean 'role'"):
        decode(b'{"messages": [{"role": "user", "content": "x", "rol": 1}]}', ChatCompletionRequest)


def test_what_clients_keep_in_messages_reaches_a_template_that_reads_it() -> None:
    body = {"messages": [{**MESSAGES[0], "metadata": "m", "timestamp": 1}]}
    ignored = IgnoredFields(FieldPolicy(of_template={"metadata", "role"}))
    assert conversation(read(body, ChatCompletionRequest, ignored).messages) == [{**MESSAGES[0], "metadata": "m"}]
    assert names(ignored) == {"messages.timestamp"}


def test_a_function_may_have_what_the_template_reads() -> None:
    function = {"name": "f", "return_parameters": {"type": "object"}}
    body = {**CHAT, "tools": [{"type": "function", "function": function}]}
    made = read(body, ChatCompletionRequest, IgnoredFields(FieldPolicy(of_template={"return_parameters"})))
    assert tool_dictionaries(made.tools) == body["tools"]
    with pytest.raises(BodyError, match="unknown field"):
        read(body, ChatCompletionRequest)


def test_lists_say_what_they_ignore_once() -> None:
    body = {"messages": [{"role": "user", "content": "x", "timestamp": index} for index in range(5000)]}
    ignored = fresh()
    made = read(body, ChatCompletionRequest, ignored)
    assert names(ignored) == {"messages.timestamp"}
    assert msgspec.to_builtins(made.messages[-1]) == {"role": "user", "content": "x"}


# With a server


def test_the_response_names_what_is_ignored(http: httpx.Client) -> None:
    body = {**CHAT, "max_tokens": 2, "temperature": 0}
    plain = http.post("/v1/chat/completions", json=body)
    assert "x-ignored-fields" not in plain.headers
    for stream in (False, True):
        more = {**body, "store": True, "verbosity": "low", "timings_per_token": True, "stream": stream}
        response = http.post("/v1/chat/completions", json=more)
        assert response.status_code == 200, response.text
        assert set(response.headers["x-ignored-fields"].split(", ")) == {"store", "verbosity", "timings_per_token"}
        if not stream:
            assert response.json()["choices"] == plain.json()["choices"]
    wrong = http.post("/v1/chat/completions", json={**body, "timings_per_token": 1, "n": -1})
    assert wrong.status_code == 400
    assert wrong.headers["x-ignored-fields"] == "timings_per_token"


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
def test_every_route_names_the_unknown_and_refuses_misspellings(
    http: httpx.Client, path: str, body: dict[str, Any]
) -> None:
    response = http.post(path, json={**body, "rid": "a"})
    assert response.status_code == 200, response.text
    assert "rid" in response.headers["x-ignored-fields"]
    response = http.post(path, json={**body, "client_note": {"a": 1}})
    assert response.status_code == 200, response.text
    assert "client_note" in response.headers["x-ignored-fields"]
    response = http.post(path, json={**body, "modle": {"a": 1}})
    assert response.status_code == 400, response.text
    assert response.json()["error"]["message"].startswith("unknown field 'modle'; did you mean 'model'?")


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


def test_tools_of_chats_are_refused_in_messages() -> None:
    body = {"max_tokens": 9, **CHAT, "tools": [{"type": "function", "function": {"name": "f"}}]}
    with pytest.raises(BodyError, match=r"^tools\.type='function': a tool of messages is \{\"name\""):
        read(body, MessagesRequest)
    assert read(body, MessagesRequest, fresh(ignore_unknown=True)).tools == []
