"""What makes images and sound of requests ready: of servers whose model sees or hears."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from jaxllm.serving.http.chat_sound import ChatSound
from jaxllm.serving.http.images import RequestImages
from jaxllm.serving.http.sound import RequestSound
from jaxllm.serving.llm.async_llm import AsyncLLM
from jaxllm.serving.options.server import ServerOptions
from jaxllm.serving.telemetry.metrics import Metrics
from jaxllm.serving.text.media_parts import PlacedMedium
from jaxllm.serving.text.messages import AUDIO, IMAGE


class ChatMedium(Protocol):
    """Makes what conversations have of one medium, or of those that are alike, ready for the engine."""

    @property
    def media(self) -> frozenset[str]:
        """The types of parts that it takes, as chat templates see them."""

    @property
    def written(self) -> Mapping[str, Callable[[int], str]]:
        """What is written for a first, second, ... medium where a chat template has no place; others need one."""

    async def prepare(
        self,
        sources: Sequence[PlacedMedium],
        owner: str,
        kwargs: Mapping[str, Any] | None = None,
        io_kwargs: Mapping[str, Any] | None = None,
    ) -> Sequence[Any]:
        """What a request has of it, processed with its mm_processor_kwargs and media_io_kwargs; in order.

        Raises `RequestError` that names the place, and `QueueFullError`.
        """

    def write(self, prompt: str, prepared: Sequence[Any]) -> str:
        """The prompt with what stands for them, in place of their markers. Raises `RequestError`."""

    def close(self) -> None:
        """End the processes that decode."""


class RequestMedia:
    """`of_chats` has the media that a conversation may have; `sound` is None where the model makes no text of it."""

    def __init__(self, options: ServerOptions, llm: AsyncLLM, metrics: Metrics) -> None:
        """Raises `ConfigError` for options that name what is not there."""
        images: Any = getattr(llm.inputs, "images", None)
        heard: Any = getattr(llm.inputs, "sound", None)
        of_chats: dict[str, ChatMedium | None] = {
            IMAGE: None if images is None else RequestImages(options, images, llm.run_text, metrics),
            AUDIO: None if heard is None else ChatSound.of(options, heard, metrics),
        }
        self.of_chats = {medium: maker for medium, maker in of_chats.items() if maker is not None}
        transcribes = llm.info.transcribes
        self.sound = RequestSound.of(options, llm.info, llm.tokenizer, llm.run_text) if transcribes else None
