"""The operations of the Messages API."""

from jaxllm.serving.anthropic import answers, requests
from jaxllm.serving.anthropic.errors import MESSAGES_ERRORS
from jaxllm.serving.anthropic.routes import count_message_tokens, create_message
from jaxllm.serving.http.operation import Operation

OPERATIONS = (
    Operation(
        path="/v1/messages",
        methods=("POST",),
        handler=create_message,
        tag="Anthropic",
        request=requests.MessagesRequest,
        response=answers.MessagesAnswer,
        stream=answers.MessagesEvent,
        parts=(*requests.BLOCK_KINDS.values(), requests.MessagesTool, *answers.EVENTS),
        runner="generate",
        errors=MESSAGES_ERRORS,
        batch=True,
    ),
    Operation(
        path="/v1/messages/count_tokens",
        methods=("POST",),
        handler=count_message_tokens,
        tag="Anthropic",
        request=requests.CountTokensRequest,
        response=answers.TokenCount,
        errors=MESSAGES_ERRORS,
    ),
)
