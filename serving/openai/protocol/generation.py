"""The fields that chat completions and completions share."""

from typing import Annotated, Any, Literal

from msgspec import Meta

from jaxllm.requests.sampling_limits import MAX_LISTED_TOKENS, MAX_LOGPROB_TOKEN_IDS
from jaxllm.serving.http.body.base import Body, Ignored, Refused
from jaxllm.serving.http.body.bounds import (
    MOST_BIASES,
    MOST_EXTRA_ARGS,
    MOST_TEXTS,
    AtLeastOne,
    Count,
    Int64,
    Natural,
    NotNegative,
    OrMinusOne,
    Penalty,
    Positive,
    Probability,
    Share,
    Text,
    at_most,
)
from jaxllm.serving.openai.protocol.response_format import ResponseFormat, StructuredOutputsBody

_BACKEND = "grammars are compiled by llguidance"
_ONE_EACH = "each conversation has one answer; see /v1/chat/completions"
_TRANSFER = "transfer of encoded images between servers is not supported"
_TEXT_ONLY = "this model accepts text only"
_LENGTH = "the length is limited by max_tokens (in responses: max_output_tokens)"
_OPTIONS = "send options as fields of the request, under this API's names, such as temperature and max_tokens"


class StreamOptions(Body, kw_only=True):
    """Additional contents of a stream."""

    include_usage: bool | None = None
    """End the stream with a chunk that has the token counts and no choices."""
    continuous_usage_stats: bool | None = None
    """With include_usage: give the token counts so far in every chunk."""
    include_obfuscation: bool | None = None
    """Accepted, without effect: chunks are never padded."""


class RepetitionBody(Body, kw_only=True):
    """A text ends where its last tokens are one pattern, min_count times in a row."""

    max_pattern_size: Natural | None = None
    """Most tokens of the pattern; 0: nothing is looked for."""
    min_pattern_size: Natural | None = None
    """Fewest tokens of the pattern; default 1."""
    min_count: Natural | None = None
    """Times that the pattern stands there, 2 at least."""


class PredictedPart(Body, kw_only=True):
    """Some of a predicted text."""

    type: Literal["text"]
    text: Text
    """The text."""


class Prediction(Body, kw_only=True):
    """What a text is expected to be, in part: it is generated faster where it is so, and is the same in any case."""

    type: Literal["content"]
    content: Text | Annotated[list[PredictedPart], at_most(MOST_TEXTS)]
    """The text, or parts of it."""

    @property
    def text(self) -> str:
        """All of it."""
        return self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)


