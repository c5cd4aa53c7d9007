"""Completions of plain prompts."""

from typing import Annotated, Any

from msgspec import UNSET, UnsetType

from jaxllm.serving.http.body.base import Answer, Refused
from jaxllm.serving.http.body.bounds import Natural, OrMinusOne, Text, documented
from jaxllm.serving.openai.protocol.beam_tree import BeamTree
from jaxllm.serving.openai.protocol.generation import GenerationRequest
from jaxllm.serving.openai.protocol.logprobs import CompletionLogprobs, PromptLogprobs
from jaxllm.serving.openai.protocol.timing import RequestTiming
from jaxllm.serving.openai.protocol.usage import Usage


class CompletionRequest(GenerationRequest, kw_only=True):
    """Prompts to be continued."""

    prompt: Text | Annotated[list[Text | Natural | list[Natural]], documented(minItems=1)] | None = None
    """A text, a list of texts, a list of token ids, or a list of lists of token ids. May be left out only where there
    are prompt_embeds."""
    prompt_embeds: Text | list[Text] | None = None
    """Prompts as embeddings, whose choices come before those of `prompt`: each a file of torch.save, numpy.save or
    safetensors in base64, of one tensor [tokens, width]. For servers with --enable-prompt-embeds."""
    max_tokens: Natural | None = None
    """Most tokens to generate; default 16. 0 with echo: only the prompt, for its logprobs."""
    logprobs: OrMinusOne | None = None
    """Return the log-probabilities of the generated tokens, and of this many alternatives at each place; -1: of all."""
    echo: bool | None = None
    """Begin the text with the prompt."""

    suffix: Annotated[Any, Refused("this model cannot fill in the middle of a text: omit suffix", ("",))] = None


class CompletionChoice(Answer, kw_only=True):
    """One completion, or in a stream its news."""

    index: int
    """Prompts are counted first: the choices of prompt p begin at p times n."""
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: str | None
    """stop: it ended by itself or at a stop string. length: max_tokens or the model's context were full. repetition:
    it went in circles, see repetition_detection."""
    stop_reason: str | int | None = None
    """The stop string or stop token id that ended it; null for the model's own end token."""
    token_ids: list[int] | None = None
    """With return_token_ids."""
    prompt_token_ids: list[int] | None = None
    """With return_token_ids; in a stream where the choice begins."""
    prompt_logprobs: PromptLogprobs | UnsetType | None = UNSET
    """With prompt_logprobs; not in a stream."""
    beam_tree: BeamTree | UnsetType = UNSET
    """With return_beam_tree, in the first choice of each prompt."""


class Completion(Answer, kw_only=True):
    """The completions of a request; in a stream one event, the last without choices if the usage was asked for."""

    id: str
    object: str = "text_completion"
    created: int
    model: str
    system_fingerprint: str
    choices: list[CompletionChoice]
    usage: Usage | UnsetType | None = UNSET
    service_tier: UnsetType | None = UNSET
    """Null; not in a stream."""
    kv_transfer_params: dict[str, Any] | UnsetType | None = UNSET
    """For the server that goes on with the prompt; not in a stream."""
    metrics: RequestTiming | UnsetType = UNSET
    """With --enable-per-request-metrics, for one answer; in a stream alongside the usage at its end."""
