"""All routes: what the router and the OpenAPI document know of each."""

from dataclasses import dataclass
from typing import Any

from starlette.routing import Route

from jaxllm.serving.openai import operations
from jaxllm.serving.openai.chat import create_chat_completion
from jaxllm.serving.openai.completions import create_completion
from jaxllm.serving.openai.errors import Handler, guarded
from jaxllm.serving.openai.models import list_models, retrieve_model
from jaxllm.serving.openai.protocol import chat, completions, models, tokenize
from jaxllm.serving.openai.protocol import operations as answers
from jaxllm.serving.openai.tokenize import detokenize
from jaxllm.serving.openai.tokenize import tokenize as tokenize_text


@dataclass(frozen=True, kw_only=True)
class Operation:
    """What one path does.

    `request` and `response` are the bodies, None where there is none; with `stream`, the response may also be events of
    this kind. `public` operations need no key.
    """

    path: str
    handler: Handler
    tag: str
    methods: tuple[str, ...] = ("GET",)
    request: Any = None
    response: Any = None
    stream: Any = None
    content_type: str = "application/json"
    public: bool = False

    @property
    def route(self) -> Route:
        """For the router."""
        return Route(self.path, guarded(self.handler), methods=self.methods)


OPERATIONS = (
    Operation(
        path="/v1/chat/completions",
        methods=("POST",),
        handler=create_chat_completion,
        tag="OpenAI",
        request=chat.ChatCompletionRequest,
        response=chat.ChatCompletion,
        stream=chat.ChatChunk,
    ),
    Operation(
        path="/v1/completions",
        methods=("POST",),
        handler=create_completion,
        tag="OpenAI",
        request=completions.CompletionRequest,
        response=completions.Completion,
        stream=completions.Completion,
    ),
    Operation(path="/v1/models", handler=list_models, tag="OpenAI", response=models.ModelList),
    Operation(path="/v1/models/{model:path}", handler=retrieve_model, tag="OpenAI", response=models.Model),
    Operation(
        path="/tokenize",
        methods=("POST",),
        handler=tokenize_text,
        tag="Text",
        request=tokenize.TokenizeRequest,
        response=tokenize.TokenizeResponse,
    ),
    Operation(
        path="/detokenize",
        methods=("POST",),
        handler=detokenize,
        tag="Text",
        request=tokenize.DetokenizeRequest,
        response=tokenize.DetokenizeResponse,
    ),
    Operation(path="/health", handler=operations.health, tag="Operation", public=True),
    Operation(path="/ready", handler=operations.ready, tag="Operation", public=True),
    Operation(path="/ping", methods=("GET", "POST"), handler=operations.ping, tag="Operation", public=True),
    Operation(path="/metrics", handler=operations.metrics, tag="Operation", content_type="text/plain", public=True),
    Operation(path="/version", handler=operations.version, tag="Operation", response=answers.Version),
    Operation(path="/load", handler=operations.load, tag="Operation", response=answers.Load),
    Operation(
        path="/reset_prefix_cache",
        methods=("POST",),
        handler=operations.reset_prefix_cache,
        tag="Operation",
        response=answers.CacheReset,
    ),
)
"""Every operation but the pages about them."""

PUBLIC_PATHS = frozenset(operation.path for operation in OPERATIONS if operation.public)
"""Paths that need no key."""
