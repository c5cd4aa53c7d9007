"""Images of prompts: made ready for the engine, and text put in their places.

A prompt has a marker for each image, which its chat template or its author writes. The tokens that stand for the rows
of the image, and those around them, take the marker's place.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np

from jaxllm.config.engine_info import EngineInfo, ImageInfo
from jaxllm.errors import ConfigError, RequestError, quoted
from jaxllm.models.towers.patches import Pixels, cut_patches
from jaxllm.requests.media import FIELD, Arrangement, ImageCrop, MediaItem, PromptMedia
from jaxllm.serving.media.checkpoint import ImageModel
from jaxllm.serving.media.image_processors.base import ProcessedImage
from jaxllm.serving.media.loader import ImageLoader
from jaxllm.serving.media.placeholders import (
    PaliGemmaPrompt,
    Placeholder,
    TextRun,
    arrangement_of,
    features_of,
    text_of,
)
from jaxllm.serving.options.media import MediaOptions
from jaxllm.serving.text.control_tokens import ChatPrompt
from jaxllm.serving.text.given_images import PreparedImage
from jaxllm.serving.text.prompts import IntArray, ParsedPrompt
from jaxllm.serving.text.tokenizer import Tokenizer

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class PromptImages:
    """How a model takes images. Immutable, and shared by threads."""

    folder: Path
    model: ImageModel
    placeholder: Placeholder
    info: ImageInfo
    block_size: int
    tokenizer: Tokenizer
    most_images: int | None
    """Images in a prompt; None: whoever prepares them has the limit."""

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
        if options is not None and options.mm_processor_kwargs:
            model = ImageModel.read(folder, options.mm_processor_kwargs)
        most = None if options is None else options.max_images_per_prompt
        return cls(folder, model, model.placeholder(), info.images, info.block_size, tokenizer, most)

    def loader(self, options: MediaOptions) -> ImageLoader:
        """What loads images by their URLs. Raises `ConfigError` for options that name what is not there."""
        model = self.model
        if options.mm_processor_kwargs:
            model = ImageModel.read(self.folder, options.mm_processor_kwargs)
        limits = model.processor.limits(self.info.patch_size)
        return ImageLoader(model, options, limits, self.info.patch_size, most_patches=self.info.most_patches)

    def place(self, prompt: ParsedPrompt) -> None:
        """Process the images of a prompt, and write what stands for them. Raises `RequestError`."""
        count, most = len(prompt.images), self.most_images
        if most is not None and count > most:
            raise RequestError(f"{count} images: a prompt may have at most {most} (max_images_per_prompt)", FIELD)
        prepared = [
            each if isinstance(each, PreparedImage) else self.prepare(each, prompt.processor_kwargs)
            for each in prompt.images
        ]
        if prompt.token_ids is None:
            assert prompt.text is not None
            if isinstance(self.placeholder, PaliGemmaPrompt) and not isinstance(prompt.text, ChatPrompt):
                prompt.text, prompt.has_special_tokens = self.placeholder.framed(prompt.text, len(prepared)), True
            prompt.text = self.write(prompt.text, prepared)
        else:
            prompt.token_ids = self._in_tokens(np.asarray(prompt.token_ids), prepared)
        prompt.items = tuple(each.item for each in prepared)

    def media(self, prompt: ParsedPrompt, token_ids: IntArray) -> PromptMedia:
        """The images of a prompt, at their places among its tokens. Raises `RequestError`."""
        return PromptMedia.of(prompt.items, token_ids, self.info.token_id, self.block_size, self.info.spans)

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
        return PreparedImage(MediaItem.with_rows(crops, num_rows, arrangement), text_of(runs))

    def _crop(self, pixels: Pixels) -> ImageCrop:
        """A crop as the engine takes it. Raises `RequestError` for one of another size than the model's."""
        patch, side = self.info.patch_size, self.info.side
        height, width = pixels.shape[0] // patch, pixels.shape[1] // patch
        if side is not None and (height, width) != (side, side):
            raise RequestError(
                f"the model's files make crops of {height} x {width} patches, but its tower sees {side} x {side}", FIELD
            )
        if height * width > self.info.most_patches:
            raise RequestError(
                f"an image of {height} x {width} patches: the model sees at most {self.info.most_patches}", FIELD
            )
        return ImageCrop(cut_patches(pixels, patch, self.info.merge), height, width)

    def write(self, text: str, prepared: Sequence[PreparedImage]) -> str:
        """The text with what stands for the images. A `ChatPrompt`, whose own markers are meant, stays one.

        Raises `RequestError` where it has more markers than images, or fewer.
        """
        if not isinstance(text, ChatPrompt):
            return self._joined(text, self.placeholder.marker, [each.text for each in prepared])
        named = self.tokenizer.control.named_secretly
        texts = [named(each.text) for each in prepared]
        return text.escaped_as(self._joined(text.escaped.text, named(self.placeholder.marker), texts))

    def _joined(self, text: str, marker: str, texts: Sequence[str]) -> str:
        between = text.split(marker)
        self._check_count(len(between) - 1, len(texts))
        return "".join(part for pair in zip(between, [*texts, ""], strict=True) for part in pair)

    def _in_tokens(self, token_ids: IntArray, prepared: Sequence[PreparedImage]) -> IntArray:
        """The tokens with those that stand for the images, unless they are there already."""
        marker = self.tokenizer.token_ids[self.placeholder.marker]
        places = np.flatnonzero(token_ids == marker)
        if np.count_nonzero(token_ids == self.info.token_id) == sum(each.item.num_rows for each in prepared):
            return token_ids
        self._check_count(len(places), len(prepared))
        texts = self.tokenizer.encode([each.text for each in prepared], add_special_tokens=False)
        between = np.split(token_ids, np.repeat(places, 2) + np.tile([0, 1], len(places)))
        between[1::2] = [np.array(each, np.int64) for each in texts]
        return np.concatenate(between)

    def _check_count(self, num_markers: int, num_images: int) -> None:
        if num_markers != num_images:
            marker = quoted(self.placeholder.marker)
            raise RequestError(
                f"the prompt has {num_markers} places for images ({marker}), but {num_images} images were given", FIELD
            )


def _misfit(processed: ProcessedImage, num_rows: int, num_wanted: int) -> str:
    size = f"{processed.width} x {processed.height}"
    return f"an image of {size} pixels becomes {num_rows} rows, but the model's files would place {num_wanted}"
