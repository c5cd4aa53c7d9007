"""Embeddings, classes and plain pooling: texts in, numbers out. Fields beyond OpenAI's are vLLM's."""

from typing import Annotated, Any, Literal

from jaxllm.serving.http.body.base import Answer, Body, Ignored, Refused
from jaxllm.serving.http.body.bounds import (
    MOST_MESSAGES,
    AtLeastOne,
    Int64,
    Natural,
    OrMinusOne,
    Positive,
    Text,
    at_most,
    documented,
)
from jaxllm.serving.openai.protocol.messages import Message


class PooledRequest(Body, kw_only=True):
    """Fields of every request to a pooling model."""

    model: str | None = None
    """One of /v1/models; default: the first."""
    user: str | None = None
    """Accepted, without effect."""
    truncate_prompt_tokens: OrMinusOne | None = None
    """Keep only this many tokens of a text that is longer, special ones included; -1: as many as the model reads."""
    truncation_side: Literal["left", "right"] | None = None
    """With truncate_prompt_tokens: the end of a text to cut; default right, and always right for two texts."""
    priority: Int64 | None = None
    """Lower numbers go first, where the server schedules by priority; default 0."""
    request_id: str | None = None
    """Part of the response's id and of the log; by default random."""
    timeout: Positive | None = None
    """Seconds in which the whole request must be answered; at most, and by default, the server's limit."""

    cache_salt: Annotated[Any, Ignored("a pooling model caches nothing")] = None
    mm_processor_kwargs: dict[str, Any] | None = None
    """Fields of the image processor, for the images of this request."""
    media_io_kwargs: dict[str, Any] | None = None
    """Which frames of videos are used: {"video": {"num_frames": 16, "fps": 1}}."""


class TextsRequest(PooledRequest, kw_only=True):
    """Texts, or a conversation that the chat template makes one text of."""

    input: Text | Annotated[list[Text | Natural | list[Natural]], documented(minItems=1)] | None = None
    """A text, a list of texts, a list of token ids, or a list of lists of token ids; or else messages."""
    messages: Annotated[list[Message], at_most(MOST_MESSAGES)] | None = None
    """A conversation, made into one text by the chat template."""
    add_special_tokens: bool | None = None
    """Add the tokenizer's special tokens; default true for input, false for messages."""
    add_generation_prompt: bool | None = None
    """End a conversation with the beginning of the model's answer; default false."""
    continue_final_message: bool | None = None
    """Leave the last message of a conversation open."""
    chat_template: str | None = None
    """A chat template (Jinja) for this request; rejected unless the server trusts them."""
    chat_template_kwargs: dict[str, Any] | None = None
    """Arguments for the chat template."""


class EmbeddingRequest(TextsRequest, kw_only=True):
    """Texts to embed."""

    encoding_format: Annotated[str, documented(enum=["float", "base64", "bytes", "bytes_only"])] | None = None
    """float: lists of numbers, the default. base64: the bytes of an array. bytes: the answer is the bytes of all arrays
    and not JSON; the header metadata describes them. bytes_only: the same without the header."""
    dimensions: AtLeastOne | None = None
    """Keep this many first numbers; for models trained for it (Matryoshka)."""
    normalize: bool | None = None
    """Scale embeddings to length 1; by default as the model says, mostly true."""
    normalized: bool | None = None
    """Jina's name of normalize, which comes before it."""
    embed_dtype: Annotated[str, documented(enum=["float32", "float16", "bfloat16", "fp8_e4m3", "fp8_e5m2"])] | None = (
        None
    )
    """Numbers of such arrays; default float32."""
    endianness: Annotated[str, documented(enum=["native", "little", "big"])] | None = None
    """Order of the bytes of such numbers; default native, the server's."""
    truncate: Annotated[Any, Refused("use truncate_prompt_tokens and truncation_side", ("NONE",))] = None

    @property
    def is_normalized(self) -> bool | None:
        """Whether to scale embeddings, by either name."""
        return self.normalized if self.normalize is None else self.normalize


class PoolingBody(EmbeddingRequest, kw_only=True):
    """Texts to be pooled in any way the model does."""

    task: str | None = None
    """embed, classify, token_embed or token_classify; default: what the model is made for."""
    use_activation: bool | None = None
    """Turn class scores into probabilities; default true."""
    activation: bool | None = None
    """Older name of use_activation."""
    softmax: bool | None = None
    """Older name of use_activation."""


class ClassifyRequest(TextsRequest, kw_only=True):
    """Texts to classify."""

    use_activation: bool | None = None
    """Turn scores into probabilities; default true."""
    activation: bool | None = None
    """Older name of use_activation."""
    softmax: bool | None = None
    """Older name of use_activation."""


class TextUsage(Answer, kw_only=True):
    """Tokens that went in."""

    prompt_tokens: int
    total_tokens: int


class Embedding(Answer, kw_only=True):
    """The embedding of one text."""

    object: str = "embedding"
    index: int
    embedding: list[float] | str
    """Numbers, or with base64 the bytes of an array."""


class VectorBytes(Answer, kw_only=True):
    """Where the array of one text is in an answer of bytes, and what it holds."""

    index: int
    embed_dtype: str
    endianness: str
    start: int
    end: int
    shape: list[int]


class VectorsMetadata(Answer, kw_only=True):
    """The header `metadata` of an answer of bytes."""

    id: str
    created: int
    model: str
    data: list[VectorBytes]
    usage: TextUsage


class EmbeddingResponse(Answer, kw_only=True):
    """Embeddings in the order of the texts."""

    id: str
    object: str = "list"
    created: int
    model: str
    data: list[Embedding]
    usage: TextUsage


class Pooled(Answer, kw_only=True):
    """The result of one text."""

    object: str = "pooling"
    index: int
    data: list[float | list[float]] | str
    """Numbers; a list of them for every token with the tasks of tokens; with base64 the bytes of an array."""


class PoolingResponse(Answer, kw_only=True):
    """Results in the order of the texts."""

    id: str
    object: str = "list"
    created: int
    model: str
    data: list[Pooled]
    usage: TextUsage


class Classified(Answer, kw_only=True):
    """The classes of one text."""

    index: int
    label: str
    """The class with the largest probability."""
    probs: list[float]
    """Probabilities of all classes."""
    num_classes: int


class ClassifyResponse(Answer, kw_only=True):
    """Classes in the order of the texts."""

    id: str
    object: str = "list"
    created: int
    model: str
    data: list[Classified]
    usage: TextUsage
