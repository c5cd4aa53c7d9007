"""Prompts as people give them: text, token ids, or dictionaries of either."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NotRequired, TypedDict

import numpy as np
import numpy.typing as npt

from jaxllm.errors import RequestError, nearest, quoted
from jaxllm.requests.lora_request import LoRARequest
from jaxllm.requests.media import FIELD as MEDIA
from jaxllm.requests.media import MediaItem
from jaxllm.requests.prompt_embeds import FIELD
from jaxllm.serving.text.tokenizer import check_text

if TYPE_CHECKING:
    from jaxllm.models.towers.patches import Pixels
    from jaxllm.serving.media.video.frames import VideoFrames
    from jaxllm.serving.text.given_images import PreparedImage
    from jaxllm.serving.text.prompt_sound import GivenSound

Prompt = str | Sequence[int] | Mapping[str, Any]
"""Text, token ids, or one of the dictionaries below."""

PromptType = Prompt
"""vLLM's name for it."""


class TextPrompt(TypedDict):
    """A prompt as text. Prompts with the same `cache_salt`, or none, share cached prefixes."""

    prompt: str
    cache_salt: NotRequired[str]
    multi_modal_data: NotRequired[dict[str, Any]]
    """{"image": one image or a list}: of Pillow, or uint8 [height, width, 3]. {"video": one video or a list}: uint8
    [frames, height, width, 3], or a list of images, or one of these and a dictionary with `fps` and
    `frames_indices`. The text has a marker for each. Or {"audio": one sound or a list}: (samples, samples per second),
    or log-mel features float32 [bins, frames] of a window, or these and how many of the frames are sound."""
    mm_processor_kwargs: NotRequired[dict[str, Any]]
    """Fields of the image processor, for these images."""


class TokensPrompt(TypedDict):
    """A prompt as token ids; with `prompt`, results repeat that as its text."""

    prompt_token_ids: list[int]
    prompt: NotRequired[str]
    cache_salt: NotRequired[str]
    multi_modal_data: NotRequired[dict[str, Any]]
    mm_processor_kwargs: NotRequired[dict[str, Any]]


class EmbedsPrompt(TypedDict):
    """A prompt as embeddings, [tokens, width] or [1, tokens, width]: a tensor of PyTorch, or an array.

    They are what the model's embedding layer gives, as `transformers` has it. With `prompt`, results repeat that as its
    text. With `prompt_token_ids` and `prompt_is_token_ids`, as many of each as there are rows, embeddings only count
    where the latter are false.
    """

    prompt_embeds: Any
    prompt: NotRequired[str]
    prompt_token_ids: NotRequired[list[int]]
    prompt_is_token_ids: NotRequired[list[bool]]
    cache_salt: NotRequired[str]


IntArray = npt.NDArray[np.integer[Any]]

PROCESSOR_KWARGS: Final = "mm_processor_kwargs"

_PROMPT_KEYS = {"prompt", "prompt_token_ids", "cache_salt", FIELD, "prompt_is_token_ids", MEDIA, PROCESSOR_KWARGS}
_WITHOUT_VALUE = {"multi_modal_uuids"}
"""vLLM's keys that ask for nothing without a value."""


@dataclass(slots=True)
class ParsedPrompt:
    """A prompt in the making."""

    text: str | None
    token_ids: Any
    cache_salt: str | None
    part: str | None = None
    """The part of the text that is encoded, if not all of it: the rest would be cut off."""
    has_special_tokens: bool = False
    """Whether the text has the special tokens that the tokenizer would add."""
    truncation_side: str = "left"
    """Which end loses tokens where some are cut off: left or right."""
    embeds: Any = None
    """The embeddings in place of tokens, [places without a token id, width]."""
    is_token: Any = None
    """Where `embeds` are those of all places: which of them have a token id."""
    lora_request: LoRARequest | None = None
    images: "Sequence[Pixels | VideoFrames | PreparedImage]" = ()
    """Its images, uint8 [height, width, 3] each, and videos; or processed."""
    processor_kwargs: Mapping[str, Any] | None = None
    """Fields of the image processor, for the images that are not processed."""
    items: tuple[MediaItem, ...] = ()
    """What the engine takes of them."""
    sound: "Sequence[GivenSound]" = ()
    """The sounds that it is about."""

    def cut(self, token_ids: Any, most: int) -> Any:
        """At most so many tokens (1 at least) of the end that stays."""
        return token_ids[:most] if self.truncation_side == "right" else token_ids[-most:]


