"""`ImageLoader`: images of requests, from their URLs to what the model sees."""

import asyncio
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from jaxllm.errors import ConfigError, quoted
from jaxllm.serving.media.blocking import run_now
from jaxllm.serving.media.cache import (
    CachedImage,
    ProcessedCache,
    image_digest,
    name_of_file,
    name_of_uuid,
    options_key,
)
from jaxllm.serving.media.checkpoint import ImageModel
from jaxllm.serving.media.decode import WHITE, Color
from jaxllm.serving.media.decoding import DecoderPool
from jaxllm.serving.media.fetch import MediaFetcher
from jaxllm.serving.media.image_processors.base import Bytes, ImageLimits, ProcessedImage
from jaxllm.serving.media.image_processors.registry import ConfiguredProcessor
from jaxllm.serving.media.processes import process_count
from jaxllm.serving.media.source import MediaSource
from jaxllm.serving.media.text_runs import TextRun
from jaxllm.serving.options.media import MediaOptions


@dataclass(frozen=True)
class LoadedImage:
    """A processed image, and what stands for it in the prompt."""

    digest: bytes
    """The same only for the same pixels, processed the same way."""
    image: ProcessedImage
    runs: tuple[TextRun, ...]


class ImageLoader:
    """Fetches, decodes and processes; what was processed before is not decoded again. For any thread and event loop."""

    def __init__(
        self,
        model: ImageModel,
        options: MediaOptions,
        limits: ImageLimits,
        patch_size: int,
        *,
        most_patches: int | None = None,
        fetcher: MediaFetcher | None = None,
    ) -> None:
        """`limits` bound what requests may ask for, in patches of `patch_size` pixels a side.

        Images that would have more than `most_patches` are refused.
        `model` has the options' mm_processor_kwargs already. Raises `ConfigError`.
        """
        self._model, self._limits, self._patch_size = model, limits, patch_size
        self._most_patches = most_patches
        self._most_pixels, self._background = options.max_image_pixels, background_of(options.media_io_kwargs)
        # Now rather than with the first image.
        model.placeholder()
        self._fetcher = fetcher or MediaFetcher(options)
        processes = process_count(options.media_decoder_processes)
        self._decoders = DecoderPool(processes)
        self._threads = ThreadPoolExecutor(processes, thread_name_prefix="process-image")
        self.cache = ProcessedCache[CachedImage](int(options.mm_processor_cache_gb * 2**30))

    async def load(
        self, source: MediaSource, kwargs: Mapping[str, Any] | None = None, *, owner: str = ""
    ) -> LoadedImage:
        """Load an image, processed with a request's mm_processor_kwargs.

        Raises `RequestError`, whose subclasses in `media.errors` say what is wrong with the image; `ConfigError` never.
        """
        configured = self._model.configured.overridden(kwargs or {}, self._limits, self._patch_size)
        options = options_key({**configured.fields, " name": configured.name, " background": self._background})
        names = [name_of_uuid(owner, source.uuid, options)] if source.uuid is not None else []
        if source.url is None:
            found = self.cache.find(*names)
            if found is None:
                raise source.gone
            return self._loaded(found, configured)
        # With a url, it says what the image is, and not a uuid that may be of a former one.
        data = await self._fetcher.fetch(source.url)
        names.append(await asyncio.to_thread(name_of_file, data, options))
        found = self.cache.find(names[-1])
        if found is None:
            pixels = await self._decoders.adecode(data, self._most_pixels, self._background)
            if self._most_patches is not None:
                configured.check_size(pixels, self._patch_size, self._most_patches)
            work = self._threads.submit(self._process, pixels, options, configured, names)
            found = await asyncio.wrap_future(work)
        elif source.uuid is not None:
            self.cache.put(found, *names)
        return self._loaded(found, configured)

    def load_now(
        self, sources: list[MediaSource], kwargs: Mapping[str, Any] | None = None, *, owner: str = ""
    ) -> list[LoadedImage]:
        """Load several at once, from a thread that may have an event loop of its own. Raises the first error."""

        async def every() -> list[LoadedImage]:
            return await asyncio.gather(*(self.load(source, kwargs, owner=owner) for source in sources))

        return run_now(every)

    def close(self) -> None:
        """End processes and threads."""
        self._decoders.close()
        self._threads.shutdown(wait=True, cancel_futures=True)

    def _process(
        self, pixels: Bytes, options: bytes, configured: ConfiguredProcessor, names: list[bytes]
    ) -> CachedImage:
        digest = image_digest(pixels, options)
        known = self.cache.get(digest, *names)
        if known is not None:
            return known
        found = CachedImage(digest, configured.process(pixels))
        for crop in found.image.crops:
            # Several requests will read it.
            crop.flags.writeable = False
        self.cache.put(found, *names)
        return found

    def _loaded(self, found: CachedImage, configured: ConfiguredProcessor) -> LoadedImage:
        return LoadedImage(found.digest, found.image, self._model.placeholder(configured).runs(found.image))


def background_of(kwargs: Mapping[str, Any] | None) -> Color:
    """The colour that transparency shows, from --media-io-kwargs. Raises `ConfigError` for anything else in there."""
    image = (kwargs or {}).get("image", {})
    known = {"image", "video"}
    if set(kwargs or {}) - known or not isinstance(image, Mapping) or set(image) - {"rgba_background_color"}:
        raise ConfigError(
            f'media_io_kwargs={quoted(kwargs)}: only {{"image": {{"rgba_background_color"}}, "video": {{"num_frames", '
            '"fps"}} is known'
        )
    color = image.get("rgba_background_color", WHITE)
    try:
        red, green, blue = color
    except (TypeError, ValueError):
        red = green = blue = None
    if not all(type(each) is int and 0 <= each <= 255 for each in (red, green, blue)):
        raise ConfigError(f"rgba_background_color={quoted(color)}: expected three numbers from 0 to 255")
    return (red, green, blue)