class GenerationRequest(Body, kw_only=True):
    """Parameters of generation. Null always means the default."""

    model: str | None = None
    """Which model: one of /v1/models. Left out, it is the first of them."""
    stream: bool | None = None
    """Send the text as it is generated, as server-sent events."""
    stream_options: StreamOptions | None = None
    """Options of the stream; only with stream."""
    n: Count | None = None
    """Choices to generate for each prompt; default 1."""
    best_of: Count | None = None
    """Choices to generate for each prompt; the n most likely are returned. Not with stream."""
    seed: Int64 | None = None
    """Same seed, same tokens, whatever else the server does."""
    stop: Text | Annotated[list[Text], at_most(MOST_TEXTS)] | None = None
    """Strings that end the text; they are not part of it."""
    temperature: NotNegative | None = None
    """Randomness: 0 always takes the most likely token; default 1, or what the model's makers recommend."""
    top_p: Share | None = None
    """Draw from the smallest set of most likely tokens whose probability reaches this, in (0, 1]."""
    frequency_penalty: Penalty | None = None
    """From -2 to 2: lowers the logit of a token each time it was generated."""
    presence_penalty: Penalty | None = None
    """From -2 to 2: lowers the logit of tokens that were generated at all."""
    logit_bias: Annotated[dict[str, float], Meta(max_length=MOST_BIASES)] | None = None
    """Token ids, as strings, to numbers from -100 to 100 that are added to their logits."""

    user: str | None = None
    """Accepted, without effect."""

    top_k: OrMinusOne | None = None
    """Draw from this many of the most likely tokens; 0 or -1: from all."""
    min_p: Probability | None = None
    """Draw from tokens at least this likely relative to the most likely one, in [0, 1]."""
    repetition_penalty: Positive | None = None
    """Greater than 0: divides the logits of tokens in prompt or output."""
    min_tokens: Natural | None = None
    """The text cannot end before this many tokens."""
    stop_token_ids: Annotated[list[Natural], at_most(MOST_TEXTS)] | None = None
    """Tokens that end the text, besides the model's own end tokens."""
    bad_words: Annotated[list[Text], at_most(MOST_TEXTS)] | None = None
    """Texts that may not be generated."""
    allowed_token_ids: Annotated[list[Natural], at_most(MAX_LISTED_TOKENS)] | None = None
    """Only these tokens may be generated."""
    include_stop_str_in_output: bool | None = None
    """Leave the stop string in the text."""
    ignore_eos: bool | None = None
    """Go on after the model's end token."""
    skip_special_tokens: bool | None = None
    """Leave special tokens out of the text; default true."""
    spaces_between_special_tokens: bool | None = None
    """Put spaces between special tokens in the text; default true."""
    truncate_prompt_tokens: OrMinusOne | None = None
    """Keep only this many last tokens of the prompt; -1: as many as the model allows."""
    truncation_side: Literal["left", "right"] | None = None
    """With truncate_prompt_tokens: which end of the prompt is lost; default left."""
    prompt_logprobs: OrMinusOne | None = None
    """Alternatives to return for each token of the prompt, -1: all; not with stream."""

    logprob_token_ids: Annotated[list[Natural], at_most(MAX_LOGPROB_TOKEN_IDS, minItems=1)] | None = None
    """Tokens whose log-probabilities are returned besides the generated one's, not the most likely; needs logprobs."""

    use_beam_search: bool | None = None
    """Search for the most likely texts: best_of (default n) beams are followed, the best n returned; no streams."""
    length_penalty: float | None = None
    """With use_beam_search: texts score sum of log-probabilities / number of tokens ** length_penalty; default 1."""
    early_stopping: bool | Literal["never"] | None = None
    """With use_beam_search: end as soon as there are as many complete texts as beams; default false."""
    return_beam_tree: bool | None = None
    """With use_beam_search: return what the search has tried, up to 4,096 tokens, in beam_tree of each first choice."""

    add_special_tokens: bool | None = None
    """Add the tokenizer's special tokens to the prompt; default true for prompts, false for chats."""
    priority: Int64 | None = None
    """Lower numbers go first, where the server schedules by priority; default 0."""
    request_id: str | None = None
    """Part of the response's id and of the log; by default random."""
    timeout: Positive | None = None
    """Seconds in which the whole request must be answered; at most, and by default, the server's limit."""
    cache_salt: Text | None = None
    """Cached prefixes are shared only between requests of the same salt."""
    skip_reading_prefix_cache: bool | None = None
    """Compute the whole prompt, though its beginning may be cached; others still find it."""
    return_token_ids: bool | None = None
    """Return the token ids of prompt and text too."""
    return_tokens_as_token_ids: bool | None = None
    """Show tokens in logprobs as token_id:NUMBER."""
    stream_interval: AtLeastOne | None = None
    """With stream: tokens that each event brings, after the first; default that of the server (--stream-interval)."""
    prediction: Prediction | None = None
    """What the text is expected to be, in part: drafts are taken from it, if the server makes any."""
    speculative_tokens: Natural | None = None
    """Most drafts that a step checks for this request, if the server makes any; 0: none. They change no token."""
    repetition_detection: RepetitionBody | None = None
    """Ends a text that goes in circles, with the finish reason repetition."""
    session_id: str | None = None
    """Accepted, without effect."""

    response_format: ResponseFormat | None = None
    """The form of the text: text, json_object, or json_schema with a schema."""
    structured_outputs: StructuredOutputsBody | None = None
    """The form of the text, in vLLM's words."""
    guided_json: dict[str, Any] | str | bool | None = None
    """The older name of structured_outputs.json."""
    guided_regex: Text | None = None
    """The older name of structured_outputs.regex."""
    guided_choice: Annotated[list[Text], at_most(MOST_TEXTS)] | None = None
    """The older name of structured_outputs.choice."""
    guided_grammar: Text | None = None
    """The older name of structured_outputs.grammar."""
    guided_whitespace_pattern: Text | None = None
    """The older name of structured_outputs.whitespace_pattern."""
    structural_tag: dict[str, Any] | str | None = None
    """The older name of structured_outputs.structural_tag."""
    vllm_xargs: Annotated[dict[str, Any], Meta(max_length=MOST_EXTRA_ARGS)] | None = None
    """Input of the operator's logits processors: extra_args of the sampling parameters."""
    thinking_token_budget: OrMinusOne | None = None
    """Most tokens of reasoning; -1: no limit. Only where the server tells reasoning from text."""

    guided_decoding_backend: Annotated[Any, Ignored(_BACKEND, ("auto", "guidance", "llguidance"))] = None
    logits_processors: Annotated[Any, Refused("requests cannot contain code", ([],))] = None
    watermarking: Annotated[Any, Ignored("watermarks are not supported", (False,))] = None
    return_token_offsets: Annotated[Any, Ignored("not supported; completions have logprobs.text_offset", (False,))] = (
        None
    )
    return_prompt_text: Annotated[Any, Ignored("use chat completions, or /tokenize", (False,))] = None
    return_mm_kwargs: Annotated[Any, Ignored(_TEXT_ONLY, (True, False))] = None
    mm_payload: Annotated[Any, Refused(_TEXT_ONLY)] = None
    n_predict: Annotated[Any, Refused(_LENGTH)] = None
    num_predict: Annotated[Any, Refused(_LENGTH)] = None
    options: Annotated[Any, Refused(_OPTIONS, ({},))] = None
    media_io_kwargs: dict[str, Any] | None = None
    """Which frames of videos are used: {"video": {"num_frames": 16, "fps": 1}}."""
    mm_processor_kwargs: dict[str, Any] | None = None
    """Fields of the image processor, for the images of this request."""
    routed_experts_prompt_start: Annotated[Any, Ignored("the routing of experts is not returned", (0,))] = None
    kv_transfer_params: dict[str, Any] | None = None
    """Prefill in one server, decode in another: do_remote_decode, or what the answer to that had. See
    docs/disaggregation.md."""
    ec_transfer_params: Annotated[Any, Ignored(_TRANSFER, ({},))] = None
    return_weight_versions: Annotated[Any, Ignored("not supported; see /metrics, weights_version", (False,))] = None


class OneAnswer(GenerationRequest, kw_only=True):
    """Several conversations answered together: fields that ask for several answers are rejected."""

    n: Annotated[Any, Refused(_ONE_EACH, (1,))] = None
    best_of: Annotated[Any, Refused(_ONE_EACH, (1,))] = None
    use_beam_search: Annotated[Any, Refused(_ONE_EACH, (False,))] = None
    kv_transfer_params: Annotated[Any, Refused(_ONE_EACH, ({},))] = None