@contextmanager
def naming_prompt(index: int, total: int) -> Iterator[None]:
    """Put the prompt's index in front of a `RequestError` raised inside, when there are several prompts."""
    try:
        yield
    except RequestError as error:
        if total == 1:
            raise
        raise type(error)(f"prompt {index}: {error}", error.parameter) from None


def parse_prompt(prompt: Any) -> ParsedPrompt:
    """Tell text from token ids. Raises `RequestError` for anything else."""
    if isinstance(prompt, str):
        return ParsedPrompt(prompt, None, None)
    if isinstance(prompt, Mapping):
        for key in prompt:
            if key in _WITHOUT_VALUE and prompt[key]:
                raise RequestError(f"{key}: not supported; omit it", "prompt")
            if key not in _PROMPT_KEYS and key not in _WITHOUT_VALUE:
                raise RequestError(f"unknown key {quoted(key)} in a prompt{nearest(str(key), _PROMPT_KEYS)}", "prompt")
        text, token_ids, salt = (prompt.get(key) for key in ("prompt", "prompt_token_ids", "cache_salt"))
        embeds, is_token = prompt.get(FIELD), prompt.get("prompt_is_token_ids")
        if text is None and token_ids is None and embeds is None:
            raise RequestError("a prompt dictionary needs 'prompt' (text) or 'prompt_token_ids'", "prompt")
        if (embeds is None and is_token is not None) or (
            embeds is not None and (token_ids is None) != (is_token is None)
        ):
            raise RequestError(
                "prompt_is_token_ids selects between prompt_token_ids and prompt_embeds per row: give all three, or "
                "prompt_embeds alone",
                "prompt_is_token_ids",
            )
        if salt is not None and (not isinstance(salt, str) or not salt):
            raise RequestError(f"cache_salt={quoted(salt)}: must be a non-empty string", "cache_salt")
        if text is not None:
            check_text(text)
        parsed = ParsedPrompt(text, token_ids, salt, embeds=embeds, is_token=is_token)
        if prompt.get(MEDIA):
            _take_media(prompt[MEDIA], parsed)
        parsed.processor_kwargs = checked_kwargs(prompt.get(PROCESSOR_KWARGS))
        return parsed
    if isinstance(prompt, (Sequence, np.ndarray)) and not isinstance(prompt, (bytes, bytearray)):
        return ParsedPrompt(None, prompt, None)
    raise RequestError(f"a prompt must be a string or a list of token IDs, got {type(prompt).__name__}", "prompt")


def _take_media(given: Any, prompt: ParsedPrompt) -> None:
    if prompt.embeds is not None:
        raise RequestError(f"{MEDIA} cannot be combined with {FIELD}", MEDIA)
    # Most prompts have none: starts are faster without the import.
    from jaxllm.serving.text.given_images import images_of, sound_of

    if isinstance(given, Mapping) and "audio" in given:
        prompt.sound = sound_of(given)
    else:
        prompt.images = images_of(given)


def checked_kwargs(given: Any) -> Mapping[str, Any] | None:
    """mm_processor_kwargs; None without any. Raises `RequestError` for what is no dictionary."""
    if given is not None and not isinstance(given, Mapping):
        raise RequestError(
            f"{PROCESSOR_KWARGS}: expected fields of the image processor, got {type(given).__name__}", PROCESSOR_KWARGS
        )
    return given or None


def as_token_ids(token_ids: Any) -> IntArray:
    """Token ids given by a caller, of any integer type. Raises `RequestError` unless they are a flat list."""
    try:
        array = np.asarray(token_ids)
    except ValueError:  # lists of different lengths
        array = np.array(0)
    if array.size and (array.ndim != 1 or array.dtype.kind not in "iu"):
        wrong = next(
            (item for item in token_ids if isinstance(item, bool) or not hasattr(item, "__index__")), token_ids
        )
        raise RequestError(f"prompt token IDs must be a flat list of integers, not {quoted(wrong)}", "prompt")
    return array


def broadcast_to_prompts(name: str, given: Any, kind: type, count: int) -> list[Any]:
    """`given` for each of `count` prompts. Raises `RequestError` for another number of them or another type."""
    several = isinstance(given, Sequence) and not isinstance(given, (str, bytes))
    values = list(given) if several else [given] * count
    if len(values) != count:
        raise RequestError(
            f"{name}: {len(values)} given for {count} prompts; give one for all, or one per prompt", name
        )
    for value in values:
        if not isinstance(value, kind) or isinstance(value, bool):
            raise RequestError(f"{name}: expected {kind.__name__}, got {type(value).__name__}", name)
    return values
