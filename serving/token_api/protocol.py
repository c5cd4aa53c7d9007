"""Bodies of requests and answers of token ids, in vLLM's shapes."""

from typing import Annotated, Any, Literal

from msgspec import UNSET, UnsetType

from jaxllm.serving.http.body.base import Answer, Body, Ignored, Refused
from jaxllm.serving.http.body.bounds import MOST_DOCUMENTS, Int64, Natural, Positive, Text, at_most, documented
from jaxllm.serving.openai.protocol.chat import ChatCompletionRequest
from jaxllm.serving.openai.protocol.completions import CompletionRequest
from jaxllm.serving.openai.protocol.generation import StreamOptions
from jaxllm.serving.openai.protocol.logprobs import PromptLogprobs
from jaxllm.serving.openai.protocol.usage import Usage

_TEXT_ONLY = "this model accepts text only"
_TRANSFER = "it has no effect here"
_NOT_STREAMED = (
    "only complete responses can be read; call /inference/v1/generate without stream, or with output_mode text"
)

OutputMode = Literal["tokens", "text"]


class TokensRequest(Body, kw_only=True):
    """Token ids to be continued."""

    token_ids: Annotated[list[Natural], documented(minItems=1)]
    """The prompt."""
    sampling_params: dict[str, Any]
    """Fields of SamplingParams; without max_tokens, the text may be as long as the model's context."""
    model: str | None = None
    """One of /v1/models; default: the first."""
    request_id: str | None = None
    """Part of the answer's id and of the log; by default random."""
    timeout: Positive | None = None
    """Seconds in which the whole request must be answered; at most, and by default, the server's limit."""
    output_mode: OutputMode | None = None
    """tokens (default): the answer has token ids alone, and stop strings are all that is decoded; text: text too."""
    stream: bool | None = None
    """Send tokens as they are generated, as server-sent events."""
    stream_options: StreamOptions | None = None
    """Options of the stream; only with stream."""
    cache_salt: Text | None = None
    """Cached prefixes are shared only between requests of the same salt."""
    priority: Int64 | None = None
    """Lower numbers go first, where the server schedules by priority; default 0."""
    return_token_ids: bool | None = None
    """Return the token ids of the prompt too."""
    reasoning_end_token_ids: Annotated[list[Natural], documented(minItems=1)] | None = None
    """The answer begins inside reasoning, which these end; structured_outputs hold after it."""

    token_offsets: Annotated[Any, Ignored("it has no effect here")] = None
    reasoning_ended: Annotated[Any, Ignored("use reasoning_end_token_ids")] = None
    reasoning_parser_kwargs: Annotated[Any, Ignored("use reasoning_end_token_ids")] = None
    parse_context: Annotated[Any, Ignored("replies are parsed by /v1/chat/completions/derender")] = None
    features: Annotated[Any, Refused(_TEXT_ONLY)] = None
    content_parts: Annotated[Any, Refused(_TEXT_ONLY, ([],))] = None
    kv_transfer_params: dict[str, Any] | None = None
    """Prefill in one server, decode in another, see docs/disaggregation.md."""
    ec_transfer_params: Annotated[Any, Ignored(_TRANSFER, ({},))] = None


class RenderedRequest(Answer, kw_only=True):
    """A request for /inference/v1/generate, made of one of another interface."""

    request_id: str
    token_ids: list[int]
    sampling_params: dict[str, Any]
    model: str
    stream: bool
    stream_options: StreamOptions | None
    cache_salt: str | None
    priority: int
    return_token_ids: bool | None
    reasoning_end_token_ids: list[int] | None


class ListedLogprob(Answer, kw_only=True):
    """A token by its id, and its log-probability."""

    token_id: int
    logprob: float
    """Natural logarithm of its probability; -9999.0 stands for less."""
    rank: int | None
    """1 is the most likely token; null for one that was asked for by its id."""
    token: str | UnsetType = UNSET
    """With output_mode text: its text."""
    bytes: list[int] | UnsetType = UNSET
    """With output_mode text: its bytes."""


class TokenIdLogprob(ListedLogprob, kw_only=True):
    """A generated token, and those alongside it."""

    top_logprobs: list[ListedLogprob]
    """The generated token, then the most likely ones, or those that were asked for."""


class TokenIdLogprobs(Answer, kw_only=True):
    """Log-probabilities, one entry for each generated token."""

    content: list[TokenIdLogprob] | None


class TokensChoice(Answer, kw_only=True):
    """One continuation, or in a stream its news."""

    index: int
    finish_reason: str | None
    """stop: it ended by itself, or at what the request names. length: max_tokens, or the model's context, were full."""
    stop_reason: str | int | None
    """The stop string or stop token id that ended it; null for the model's own end token."""
    token_ids: list[int]
    logprobs: TokenIdLogprobs | None
    text: str | UnsetType = UNSET
    """With output_mode text; without the stop string that ended it."""


