"""`/generate` of vLLM's demonstration server."""

from typing import Annotated, Any

from jaxllm.serving.http.body.base import Answer, Refused
from jaxllm.serving.http.body.bounds import Text
from jaxllm.serving.openai.protocol.completions import CompletionRequest

_TEXTS = "the response contains only texts; see /v1/completions"


class GenerateRequest(CompletionRequest, kw_only=True):
    """A prompt to be continued; the other fields are those of a completion."""

    prompt: Text
    """The text."""
    logprobs: Annotated[Any, Refused(_TEXTS)] = None
    prompt_logprobs: Annotated[Any, Refused(_TEXTS)] = None
    return_token_ids: Annotated[Any, Refused(_TEXTS, (False,))] = None
    prompt_embeds: Annotated[Any, Refused("each text begins with the prompt")] = None
    echo: Annotated[Any, Refused("each text begins with the prompt", (True,))] = None


class GeneratedTexts(Answer, kw_only=True):
    """The prompt with each of its continuations; in a stream, a line with what there is so far."""

    text: list[str]
