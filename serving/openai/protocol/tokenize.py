"""Text to token ids and back, in vLLM's shapes."""

from typing import Annotated, Any

from msgspec import UNSET, UnsetType

from jaxllm.serving.http.body.base import Answer, Body
from jaxllm.serving.http.body.bounds import MOST_MESSAGES, MOST_TOOLS, Natural, at_most
from jaxllm.serving.openai.protocol.messages import Message, Tool


class TokenizeRequest(Body, kw_only=True):
    """A prompt or a conversation to tokenize."""

    model: str | None = None
    """One of /v1/models; default: the first."""
    prompt: str | None = None
    """The text; either this or messages."""
    messages: Annotated[list[Message], at_most(MOST_MESSAGES)] | None = None
    """The conversation, made into a prompt by the chat template."""
    add_special_tokens: bool | None = None
    """Add the tokenizer's special tokens; default true for a prompt, false for messages."""
    return_token_strs: bool | None = None
    """Return the tokens as strings too."""
    add_generation_prompt: bool | None = None
    """End a conversation with the beginning of the model's answer; default true."""
    continue_final_message: bool | None = None
    """Leave the last message of a conversation open."""
    chat_template: str | None = None
    """A chat template (Jinja) for this request; rejected unless the server trusts them."""
    chat_template_kwargs: dict[str, Any] | None = None
    """Arguments for the chat template."""
    enable_thinking: bool | None = None
    """With messages: an argument for the chat template that many know; chat_template_kwargs comes before it."""
    tools: Annotated[list[Tool], at_most(MOST_TOOLS)] | None = None
    """Functions to show to the model."""
    media_io_kwargs: dict[str, Any] | None = None
    """Which frames of videos are used: {"video": {"num_frames": 16, "fps": 1}}."""
    mm_processor_kwargs: dict[str, Any] | None = None
    """Fields of the image processor, for the images of this request."""


class TokenizeResponse(Answer, kw_only=True):
    """Token ids."""

    count: int
    max_model_len: int
    """Most tokens of a prompt and its completion together."""
    tokens: list[int]
    token_strs: list[str | None] | None = None
    """With return_token_strs: the tokens as the vocabulary has them, such as Ġthe."""


class DetokenizeRequest(Body, kw_only=True):
    """Token ids to turn into text."""

    model: str | None = None
    """One of /v1/models; default: the first."""
    tokens: list[Natural]
    """Token ids; special ones become text too."""


class DetokenizeResponse(Answer, kw_only=True):
    """Text."""

    prompt: str


class TokenizerInfo(Answer, kw_only=True):
    """The tokenizer's settings, and whatever else its configuration file says."""

    tokenizer_class: str
    chat_template: str | UnsetType = UNSET
    """Where there is one."""
