"""The images of requests, made ready for the engine: a bounded number at a time, whatever clients ask for."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from jaxllm.errors import RequestError
from jaxllm.serving.llm.async_llm import RunText
from jaxllm.serving.media.errors import MediaError
from jaxllm.serving.media.source import MediaSource
from jaxllm.serving.options.media import MediaOptions
from jaxllm.serving.telemetry.metrics import Metrics
from jaxllm.serving.text.given_images import PreparedImage
from jaxllm.serving.text.media_parts import PlacedMedium
from jaxllm.serving.text.messages import IMAGE
from jaxllm.serving.text.prompt_images import PromptImages

AT_A_TIME = 16
"""Images of all requests that are fetched, decoded or processed."""


class RequestImages:
    """Makes images of requests ready for the engine.

    Only a few images are in memory with all their pixels: what is kept of one is what the model sees of it.
    """

    def __init__(self, options: MediaOptions, images: PromptImages, run_text: RunText, metrics: Metrics) -> None:
        """`run_text` runs what takes long in a thread. Raises `ConfigError` for options that name what is not there."""
        self._metrics = metrics
        self._images, self._run_text, self._most = images, run_text, options.max_images_per_prompt
        self._loader = images.loader(options)
        self._places = asyncio.Semaphore(AT_A_TIME)

    async def prepare(
        self, sources: Sequence[PlacedMedium], owner: str, kwargs: Mapping[str, Any] | None = None
    ) -> list[PreparedImage]:
        """The images of a request, processed with its mm_processor_kwargs; in order.

        Raises `RequestError` that names the place, and `QueueFullError`; then nothing more is fetched.
        """
        if not sources:
            return []
        if len(sources) > self._most:
            raise RequestError(
                f"{len(sources)} images: a request may have at most {self._most} (--max-images-per-prompt)",
                sources[self._most].where,
            )
        tasks = [asyncio.ensure_future(self._prepare(source, owner, kwargs)) for source in sources]
        try:
            return await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            cache = self._loader.cache
            self._metrics.set_media_cache(cache.queries, cache.hits)

    @property
    def media(self) -> frozenset[str]:
        """See `ChatMedium`."""
        return frozenset({IMAGE})

    @property
    def written(self) -> None:
        """See `ChatMedium`: a chat template must have a place for images."""

    def write(self, prompt: str, images: Sequence[PreparedImage]) -> str:
        """The prompt with what stands for its images, in place of their markers. Raises `RequestError`."""
        return self._images.write(prompt, images)

    async def _prepare(self, source: PlacedMedium, owner: str, kwargs: Mapping[str, Any] | None) -> PreparedImage:
        where = source.where
        async with self._places:
            try:
                loaded = await self._loader.load(MediaSource(source.url, source.uuid), kwargs, owner=owner)
                return await self._run_text(self._images.prepared, loaded.image, loaded.runs)
            except MediaError as error:
                raise type(error)(f"{where}: {error}", where) from None
            except RequestError as error:
                if error.parameter == "mm_processor_kwargs":
                    raise
                raise RequestError(f"{where}: {error}", where) from None

    def close(self) -> None:
        """End the processes that decode."""
        self._loader.close()
