"""Images and videos of prompts: made ready for the engine, and text put in their places.

A prompt has a marker for each image, which its chat template or its author writes. The tokens that stand for the rows
of the image, and those around them, take the marker's place.
"""

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np

from jaxllm.config.engine_info import EngineInfo, ImageInfo
from jaxllm.errors import ConfigError, RequestError, quoted
from jaxllm.models.towers.patches import Pixels, cut_patches
from jaxllm.requests.media import FIELD, Arrangement, ImageCrop, MediaItem, PromptMedia
from jaxllm.serving.media.cache import CachedImage, ProcessedCache
from jaxllm.serving.media.checkpoint import ImageModel
from jaxllm.serving.media.image_processors.base import ProcessedImage
from jaxllm.serving.media.loader import ImageLoader
from jaxllm.serving.media.placeholder import Placeholder
from jaxllm.serving.media.prompt_forms import NamedImages, PaliGemmaPrompt, SlicedImages
from jaxllm.serving.media.text_runs import TextRun, arrangement_of, features_of, text_of
from jaxllm.serving.media.video.checkpoint import VideoModel
from jaxllm.serving.media.video.frames import VideoFrames
from jaxllm.serving.media.video.loader import VideoLoader
from jaxllm.serving.options.media import MediaOptions
from jaxllm.serving.text.control_tokens import ChatPrompt
from jaxllm.serving.text.given_images import PreparedImage, medium_of
from jaxllm.serving.text.media_counts import check_count, most_of
from jaxllm.serving.text.messages import IMAGE, MEDIA, VIDEO
from jaxllm.serving.text.prompt_videos import PromptVideos
from jaxllm.serving.text.prompts import IntArray, ParsedPrompt
from jaxllm.serving.text.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

NO_VIDEOS = "this model takes no videos"


