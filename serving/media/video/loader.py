"""`VideoLoader`: videos of requests, from their URLs to the frames that the model sees."""

import asyncio
import hashlib
import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from jaxllm.serving.media.blocking import run_now
from jaxllm.serving.media.cache import (
    CachedImage,
    ProcessedCache,
    image_digest,
    name_of_file,
    name_of_uuid,
    options_key,
)
from jaxllm.serving.media.fetch import MediaFetcher
from jaxllm.serving.media.loader import background_of
from jaxllm.serving.media.source import MediaSource
from jaxllm.serving.media.video.checkpoint import VideoModel
from jaxllm.serving.media.video.decoding import VideoDecoder
from jaxllm.serving.media.video.frames import VideoFrames
from jaxllm.serving.media.video.limits import VideoLimits
from jaxllm.serving.media.video.processors import ProcessedVideo
from jaxllm.serving.media.video.sampling import FrameSampling
from jaxllm.serving.options.media import MediaOptions

MOST_PROCESSES: Final = 4


class VideoLoader:
    """Fetches, decodes and processes; what was processed before is not decoded again. For any thread and event loop."""

    def __init__(
        self,
        model: VideoModel,
        options: MediaOptions,
        cache: ProcessedCache[CachedImage],
        check: Callable[[VideoFrames, Mapping[str, Any] | None], None],
        *,
        fetcher: MediaFetcher | None = None,
    ) -> None:
        """`check` raises `RequestError` for a video that the engine cannot take. Raises `ConfigError`."""
        self._model, self._cache, self._check = model, cache, check
        self._most_frames, self._background = options.max_video_frames, background_of(options.media_io_kwargs)
        self._sampling = FrameSampling.read(options.media_io_kwargs, self._most_frames)
        self._fetcher = fetcher or MediaFetcher(options, subject="video")
        processes = min(MOST_PROCESSES, options.media_decoder_processes or os.cpu_count() or 1)
        limits = VideoLimits(options.max_image_pixels, options.max_video_seconds, options.max_video_pixels)
        self._decoder = VideoDecoder(processes, limits)
        self._threads = ThreadPoolExecutor(processes, thread_name_prefix="process-video")

    async def load(
        self,
        source: MediaSource,
        kwargs: Mapping[str, Any] | None = None,
        io_kwargs: Mapping[str, Any] | None = None,
        *,
        owner: str = "",
    ) -> ProcessedVideo:
        """Load a video with a request's mm_processor_kwargs and media_io_kwargs.

        Raises `RequestError`, whose subclasses in `media.errors` say what is wrong with the video.
        """
        self._model.overridden(kwargs or {})
        sampling = self._sampling.overridden(io_kwargs, self._most_frames)
        options = options_key({
            **self._model.fields, **(kwargs or {}), " name": self._model.name, " background": self._background,
            " sampling": [sampling.num_frames, sampling.fps],
        })  # fmt: skip
        names = [name_of_uuid(owner, source.uuid, options)] if source.uuid is not None else []
        if source.url is None:
            found = self._cache.find(*names)
            if found is None:
                raise source.gone
            return _video(found)
        data = await self._fetcher.fetch(source.url)
        names.append(await asyncio.to_thread(name_of_file, data, options))
        found = self._cache.find(names[-1])
        if found is None:
            work = self._threads.submit(self._process, data, sampling, options, kwargs, names)
            found = await asyncio.wrap_future(work)
        elif source.uuid is not None:
            self._cache.put(found, *names)
        return _video(found)

    def load_now(self, source: MediaSource, kwargs: Mapping[str, Any] | None = None) -> ProcessedVideo:
        """As `load`, from a thread that may have an event loop of its own."""

        async def load() -> ProcessedVideo:
            return await self.load(source, kwargs)

        return run_now(load)

    def close(self) -> None:
        """End processes and threads."""
        self._decoder.close()
        self._threads.shutdown(wait=True, cancel_futures=True)

    def _process(
        self,
        data: bytes,
        sampling: FrameSampling,
        options: bytes,
        kwargs: Mapping[str, Any] | None,
        names: list[bytes],
    ) -> CachedImage:
        """Decode and process a file. As many frames are in memory as there are threads for videos."""
        video = self._decoder.decode(data, sampling, self._background)
        self._check(video, kwargs)
        times = f"{video.indices} {video.total} {video.fps} {video.duration}".encode()
        count, height, width, channels = video.frames.shape
        digest = image_digest(
            video.frames.reshape(count * height, width, channels),
            hashlib.sha256(options + f"{count} ".encode() + times).digest(),
        )
        known = self._cache.get(digest, *names)
        if known is not None:
            return known
        found = CachedImage(digest, self._model.process(video, kwargs))
        for crop in found.image.crops:
            # Several requests will read it.
            crop.flags.writeable = False
        self._cache.put(found, *names)
        return found


def _video(found: CachedImage) -> ProcessedVideo:
    assert isinstance(found.image, ProcessedVideo)
    return found.image
