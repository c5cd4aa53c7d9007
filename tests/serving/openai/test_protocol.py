"""The fields of requests against those that OpenAI's own client knows."""

from typing import Any, get_type_hints

import pytest
from openai.types import completion_create_params
from openai.types.chat import (
    ChatCompletionMessageParam,
    ChatCompletionStreamOptionsParam,
    ChatCompletionToolParam,
)
from openai.types.chat import (
    completion_create_params as chat_create_params,
)

from jaxllm.requests.sampling_params import INTERNAL_FIELDS, SamplingParams
from jaxllm.serving.openai.protocol.chat import ChatCompletionRequest
from jaxllm.serving.openai.protocol.completions import CompletionRequest
from jaxllm.serving.openai.protocol.generation import StreamOptions
from jaxllm.serving.openai.protocol.messages import Message, Tool
from jaxllm.serving.server.openapi import openapi


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (ChatCompletionRequest, chat_create_params.CompletionCreateParamsStreaming),
        (CompletionRequest, completion_create_params.CompletionCreateParamsStreaming),
        (StreamOptions, ChatCompletionStreamOptionsParam),
        (Tool, ChatCompletionToolParam),
        *((Message, each) for each in ChatCompletionMessageParam.__args__),  # type: ignore[attr-defined]
    ],
)
def test_every_field_of_openais_schema_is_known(ours: Any, theirs: Any) -> None:
    assert set(get_type_hints(theirs)) <= set(ours.__struct_fields__)


def test_every_sampling_parameter_can_be_given() -> None:
    internal = {"detokenize", *INTERNAL_FIELDS}
    for request in (ChatCompletionRequest, CompletionRequest):
        assert set(SamplingParams.__struct_fields__) - internal <= set(request.__struct_fields__)


@pytest.mark.parametrize("kind", [ChatCompletionRequest, CompletionRequest, Message])
def test_every_field_of_requests_is_described(kind: Any) -> None:
    schema = openapi(with_keys=False)["components"]["schemas"][kind.__name__]
    assert [name for name, field in schema["properties"].items() if not field.get("description")] == []
