"""Images, videos and sounds of conversations in scripts: loaded, and made ready for the engine."""

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np

from jaxllm.errors import RequestError
from jaxllm.serving.media.audio.loader import SoundLoader
from jaxllm.serving.media.loader import ImageLoader
from jaxllm.serving.media.pictures import pixels_of
from jaxllm.serving.media.source import MediaSource
from jaxllm.serving.media.video.frames import VideoFrames, videos_of
from jaxllm.serving.media.video.loader import VideoLoader
from jaxllm.serving.options.media import MediaOptions
from jaxllm.serving.pooling.inputs import PoolingInputs
from jaxllm.serving.text.input_processor import InputProcessor
from jaxllm.serving.text.media_parts import Loaders, take_media
from jaxllm.serving.text.messages import AUDIO, IMAGE, VIDEO, Conversation, Message
from jaxllm.serving.text.prompt_images import NO_VIDEOS, PromptImages
from jaxllm.serving.text.prompt_sound import GivenSound, window_of
from jaxllm.serving.text.sound_samples import PromptSound
from jaxllm.serving.text.stand_ins import Written


class ChatMedia:
    """The media that the model takes. What loads them by URLs is made when it is first asked for."""

    def __init__(self, inputs: InputProcessor | PoolingInputs, options: MediaOptions) -> None:
        self._inputs, self._options = inputs, options

    @property
    def media(self) -> frozenset[str]:
        """Those that conversations may have."""
        sound = self._inputs.sound
        hears = sound is not None and sound.marker is not None
        sees = self._inputs.images is not None
        return frozenset(name for name, taken in ((IMAGE, sees), (VIDEO, sees), (AUDIO, hears)) if taken)

    @property
    def written(self) -> Written:
        """What is written where a chat template has no place, see `StandIns`."""
        sound, images = self._inputs.sound, self._inputs.images
        of_sound = {} if sound is None or sound.marker is None else {AUDIO: sound.written}
        return of_sound if images is None else {**of_sound, **images.written}

    def take(
        self, messages: Conversation, kwargs: Mapping[str, Any] | None
    ) -> tuple[list[Message], dict[str, list[Any]]]:
        """Messages with parts that stand for their media, and these, in order. Raises `RequestError`."""
        loaders: dict[str, Loaders] = {}
        images, sound = self._inputs.images, self._inputs.sound
        if IMAGE in self.media:
            assert images is not None
            loaders |= {IMAGE: self._of_images(images, kwargs), VIDEO: self._of_videos(images, kwargs)}
        if AUDIO in self.media:
            assert sound is not None
            loaders[AUDIO] = Loaders(self._sound_by_url, lambda where, given: _prepared(sound, where, given))
        return take_media(messages, loaders)

    def _of_images(self, images: PromptImages, kwargs: Mapping[str, Any] | None) -> Loaders:
        def by_url(where: str, url: str) -> Any:
            (loaded,) = self._images.load_now([MediaSource(url)], kwargs)
            return images.prepared(loaded.image, loaded.runs)

        return Loaders(by_url, lambda where, given: pixels_of(given, where))

    def _of_videos(self, images: PromptImages, kwargs: Mapping[str, Any] | None) -> Loaders:
        def by_url(where: str, url: str) -> Any:
            if self._videos is None or images.videos is None:
                raise RequestError(f"{where}: {NO_VIDEOS}", where)
            return images.videos.prepared(self._videos.load_now(MediaSource(url, subject=VIDEO), kwargs))

        return Loaders(by_url, _one_video)

    def _sound_by_url(self, where: str, url: str) -> Any:
        if self._sounds is None:
            raise RequestError(f"{where}: the model's files do not say how sound is processed", where)
        return self._sounds.load_now(MediaSource(url, subject="sound"))

    @cached_property
    def _images(self) -> ImageLoader:
        assert self._inputs.images is not None
        return self._inputs.images.loader(self._options)

    @cached_property
    def _videos(self) -> VideoLoader | None:
        assert self._inputs.images is not None
        return self._inputs.images.video_loader(self._options, self._images.cache)

    @cached_property
    def _sounds(self) -> SoundLoader | None:
        assert self._inputs.sound is not None
        return self._inputs.sound.loader(self._options)

    def forget(self) -> None:
        """Drop what was processed: files are decoded again."""
        # Videos are in the cache of images.
        for name in ("_images", "_sounds"):
            made = self.__dict__.get(name)
            if made is not None:
                made.cache.clear()

    def close(self) -> None:
        """End the processes that decode."""
        for name in ("_images", "_videos", "_sounds"):
            made = self.__dict__.get(name)
            if made is not None:
                made.close()


def _one_video(where: str, given: Any) -> VideoFrames:
    """A video that is given itself. Raises `RequestError`."""
    found = videos_of(given, where)
    if len(found) != 1:
        raise RequestError(f"{where}: expected one video, got {len(found)}", where)
    return found[0]


def _prepared(sound: PromptSound, where: str, given: Any) -> Any:
    """A sound that was given as an object, such as (samples, samples per second)."""
    if isinstance(given, (list, tuple)) and len(given) == 2 and isinstance(given[0], list):
        given = (np.asarray(given[0], np.float32), given[1])
    found: GivenSound = window_of(given)
    try:
        return sound.prepare(found)
    except RequestError as error:
        raise RequestError(f"{where}: {error}", where) from None