class TokensAnswer(Answer, kw_only=True):
    """Continuations."""

    request_id: str
    model: str
    created: int
    output_mode: OutputMode
    choices: list[TokensChoice]
    usage: Usage | None = None
    prompt_logprobs: PromptLogprobs | None = None
    prompt_token_ids: list[int] | None = None
    """With return_token_ids."""
    kv_transfer_params: dict[str, Any] | None = None
    """For the server that goes on with the prompt."""


class TokensChunk(Answer, kw_only=True):
    """One event of a stream, the last without choices if the usage was asked for."""

    request_id: str
    output_mode: OutputMode
    choices: list[TokensChoice]
    usage: Usage | UnsetType | None = UNSET
    prompt_token_ids: list[int] | UnsetType | None = UNSET
    """With return_token_ids, in the first event."""


class GivenLogprob(Body, kw_only=True):
    """As `ListedLogprob`."""

    token_id: Natural
    logprob: float
    rank: int | None = None


class GivenTokenLogprob(GivenLogprob, kw_only=True):
    """As `TokenIdLogprob`."""

    top_logprobs: list[GivenLogprob] | None = None


class GivenLogprobs(Body, kw_only=True):
    """As `TokenIdLogprobs`."""

    content: list[GivenTokenLogprob] | None = None


class GivenChoice(Body, kw_only=True):
    """As `TokensChoice` with output_mode tokens."""

    index: Natural
    token_ids: list[Natural] | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    logprobs: GivenLogprobs | None = None

    routed_experts: Annotated[Any, Ignored("choices do not include it")] = None
    sampling_mask: Annotated[Any, Ignored("choices do not include it")] = None
    weight_versions: Annotated[Any, Ignored("choices do not include it")] = None


class GivenPromptDetails(Body, kw_only=True):
    """As `PromptTokensDetails`."""

    cached_tokens: Natural | None = None


class GivenUsage(Body, kw_only=True):
    """As `Usage`; what can be counted is counted again."""

    prompt_tokens: Natural | None = None
    completion_tokens: Natural | None = None
    total_tokens: Natural | None = None
    prompt_tokens_details: GivenPromptDetails | None = None
    completion_tokens_details: dict[str, Any] | None = None


class GivenTokens(Body, kw_only=True):
    """A whole answer of /inference/v1/generate with output_mode tokens."""

    choices: Annotated[list[GivenChoice], at_most(MOST_DOCUMENTS)]
    output_mode: Literal["tokens"] | None = None
    prompt_token_ids: list[Natural] | None = None
    usage: GivenUsage | None = None
    """Tells the cached tokens of the prompt."""
    request_id: str | None = None
    """Without effect: the answer has an id of its own."""
    model: str | None = None
    """Without effect: the model alongside it is the answer's."""
    created: int | None = None
    """Without effect: the answer has a time of its own."""

    prompt_logprobs: Annotated[Any, Ignored("choices do not include it")] = None
    prompt_token_id_logprobs: Annotated[Any, Ignored("choices do not include it")] = None
    mm_placeholders: Annotated[Any, Ignored(_TEXT_ONLY)] = None
    metrics: Annotated[Any, Ignored("choices do not include it")] = None
    kv_transfer_params: Annotated[Any, Ignored(_TRANSFER, ({},))] = None
    ec_transfer_params: Annotated[Any, Ignored(_TRANSFER, ({},))] = None


class DerenderChatRequest(Body, kw_only=True):
    """Token ids, to become the chat completion that the chat request would have got."""

    generate_response: GivenTokens
    chat_request: ChatCompletionRequest | None = None
    """What was rendered: its tools and reasoning say how the reply is read. Without it, all text is content."""
    model: str | None = None
    """One of /v1/models; default: the first."""
    prompt_token_ids: list[Natural] | None = None
    """The prompt, to be counted; by default that of the answer, or of chat_request."""
    prompt_tokens: Natural | None = None
    """The number of its tokens, where it is not given itself."""

    request_id: str | None = None
    """Part of the answer's id; by default random."""
    stream: Annotated[Any, Refused(_NOT_STREAMED, (False,))] = None
    generate_chunk: Annotated[Any, Refused(_NOT_STREAMED)] = None
    stream_state: Annotated[Any, Refused(_NOT_STREAMED)] = None


class DerenderCompletionRequest(Body, kw_only=True):
    """Token ids, to become the completions that the request would have got."""

    generate_responses: Annotated[list[GivenTokens], at_most(MOST_DOCUMENTS, minItems=1)]
    """One for each prompt."""
    completion_request: CompletionRequest | None = None
    """What was rendered; without it, the answer has texts alone."""
    model: str | None = None
    """One of /v1/models; default: the first."""
    prompt_token_ids: list[list[Natural] | None] | None = None
    """Each prompt, to be counted; by default that of the answer, or of completion_request."""
    prompt_tokens: list[Natural] | None = None
    """The numbers of their tokens, where they are not given themselves."""

    request_id: str | None = None
    """Part of the answer's id; by default random."""
    stream: Annotated[Any, Refused(_NOT_STREAMED, (False,))] = None
    generate_chunk: Annotated[Any, Refused(_NOT_STREAMED)] = None
    stream_state: Annotated[Any, Refused(_NOT_STREAMED)] = None
