"""The images and videos of requests, made ready for the engine: a bounded number at a time."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jaxllm.errors import RequestError
from jaxllm.serving.llm.async_llm import RunText
from jaxllm.serving.media.errors import MediaError
from jaxllm.serving.media.source import MediaSource
from jaxllm.serving.options.media import MediaOptions
from jaxllm.serving.telemetry.metrics import Metrics
from jaxllm.serving.text.given_images import PreparedImage
from jaxllm.serving.text.media_counts import check_count, most_of
from jaxllm.serving.text.media_parts import PlacedMedium
from jaxllm.serving.text.messages import IMAGE, VIDEO
from jaxllm.serving.text.prompt_images import NO_VIDEOS, PromptImages

AT_A_TIME = 16
"""Images and videos of all requests that are fetched, decoded or processed."""


class RequestImages:
    """Makes images of requests ready for the engine.

    Only a few images are in memory with all their pixels: what is kept of one is what the model sees of it.
    """

    def __init__(self, options: MediaOptions, images: PromptImages, run_text: RunText, metrics: Metrics) -> None:
        """`run_text` runs what takes long in a thread. Raises `ConfigError` for options that name what is not there."""
        self._metrics = metrics
        self._images, self._run_text, self._most = images, run_text, most_of(options)
        self._loader = images.loader(options)
        self._videos = images.video_loader(options, self._loader.cache)
        self._places = asyncio.Semaphore(AT_A_TIME)

    async def prepare(
        self,
        sources: Sequence[PlacedMedium],
        owner: str,
        kwargs: Mapping[str, Any] | None = None,
        io_kwargs: Mapping[str, Any] | None = None,
    ) -> list[PreparedImage]:
        """The images and videos of a request, with its mm_processor_kwargs and media_io_kwargs; in order.

        Raises `RequestError` that names the place, and `QueueFullError`; then nothing more is fetched.
        """
        if not sources:
            return []
        check_count([source.medium for source in sources], self._most, [source.where for source in sources])
        tasks = [asyncio.ensure_future(self._prepare(source, owner, kwargs, io_kwargs)) for source in sources]
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
        return frozenset({IMAGE, VIDEO})

    @property
    def written(self) -> Mapping[str, Callable[[int], str]]:
        """See `ChatMedium`: of most models, a chat template must have a place for images and videos."""
        return self._images.written

    def write(self, prompt: str, images: Sequence[PreparedImage]) -> str:
        """The prompt with what stands for its images, in place of their markers. Raises `RequestError`."""
        return self._images.write(prompt, images)

    async def _prepare(
        self,
        source: PlacedMedium,
        owner: str,
        kwargs: Mapping[str, Any] | None,
        io_kwargs: Mapping[str, Any] | None,
    ) -> PreparedImage:
        where, named = source.where, MediaSource(source.url, source.uuid, source.medium)
        async with self._places:
            try:
                if source.medium == VIDEO:
                    if self._videos is None or self._images.videos is None:
                        raise RequestError(NO_VIDEOS)
                    video = await self._videos.load(named, kwargs, io_kwargs, owner=owner)
                    return await self._run_text(self._images.videos.prepared, video)
                loaded = await self._loader.load(named, kwargs, owner=owner)
                return await self._run_text(self._images.prepared, loaded.image, loaded.runs)
            except MediaError as error:
                raise type(error)(f"{where}: {error}", where) from None
            except RequestError as error:
                if error.parameter in ("mm_processor_kwargs", "media_io_kwargs"):
                    raise
                raise RequestError(f"{where}: {error}", where) from None

    def close(self) -> None:
        """End the processes that decode."""
        self._loader.close()
        if self._videos is not None:
            self._videos.close()
