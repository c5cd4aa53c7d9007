"""What a small model of a family that sees is made of, for `tests/e2e/images/test_families.py`.

Each module of this folder that has `CASES`, a mapping of names to cases, adds them to the table.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from jaxllm.serving.media.image_processors.arithmetic import normalised
from jaxllm.serving.media.image_processors.registry import ConfiguredProcessor


def processed(processor: Any, text: str, images: list[Image.Image]) -> dict[str, Any]:
    """What transformers' processor makes of a prompt."""
    return dict(processor(text=text, images=images, return_tensors="pt"))


class PartsProcessor:
    """A processor of transformers whose constructor needs a processor of videos, and that torchvision."""

    def __init__(
        self, kind: type[Any] | str, images: Any, tokenizer: Any, texts: Mapping[str, str], **fields: Any
    ) -> None:
        """`fields` are of processor_config.json, `texts` those of tokens; the first is an image's marker.

        A class that only has its name here writes `replace_image_token` itself.
        """
        self.name = kind if isinstance(kind, str) else kind.__name__
        self.images, self.tokenizer, self.texts, self.fields = images, tokenizer, texts, fields
        self.whole: Any = self
        if not isinstance(kind, str):
            self.whole = object.__new__(kind)
            for name, value in {**texts, **fields, "image_processor": images}.items():
                setattr(self.whole, name, value)

    def __call__(self, text: str, images: list[Image.Image], return_tensors: str) -> dict[str, Any]:
        """What the whole processor would make of a prompt."""
        found = self.images(images, return_tensors=return_tensors)
        first, *others = text.split(next(iter(self.texts.values())))
        replaced = [self.whole.replace_image_token(found, number) for number in range(len(others))]
        joined = first + "".join(new + after for new, after in zip(replaced, others, strict=True))
        return {**found, **self.tokenizer(joined, return_tensors=return_tensors)}

    def save_pretrained(self, folder: Path) -> None:
        """As the whole processor's."""
        self.tokenizer.save_pretrained(folder)
        self.images.save_pretrained(folder)
        whole = {"processor_class": self.name, **self.fields}
        (folder / "processor_config.json").write_text(json.dumps(whole))


class OwnPixels:
    """Our image processor with its results as transformers' has them, where those need torchvision.

    `tests/serving/media/image_processors/test_tiles_of_torchvision.py` compares it with what they gave.
    """

    def __init__(self, **fields: Any) -> None:
        """`fields` are those of preprocessor_config.json."""
        self.fields = fields
        self.processor = ConfiguredProcessor.make(fields, "preprocessor_config.json").processor

    def __call__(self, images: list[Image.Image], return_tensors: str) -> dict[str, Any]:
        """Pixels of all crops; the grid of tiles, and the number of crops, of each image."""
        found = [self.processor.process(np.asarray(image)) for image in images]
        crops = [normalised(crop, self.processor.normalisation) for each in found for crop in each.crops]
        return {
            "pixel_values": torch.from_numpy(np.stack(crops).transpose(0, 3, 1, 2)),
            "aspect_ratios": [(each.rows, each.columns) for each in found],
            "num_patches": [len(each.crops) for each in found],
        }

    def save_pretrained(self, folder: Path) -> None:
        """Write the file."""
        (folder / "preprocessor_config.json").write_text(json.dumps(self.fields))


def only_pixels(processor: Any, text: str, images: list[Image.Image]) -> dict[str, Any]:
    """What a processor of these makes of a prompt, as far as a model takes it."""
    found = processed(processor, text, images)
    return {name: value for name, value in found.items() if name not in ("aspect_ratios", "num_patches")}


@dataclass(frozen=True)
class SeeingCase:
    """A model with random weights, and transformers' processor for it.

    `config` gets the number of tokens and the ids of the `tokens` that are added. `processor` gets the tokenizer.
    `sizes` are those of images, height and width; each has a prompt of its own, and one more prompt has the first few.
    """

    model: Callable[[Any], Any]
    config: Callable[[int, Mapping[str, int]], Any]
    processor: Callable[[Any], Any]
    tokens: tuple[str, ...] = ("<image>",)
    marker: str = "<image>"
    sizes: tuple[tuple[int, int], ...] = ((56, 56), (80, 120), (200, 60))
    inputs: Callable[[Any, str, list[Image.Image]], dict[str, Any]] = processed
    engine: Mapping[str, Any] = field(default_factory=dict)
    """Options of the engine besides those of the test."""
    renamed: tuple[Mapping[str, str], ...] = ()
    """Other beginnings of tensors' names, in place of those that transformers writes, for other checkpoints."""
    has_answers: bool = True
    """Whether answers are compared, too: not of variants that differ in their tower alone."""
    spread: float = 0.3
    """Of the random weights."""


LLAMA: Mapping[str, Any] = {
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512, "pad_token_id": 0,
    "bos_token_id": 1, "eos_token_id": 2, "tie_word_embeddings": False,
}  # fmt: skip
"""A small language model; the number of tokens is missing."""

VISION: Mapping[str, Any] = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4, "image_size": 56,
    "patch_size": 14,
}  # fmt: skip
"""A small vision model, which sees squares of 4 patches each way."""
