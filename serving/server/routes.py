"""All routes: what the router and the OpenAPI document know of each."""

from collections.abc import Mapping

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from jaxllm.serving.anthropic import answers as anthropic_answers
from jaxllm.serving.anthropic import requests as anthropic
from jaxllm.serving.anthropic.routes import count_message_tokens, create_message
from jaxllm.serving.http.errors import Handler, guarded
from jaxllm.serving.http.middleware.measure import HANDLER
from jaxllm.serving.http.operation import Operation
from jaxllm.serving.openai.batches.routes import cancel_batch, create_batch, list_batches, retrieve_batch
from jaxllm.serving.openai.chat.routes import create_chat_completion
from jaxllm.serving.openai.chat.several import create_chat_batch
from jaxllm.serving.openai.completions.routes import create_completion
from jaxllm.serving.openai.files.routes import (
    create_file,
    delete_file,
    list_files,
    retrieve_file,
    retrieve_file_content,
)
from jaxllm.serving.openai.models import list_models, retrieve_model
from jaxllm.serving.openai.pooling.operations import POOLING_OPERATIONS
from jaxllm.serving.openai.protocol import (
    batches,
    chat,
    chat_batch,
    completions,
    files,
    models,
    response_answers,
    response_events,
    response_items,
    responses,
    tokenize,
)
from jaxllm.serving.openai.responses import routes as response_routes
from jaxllm.serving.openai.tokenize import detokenize, tokenizer_info
from jaxllm.serving.openai.tokenize import tokenize as tokenize_text
from jaxllm.serving.server import answers, operations

OPERATIONS = (
    Operation(
        path="/v1/chat/completions",
        methods=("POST",),
        handler=create_chat_completion,
        tag="OpenAI",
        request=chat.ChatCompletionRequest,
        response=chat.ChatCompletion,
        stream=chat.ChatChunk,
        runner="generate",
    ),
    Operation(
        path="/v1/chat/completions/batch",
        methods=("POST",),
        handler=create_chat_batch,
        tag="Chat",
        request=chat_batch.BatchChatRequest,
        response=chat.ChatCompletion,
        runner="generate",
    ),
    Operation(
        path="/v1/completions",
        methods=("POST",),
        handler=create_completion,
        tag="OpenAI",
        request=completions.CompletionRequest,
        response=completions.Completion,
        stream=completions.Completion,
        runner="generate",
    ),
    Operation(
        path="/v1/responses",
        methods=("POST",),
        handler=response_routes.create_response,
        tag="OpenAI",
        request=responses.ResponsesRequest,
        response=response_answers.ModelResponse,
        stream=response_events.ResponseEvent,
        parts=(*response_items.ITEM_KINDS.values(), *response_items.TOOL_KINDS.values(), *response_events.EVENTS),
        runner="generate",
    ),
    Operation(
        path="/v1/responses/input_tokens",
        methods=("POST",),
        handler=response_routes.count_input_tokens,
        tag="OpenAI",
        request=responses.ResponsesRequest,
        response=response_answers.InputTokens,
        runner="generate",
    ),
    Operation(
        path="/v1/responses/{response_id}",
        handler=response_routes.retrieve_response,
        tag="OpenAI",
        query=responses.RetrieveQuery,
        response=response_answers.ModelResponse,
        stream=response_events.ResponseEvent,
    ),
    Operation(
        path="/v1/responses/{response_id}",
        methods=("DELETE",),
        handler=response_routes.delete_response,
        tag="OpenAI",
        response=response_answers.DeletedResponse,
    ),
    Operation(
        path="/v1/responses/{response_id}/cancel",
        methods=("POST",),
        handler=response_routes.cancel_response,
        tag="OpenAI",
        response=response_answers.ModelResponse,
    ),
    Operation(
        path="/v1/responses/{response_id}/input_items",
        handler=response_routes.list_input_items,
        tag="OpenAI",
        query=responses.InputItemsQuery,
        response=response_answers.ItemPage,
    ),
    Operation(
        path="/v1/messages",
        methods=("POST",),
        handler=create_message,
        tag="Anthropic",
        request=anthropic.MessagesRequest,
        response=anthropic_answers.MessagesAnswer,
        stream=anthropic_answers.MessagesEvent,
        parts=(*anthropic.BLOCK_KINDS.values(), anthropic.MessagesTool, *anthropic_answers.EVENTS),
        runner="generate",
        errors=anthropic_answers.MessagesError,
    ),
    Operation(
        path="/v1/messages/count_tokens",
        methods=("POST",),
        handler=count_message_tokens,
        tag="Anthropic",
        request=anthropic.CountTokensRequest,
        response=anthropic_answers.TokenCount,
        errors=anthropic_answers.MessagesError,
    ),
    *POOLING_OPERATIONS,
    Operation(
        path="/v1/files", methods=("POST",), handler=create_file, tag="Files", response=files.FileObject, upload=True
    ),
    Operation(path="/v1/files", handler=list_files, tag="Files", query=files.FilesQuery, response=files.FileList),
    Operation(path="/v1/files/{file_id}", handler=retrieve_file, tag="Files", response=files.FileObject),
    Operation(
        path="/v1/files/{file_id}",
        methods=("DELETE",),
        handler=delete_file,
        tag="Files",
        response=files.DeletedFile,
    ),
    Operation(
        path="/v1/files/{file_id}/content",
        handler=retrieve_file_content,
        tag="Files",
        content_type="application/octet-stream",
    ),
    Operation(
        path="/v1/batches",
        methods=("POST",),
        handler=create_batch,
        tag="Files",
        request=batches.BatchRequestBody,
        response=batches.Batch,
    ),
    Operation(
        path="/v1/batches", handler=list_batches, tag="Files", query=batches.BatchesQuery, response=batches.BatchList
    ),
    Operation(path="/v1/batches/{batch_id}", handler=retrieve_batch, tag="Files", response=batches.Batch),
    Operation(
        path="/v1/batches/{batch_id}/cancel",
        methods=("POST",),
        handler=cancel_batch,
        tag="Files",
        response=batches.Batch,
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
    Operation(path="/tokenizer_info", handler=tokenizer_info, tag="Text", response=tokenize.TokenizerInfo),
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


def make_routes() -> list[Route]:
    """For the router: one route per path, so that it knows all methods of each."""
    by_path: dict[str, dict[str, Handler]] = {}
    for operation in OPERATIONS:
        handlers = by_path.setdefault(operation.path, {})
        handlers.update(dict.fromkeys(operation.methods, operation.checked_handler))
    return [
        Route(path, guarded(_by_method(path, handlers)), methods=list(handlers)) for path, handlers in by_path.items()
    ]


def _by_method(path: str, handlers: Mapping[str, Handler]) -> Handler:
    name = path.replace(":path}", "}")

    async def handle(request: Request) -> Response:
        request.scope[HANDLER] = name
        # The router adds HEAD where there is GET, and the server leaves the body out.
        return await handlers["GET" if request.method == "HEAD" else request.method](request)

    return handle


PUBLIC_PATHS = frozenset(operation.path for operation in OPERATIONS if operation.public)
"""Paths that need no key."""
UPLOAD_PATHS = frozenset(operation.path for operation in OPERATIONS if operation.upload)
"""Paths whose bodies are files."""
