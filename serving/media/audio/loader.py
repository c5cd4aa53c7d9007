"""`SoundLoader`: sounds of requests, from their URLs to windows of features."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from hashlib import sha256
from typing import Final

from jaxllm.serving.media.audio.decoding import SoundDecoder
from jaxllm.serving.media.audio.resample import Samples
from jaxllm.serving.media.audio.windows import PreparedSound, SoundWindows
from jaxllm.serving.media.blocking import run_now
from jaxllm.serving.media.cache import ProcessedCache, name_of_file, name_of_uuid
from jaxllm.serving.media.fetch import MediaFetcher
from jaxllm.serving.media.processes import process_count
from jaxllm.serving.media.source import MediaSource
from jaxllm.serving.options.media import MediaOptions

_OPTIONS: Final = b"sound"
"""What a sound depends on besides its samples: nothing that requests choose."""


@dataclass(frozen=True)
class _CachedSound:
    """A sound, see `Processed`."""

    digest: bytes
    sound: PreparedSound

    @property
    def nbytes(self) -> int:
        """Of its features."""
        return self.sound.nbytes


class SoundLoader:
    """Fetches, decodes and makes features; a file that was heard before is not decoded again.

    For any thread and event loop.
    """

    def __init__(self, windows: SoundWindows, options: MediaOptions) -> None:
        """Raises `ConfigError` for options that name what is not there."""
        self._windows = windows
        self._fetcher = MediaFetcher(options, subject="audio")
        processes = process_count(options.media_decoder_processes)
        self._decoder = SoundDecoder(processes, options.max_audio_seconds)
        self._threads = ThreadPoolExecutor(processes, thread_name_prefix="process-sound")
        self.cache = ProcessedCache[_CachedSound](int(options.mm_processor_cache_gb * 2**30))

    async def load(self, source: MediaSource, *, owner: str = "") -> PreparedSound:
        """Load a sound.

        Raises `RequestError`, whose subclasses in `media.errors` say what is wrong with the file, and `QueueFullError`.
        """
        names = [name_of_uuid(owner, source.uuid, _OPTIONS)] if source.uuid is not None else []
        if source.url is None:
            found = self.cache.find(*names)
            if found is None:
                raise source.gone
            return found.sound
        # With a url, it says what the sound is, and not a uuid that may be of a former one.
        data = await self._fetcher.fetch(source.url)
        names.append(await asyncio.to_thread(name_of_file, data, _OPTIONS))
        found = self.cache.find(names[-1])
        if found is None:
            samples = await self._decoder.decode(data)
            found = await asyncio.wrap_future(self._threads.submit(self._process, samples, names))
        elif source.uuid is not None:
            self.cache.put(found, *names)
        return found.sound

    def load_now(self, source: MediaSource) -> PreparedSound:
        """Load a sound from a thread that may have an event loop of its own. Raises as `load`."""

        async def one() -> PreparedSound:
            return await self.load(source)

        return run_now(one)

    def close(self) -> None:
        """End processes and threads."""
        self._decoder.close()
        self._threads.shutdown(wait=True, cancel_futures=True)

    def _process(self, samples: Samples, names: list[bytes]) -> _CachedSound:
        digest = sha256(samples.data).digest()
        known = self.cache.get(digest, *names)
        if known is not None:
            return known
        found = _CachedSound(digest, self._windows.of(samples))
        for item in found.sound.items:
            assert item.features is not None
            # Several requests will read it.
            item.features.flags.writeable = False
        self.cache.put(found, *names)
        return found
