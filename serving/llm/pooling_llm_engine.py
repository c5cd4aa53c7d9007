"""The engine with text at one end, for models that pool."""

from typing import TYPE_CHECKING, Any

from jaxllm.errors import RequestError
from jaxllm.serving.llm.loading import prompt_media
from jaxllm.serving.options.media import MediaOptions
from jaxllm.serving.pooling.inputs import PooledText, PoolingInputs
from jaxllm.serving.pooling.outputs import PoolingRequestOutput
from jaxllm.serving.pooling.processor import PoolingProcessor
from jaxllm.serving.text.engine import TextEngine
from jaxllm.serving.text.token_engine import TokenEngine
from jaxllm.serving.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from jaxllm.serving.llm.chat_media import ChatMedia


class PoolingLLMEngine(TextEngine[PooledText]):
    """`LLMEngine` for models that pool. Not thread-safe."""

    def __init__(self, engine: TokenEngine, tokenizer: Tokenizer | None, media: MediaOptions | None = None) -> None:
        """`media` says where images come from."""
        super().__init__(engine, tokenizer, PoolingProcessor())
        self._media = media or MediaOptions()
        images, _ = prompt_media(engine.info, tokenizer, self._media)
        self.inputs = PoolingInputs(tokenizer, engine.info, images)
        self._chat_media: ChatMedia | None = None
        self._waiting: list[PoolingRequestOutput] = []
        self._refused: list[tuple[str, RequestError]] = []

    @property
    def chat_media(self) -> "ChatMedia | None":
        """What fetches and decodes images of parts; None where there may be none."""
        if self._chat_media is None and self.inputs.images is not None:
            # Most models take none: starts are faster without the import.
            from jaxllm.serving.llm.chat_media import ChatMedia

            self._chat_media = ChatMedia(self.inputs, self._media)
        return self._chat_media

    def close(self) -> None:
        """Free the engine and its device memory. Nothing can be run afterwards."""
        super().close()
        if self._chat_media is not None:
            self._chat_media.close()

    def reset_mm_cache(self) -> None:
        """Forget images that were processed: files are decoded again."""
        if self._chat_media is not None:
            self._chat_media.forget()

    def step(self) -> list[PoolingRequestOutput]:
        """Run one step; the results that are complete.

        Raises the `RequestError` of a request that was rejected, and the next call brings what this step brought.
        """
        if not self._refused:
            found, refused = self.advance()
            self._waiting += found
            self._refused += refused
        if self._refused:
            request_id, error = self._refused.pop(0)
            raise type(error)(f"request {request_id}: {error}", error.parameter)
        found, self._waiting = self._waiting, []
        return found

    def advance(self) -> tuple[list[PoolingRequestOutput], list[tuple[str, RequestError]]]:
        """`step`, which raises for no request: the results, and the requests that it rejected, with the reasons."""
        processed = self._outputs.process(self.engine.step())
        found: list[Any] = list(processed.outputs)
        return found, processed.refused
