"""The operations of OpenAI's interface, but those of models that pool."""

from jaxllm.serving.http.operation import Operation
from jaxllm.serving.openai.adapters import LoadAdapter, UnloadAdapter, load_adapter, unload_adapter
from jaxllm.serving.openai.batches.routes import cancel_batch, create_batch, list_batches, retrieve_batch
from jaxllm.serving.openai.chat.routes import create_chat_batch, create_chat_completion
from jaxllm.serving.openai.completions.demonstration import generate
from jaxllm.serving.openai.completions.label_scores import score_labels
from jaxllm.serving.openai.completions.routes import create_completion
from jaxllm.serving.openai.files.routes import (
    create_file,
    delete_file,
    list_files,
    retrieve_file,
    retrieve_file_content,
)
from jaxllm.serving.openai.models import list_models, retrieve_model
from jaxllm.serving.openai.protocol import (
    batches,
    chat,
    chat_batch,
    completions,
    demonstration,
    files,
    label_scores,
    models,
    response_answers,
    response_events,
    response_items,
    responses,
    tokenize,
)
from jaxllm.serving.openai.responses import routes as response_routes
from jaxllm.serving.openai.responses.create import create_response
from jaxllm.serving.openai.tokenize import detokenize, tokenizer_info
from jaxllm.serving.openai.tokenize import tokenize as tokenize_text

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
        batch=True,
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
        batch=True,
    ),
    Operation(
        path="/generate",
        methods=("POST",),
        handler=generate,
        tag="Text",
        request=demonstration.GenerateRequest,
        response=demonstration.GeneratedTexts,
        runner="generate",
    ),
    Operation(
        path="/generative_scoring",
        methods=("POST",),
        handler=score_labels,
        tag="Text",
        request=label_scores.LabelScoresRequest,
        response=label_scores.LabelScores,
        runner="generate",
    ),
    Operation(
        path="/v1/responses",
        methods=("POST",),
        handler=create_response,
        tag="OpenAI",
        request=responses.ResponsesRequest,
        response=response_answers.ModelResponse,
        stream=response_events.ResponseEvent,
        parts=(*response_items.ITEM_KINDS.values(), *response_items.TOOL_KINDS.values(), *response_events.EVENTS),
        runner="generate",
        batch=True,
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
    Operation(
        path="/v1/load_lora_adapter",
        methods=("POST",),
        handler=load_adapter,
        tag="OpenAI",
        operator=True,
        request=LoadAdapter,
        content_type="text/plain",
    ),
    Operation(
        path="/v1/unload_lora_adapter",
        methods=("POST",),
        handler=unload_adapter,
        tag="OpenAI",
        operator=True,
        request=UnloadAdapter,
        content_type="text/plain",
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
)
