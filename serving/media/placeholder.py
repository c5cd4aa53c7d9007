"""What prompts have in place of images: the form of what says it, and what that is made of."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from jaxllm.errors import quoted
from jaxllm.serving.media.image_processors.base import ImageProcessor, ProcessedImage
from jaxllm.serving.media.image_processors.settings import Settings
from jaxllm.serving.media.text_runs import TextRun

Kind = TypeVar("Kind")


class Placeholder(Protocol):
    """How a model's prompts show images."""

    @property
    def marker(self) -> str:
        """The text that stands for an image in a rendered chat template, and is replaced."""
        ...

    def runs(self, image: ProcessedImage) -> tuple[TextRun, ...]:
        """What replaces the marker of a processed image."""
        ...


@dataclass(frozen=True)
class Model:
    """What a placeholder is made of."""

    settings: Settings
    """Of processor_config.json."""
    tokens: Mapping[str, str]
    """Of the tokenizer, by the names that its configuration gives them."""
    processor: ImageProcessor
    image_fields: Mapping[str, Any]
    """Of the image processor."""

    def image_processor(self, kind: type[Kind]) -> Kind:
        """The image processor, which must be of this kind. Raises the error of the settings."""
        if not isinstance(self.processor, kind):
            found = quoted(self.image_fields.get("image_processor_type"))
            raise self.settings.fail(f"its processor_class does not go with image_processor_type={found}")
        return self.processor

    def token(self, name: str, default: str | None = None) -> str:
        """The text of a token. Raises the error of the settings where it is missing."""
        found = self.tokens.get(name, default)
        if found is None:
            raise self.settings.fail(f"tokenizer_config.json has no {name}")
        return found
