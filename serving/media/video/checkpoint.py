"""What a checkpoint's files say of videos: how they are processed, and what stands for them in prompts."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from jaxllm.errors import ConfigError, RequestError, nearest, quoted
from jaxllm.serving.media.checkpoint import (
    IMAGES,
    PROCESSOR,
    TOKENIZER,
    ImageModel,
    class_name,
    read_object,
    token_texts,
)
from jaxllm.serving.media.image_processors.settings import Settings
from jaxllm.serving.media.placeholder import Model
from jaxllm.serving.media.video.frames import VideoFrames
from jaxllm.serving.media.video.processors import ProcessedVideo, VideoProcessor
from jaxllm.serving.media.video.registry import VIDEO_PROCESSORS
from jaxllm.serving.media.video.texts import VIDEO_TEXTS, VideoText

VIDEOS: Final = "video_preprocessor_config.json"


@dataclass(frozen=True)
class VideoModel:
    """How a checkpoint's model takes videos. Immutable, and shared by threads."""

    name: str
    fields: Mapping[str, Any]
    processor: VideoProcessor
    text: VideoText

    @classmethod
    def read(cls, folder: Path, images: ImageModel, kwargs: Mapping[str, Any] | None = None) -> Self | None:
        """Read the files of a folder; None for a model without videos. `kwargs` are --mm-processor-kwargs.

        Raises `ConfigError` for a malformed file, and whatever the processor does not support.
        """
        found = VIDEO_TEXTS.get(class_name(images.files))
        if found is None:
            return None
        usual, make_text = found
        nested, own = images.files[PROCESSOR].get("video_processor"), read_object(folder / VIDEOS)
        # As transformers looks for them.
        sources = ((PROCESSOR, nested), (VIDEOS, own), (IMAGES, images.files[IMAGES]))
        fields: Mapping[str, Any]
        source, fields = next(
            ((name, each) for name, each in sources if isinstance(each, Mapping) and each), (VIDEOS, {})
        )
        name = fields.get("video_processor_type", usual)
        if name not in VIDEO_PROCESSORS:
            hint = nearest(str(name), VIDEO_PROCESSORS)
            raise ConfigError(f"{source}: video_processor_type={quoted(name)} is not supported{hint}")
        given = {key: value for key, value in (kwargs or {}).items() if key in VIDEO_PROCESSORS[name].REQUEST_FIELDS}
        fields = _with(fields, given)
        settings = Settings(images.files[PROCESSOR], PROCESSOR)
        model = Model(settings, token_texts(images.files[TOKENIZER]), images.processor, images.configured.fields)
        return cls(name, fields, _read(name, Settings(fields, source)), make_text(model))

    def overridden(self, kwargs: Mapping[str, Any]) -> VideoProcessor:
        """The processor that a request's mm_processor_kwargs ask for. Raises `RequestError`."""
        allowed = VIDEO_PROCESSORS[self.name].REQUEST_FIELDS
        for field in kwargs:
            if field not in allowed:
                raise RequestError(
                    f"mm_processor_kwargs: {quoted(field)}: of videos, this model allows {', '.join(allowed)}",
                    "mm_processor_kwargs",
                )
        if not kwargs:
            return self.processor
        return _read(self.name, Settings(_with(self.fields, kwargs), "mm_processor_kwargs", RequestError))

    def process(self, video: VideoFrames, kwargs: Mapping[str, Any] | None) -> ProcessedVideo:
        """Process frames with a request's mm_processor_kwargs. Raises `RequestError`."""
        return self.overridden(kwargs or {}).process(video)


def _with(fields: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """The fields with others in their place. A size says both numbers of pixels, which there may be by these names."""
    kept = {key: value for key, value in fields.items() if given.get("size") is None or not key.endswith("_pixels")}
    return {**kept, **given}


def _read(name: str, settings: Settings) -> VideoProcessor:
    kind = VIDEO_PROCESSORS[name]
    found: VideoProcessor = kind.read(settings)
    settings.check_all_read(kind.REQUEST_FIELDS)
    return found