@dataclass(frozen=True)
class PromptImages:
    """How a model takes images. Immutable, and shared by threads."""

    folder: Path
    model: ImageModel
    placeholder: Placeholder
    info: ImageInfo
    block_size: int
    tokenizer: Tokenizer
    most: Mapping[str, int] | None
    """Images and videos in a prompt, by the medium; None: whoever prepares them has the limits."""
    videos: PromptVideos | None = None
    """How it takes videos, if it does."""

    @classmethod
    def of(cls, info: EngineInfo, tokenizer: Tokenizer | None, options: MediaOptions | None) -> Self | None:
        """From the files of the model, or None where it takes no images, with a warning where its files forbid it.

        Without `options`, whoever asks for a `loader` has them. Raises `ConfigError` for wrong mm_processor_kwargs.
        """
        if info.images is None or tokenizer is None:
            return None
        folder = Path(info.model_folder)
        try:
            model = ImageModel.read(folder)
            placeholder = model.placeholder()
        except ConfigError as error:
            logger.warning("images are refused: %s", error)
            return None
        if placeholder.marker not in tokenizer.token_ids:
            logger.warning("images are refused: the tokenizer has no token %s", quoted(placeholder.marker))
            return None
        if info.images.token_id < 0:
            logger.warning("images are refused: no file says which token stands for them; add tokenizer_config.json")
            return None
        if options is not None and options.mm_processor_kwargs:
            model = ImageModel.read(folder, options.mm_processor_kwargs)
        most = None if options is None else most_of(options)
        kwargs = None if options is None else options.mm_processor_kwargs
        videos = PromptVideos.of(folder, model, info.images, tokenizer, kwargs)
        return cls(folder, model, model.placeholder(), info.images, info.block_size, tokenizer, most, videos)

    def loader(self, options: MediaOptions) -> ImageLoader:
        """What loads images by their URLs. Raises `ConfigError` for options that name what is not there."""
        model = self.model
        if options.mm_processor_kwargs:
            model = ImageModel.read(self.folder, options.mm_processor_kwargs)
        limits = model.processor.limits(self.info.patch_size)
        return ImageLoader(model, options, limits, self.info.patch_size, most_patches=self.info.most_patches)

    def video_loader(self, options: MediaOptions, cache: ProcessedCache[CachedImage]) -> VideoLoader | None:
        """What loads videos by their URLs, if the model takes any. Raises `ConfigError`."""
        if self.videos is None:
            return None
        kwargs = options.mm_processor_kwargs
        model = VideoModel.read(self.folder, ImageModel.read(self.folder, kwargs), kwargs)
        assert model is not None
        return VideoLoader(model, options, cache, PromptVideos(model, self.info).check)

    def place(self, prompt: ParsedPrompt) -> None:
        """Process the images and videos of a prompt, and write what stands for them. Raises `RequestError`."""
        if self.most is not None:
            check_count(self.media_of(prompt), self.most)
        prepared = [self.prepare_any(each, prompt.processor_kwargs) for each in prompt.images]
        if prompt.token_ids is None:
            prepared = self._by_name(prompt, prepared)
        prompt.items = tuple(item for each in self._in_order(prompt, prepared) for item in each.items)
        if prompt.token_ids is None:
            assert prompt.text is not None
            if isinstance(self.placeholder, PaliGemmaPrompt) and not isinstance(prompt.text, ChatPrompt):
                prompt.text, prompt.has_special_tokens = self.placeholder.framed(prompt.text, len(prepared)), True
            prompt.text = self.write(prompt.text, prepared)
        else:
            prompt.token_ids = self._in_tokens(np.asarray(prompt.token_ids), prepared)

    def _by_name(self, prompt: ParsedPrompt, prepared: list[PreparedImage]) -> list[PreparedImage]:
        """The media as a text names them; the names become markers. Raises `RequestError`."""
        placeholder, text = self.placeholder, prompt.text
        assert text is not None
        if isinstance(placeholder, NamedImages):
            prompt.has_special_tokens |= placeholder.apart
        if isinstance(text, ChatPrompt):
            return prepared
        if self.videos is not None and VIDEO in self.media_of(prompt):
            prompt.text = self.videos.model.text.with_markers(text)
        if not isinstance(placeholder, NamedImages):
            return prepared
        prompt.text, numbers = placeholder.ordered(text)
        if numbers and len(set(numbers)) != len(prepared):
            raise RequestError(
                f"the prompt names {len(set(numbers))} images, but {len(prepared)} images were given", FIELD
            )
        if self.most is not None:
            # A name of a few bytes becomes thousands of tokens, each time.
            check_count([IMAGE] * len(numbers), self.most)
        return [prepared[number] for number in numbers] if numbers else prepared

    @property
    def written(self) -> dict[str, Callable[[int], str]]:
        """What a prompt has for a first, second, ... medium where a chat template has no place; others need one."""
        named = {IMAGE} if isinstance(self.placeholder, NamedImages) else set()
        if self.videos is not None and self.videos.model.text.name is not None:
            named.add(VIDEO)
        return {medium: _always(marker) for medium, marker in self._markers().items() if medium in named}

    def media(self, prompt: ParsedPrompt, token_ids: IntArray) -> PromptMedia:
        """The images of a prompt, at their places among its tokens. Raises `RequestError`."""
        return PromptMedia.of(prompt.items, token_ids, self.info.token_ids, self.block_size, self.info.spans)

    def media_of(self, prompt: ParsedPrompt) -> list[str]:
        """The medium of each of a prompt's images and videos."""
        return [medium_of(each) for each in prompt.images]

    def prepare_any(
        self, given: Pixels | VideoFrames | PreparedImage, kwargs: Mapping[str, Any] | None = None
    ) -> PreparedImage:
        """Process an image or a video that is not processed yet. Raises `RequestError`."""
        if isinstance(given, PreparedImage):
            return given
        if isinstance(given, VideoFrames):
            if self.videos is None:
                raise RequestError(NO_VIDEOS, FIELD)
            return self.videos.prepare(given, kwargs)
        return self.prepare(given, kwargs)

    def prepare(self, pixels: Pixels, kwargs: Mapping[str, Any] | None = None) -> PreparedImage:
        """Process an image, uint8 [height, width, 3], with a request's mm_processor_kwargs.

        Raises `RequestError` for one that the model cannot take, and for fields that requests may not set.
        """
        size = self.info.patch_size
        configured = self.model.configured.overridden(kwargs or {}, self.model.processor.limits(size), size)
        configured.check_size(pixels, size, self.info.most_patches)
        processed = configured.process(pixels)
        return self.prepared(processed, self.model.placeholder(configured).runs(processed))

    def prepared(self, processed: ProcessedImage, runs: tuple[TextRun, ...]) -> PreparedImage:
        """The image as the engine takes it, with `runs` in its place. Raises `RequestError`."""
        crops = tuple(self._crop(crop) for crop in processed.crops)
        num_rows = sum(self.info.rows_of(len(crop.patches)) for crop in crops)
        arranged = arrangement_of(runs)
        num_wanted = features_of(runs) if arranged is None else arranged.num_rows
        if num_rows != num_wanted:
            raise RequestError(_misfit(processed, num_rows, num_wanted), FIELD)
        arrangement = None if arranged is None else Arrangement.of(arranged.rows, arranged.weights)
        return PreparedImage((MediaItem.with_rows(crops, num_rows, arrangement),), text_of(runs))

    def _crop(self, pixels: Pixels) -> ImageCrop:
        """A crop as the engine takes it. Raises `RequestError` for one of another size than the model's."""
        patch, side = self.info.patch_size, self.info.side
        height, width = pixels.shape[0] // patch, pixels.shape[1] // patch
        if side is not None and (height, width) not in ((side, side), (self.info.tile_side,) * 2):
            raise RequestError(
                f"the model's files make crops of {height} x {width} patches, but its tower sees {side} x {side}", FIELD
            )
        if height * width > self.info.most_patches:
            raise RequestError(
                f"an image of {height} x {width} patches: the model sees at most {self.info.most_patches}", FIELD
            )
        return ImageCrop(cut_patches(pixels, patch, self.info.merge, self.info.fill), height, width)

    def write(self, text: str, prepared: Sequence[PreparedImage]) -> str:
        """The text with what stands for the images and videos. A `ChatPrompt`, whose own markers are meant, stays one.

        Raises `RequestError` where it has more markers than images, or fewer.
        """
        if not isinstance(text, ChatPrompt):
            return self._joined(text, prepared, lambda each: each)
        return text.escaped_as(self._joined(text.escaped.text, prepared, self.tokenizer.control.named_secretly))

    def _markers(self) -> dict[str, str]:
        """The text that stands for a medium, by the medium."""
        own = {IMAGE: self.placeholder.marker}
        return own if self.videos is None else {**own, VIDEO: self.videos.model.text.marker}

    def _marker_ids(self) -> dict[int, str]:
        """Media, by the tokens that stand for them, of those that one token stands for."""
        known = self.tokenizer.token_ids
        return {known[marker]: medium for medium, marker in self._markers().items() if marker in known}

    def _joined(self, text: str, prepared: Sequence[PreparedImage], named: Callable[[str], str]) -> str:
        media = {named(marker): medium for medium, marker in self._markers().items()}
        parts = re.split("(" + "|".join(map(re.escape, media)) + ")", text)
        ordered = self._ordered([media[part] for part in parts[1::2]], prepared)
        parts[1::2] = [named(text) for text in self._texts(ordered)]
        if isinstance(self.placeholder, NamedImages) and self.placeholder.apart:
            parts[::2] = [named(self._beginning) + part for part in parts[::2]]
        return "".join(parts)

    @cached_property
    def _beginning(self) -> str:
        """The special tokens that the tokenizer puts before a text, as text."""
        (ids,) = self.tokenizer.encode([""])
        return "".join(map(self.tokenizer.token_text, ids))

    def _texts(self, ordered: Sequence[PreparedImage]) -> list[str]:
        """What stands for each medium, in the order of the prompt."""
        if not isinstance(self.placeholder, SlicedImages):
            return [each.text for each in ordered]
        return [self.placeholder.before(place) + each.text for place, each in enumerate(ordered)]

    def _in_order(self, prompt: ParsedPrompt, prepared: Sequence[PreparedImage]) -> Sequence[PreparedImage]:
        """Images and videos as the prompt has them; where it has one kind alone, as they are given."""
        if len({each.medium for each in prepared}) < 2:
            return prepared
        markers = self._markers()
        if prompt.token_ids is not None:
            ids = self._marker_ids()
            found = [ids[token] for token in np.asarray(prompt.token_ids).tolist() if token in ids]
        else:
            text = prompt.text or ""
            if isinstance(text, ChatPrompt):
                named = self.tokenizer.control.named_secretly
                text, markers = text.escaped.text, {medium: named(marker) for medium, marker in markers.items()}
            media = {marker: medium for medium, marker in markers.items()}
            found = [media[each] for each in re.findall("|".join(map(re.escape, media)), text)]
        return self._ordered(found, prepared)

    def _ordered(self, media: Sequence[str], prepared: Sequence[PreparedImage]) -> list[PreparedImage]:
        """The images and videos for places of these media, each kind in order. Raises `RequestError`."""
        queues = {medium: [each for each in prepared if each.medium == medium] for medium in MEDIA}
        for medium, marker in {**dict.fromkeys(MEDIA, ""), **self._markers()}.items():
            num_markers, count = media.count(medium), len(queues[medium])
            if num_markers != count:
                raise RequestError(
                    f"the prompt has {num_markers} places for {medium}s ({quoted(marker)}), but {count} {medium}s were "
                    "given",
                    FIELD,
                )
        ordered = {medium: iter(queue) for medium, queue in queues.items()}
        return [next(ordered[medium]) for medium in media]

    def _in_tokens(self, token_ids: IntArray, prepared: Sequence[PreparedImage]) -> IntArray:
        """The tokens with those that stand for the images, unless they are there already."""
        if np.count_nonzero(np.isin(token_ids, self.info.token_ids)) == sum(each.num_rows for each in prepared):
            return token_ids
        ids = self._marker_ids()
        places = np.flatnonzero(np.isin(token_ids, list(ids)))
        ordered = self._ordered([ids[token] for token in token_ids[places].tolist()], prepared)
        texts = self.tokenizer.encode(self._texts(ordered), add_special_tokens=False)
        between = np.split(token_ids, np.repeat(places, 2) + np.tile([0, 1], len(places)))
        between[1::2] = [np.array(each, np.int64) for each in texts]
        return np.concatenate(between)


def _always(text: str) -> Callable[[int], str]:
    return lambda number: text


def _misfit(processed: ProcessedImage, num_rows: int, num_wanted: int) -> str:
    size = f"{processed.width} x {processed.height}"
    return f"an image of {size} pixels becomes {num_rows} rows, but the model's files would place {num_wanted}"
