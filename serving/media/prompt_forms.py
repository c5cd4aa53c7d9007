"""What prompts have in place of an image, of models that take a token for each row of it."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from jaxllm.errors import RequestError
from jaxllm.requests.media import FIELD
from jaxllm.serving.media.arranged_rows import ArrangedRows
from jaxllm.serving.media.image_processors.base import ProcessedImage
from jaxllm.serving.media.image_processors.pixtral import Pixtral
from jaxllm.serving.media.text_runs import TextRun


@dataclass(frozen=True)
class TokenPerFeature:
    """A feature token per row, between two texts that may be empty: most models."""

    marker: str
    feature: str
    count: Callable[[ProcessedImage], int]
    before: str = ""
    after: str = ""
    arranged: Callable[[ProcessedImage], ArrangedRows | None] = lambda image: None

    def runs(self, image: ProcessedImage) -> tuple[TextRun, ...]:
        """What replaces the marker."""
        around = [TextRun(self.before)] if self.before else []
        behind = [TextRun(self.after)] if self.after else []
        return (*around, TextRun(self.feature, self.count(image), True, self.arranged(image)), *behind)


@dataclass(frozen=True, kw_only=True)
class PaliGemmaPrompt(TokenPerFeature):
    """PaliGemma's: the whole prompt has a form, which transformers' processor gives it and the tokenizer does not."""

    bos: str

    def framed(self, text: str, num_images: int) -> str:
        """A prompt with all that the model was trained with: images, the first token, text, and a new line.

        Images of a prompt that has no marker come first.
        """
        if self.marker not in text:
            text = self.marker * num_images + text
        end = text.rindex(self.marker) + len(self.marker)
        return f"{text[:end]}{self.bos}{text[end:]}\n"


NUMBERED: Final = re.compile(r"<\|image_([0-9]{1,6})\|>")


@dataclass(frozen=True, kw_only=True)
class NamedImages(TokenPerFeature):
    """Of models whose prompts have `names` of images, which are no tokens: markers take their place.

    Where names have numbers, these say which image, from 1 on, as often as they like; otherwise images come in order.
    Chat templates of these models have no place for images: markers are written before the text.

    If texts are `apart`, each text around images is encoded alone, with the special tokens that the tokenizer adds:
    that is how Phi-3-Vision's own code does it, and how the model was trained.
    """

    names: re.Pattern[str]
    apart: bool = False

    def ordered(self, text: str) -> tuple[str, tuple[int, ...]]:
        """The text with markers in place of names, and the numbers of the images that these stand for, from 0 on.

        A text that has a marker is returned as it is, with no numbers. Raises `RequestError` where numbers are missing.
        """
        found = list(self.names.finditer(text))
        if not found or self.marker in text:
            return text, ()
        has_numbers = self.names.groups > 0
        numbers = [int(name[1]) if has_numbers else place for place, name in enumerate(found, 1)]
        if sorted(set(numbers)) != list(range(1, len(set(numbers)) + 1)):
            raise RequestError(
                f"the prompt names the images {', '.join(map(str, numbers[:8]))}: they are counted from 1, and none "
                "may be left out",
                FIELD,
            )
        return self.names.sub(lambda _: self.marker, text), tuple(number - 1 for number in numbers)


@dataclass(frozen=True, kw_only=True)
class SlicedImages:
    """MiniCPM-V's: the number of the image in the prompt, the whole of it, and then its slices, a line per row."""

    marker: str
    lengths: Callable[[ProcessedImage], list[int]]
    """Features of each crop."""
    whole: tuple[str, str]
    slices: tuple[str, str]
    number: tuple[str, str] | None
    """Texts around each."""

    def runs(self, image: ProcessedImage) -> tuple[TextRun, ...]:
        """What replaces the marker, but for the number."""
        first, *others = self.lengths(image)
        found = [TextRun(self.whole[0]), TextRun(self.marker, first, True), TextRun(self.whole[1])]
        for place, length in enumerate(others):
            if place and place % image.columns == 0:
                found.append(TextRun("\n"))
            found += [TextRun(self.slices[0]), TextRun(self.marker, length, True), TextRun(self.slices[1])]
        return tuple(found)

    def before(self, place: int) -> str:
        """What comes before the image at this place in the prompt, from 0 on."""
        return "" if self.number is None else f"{self.number[0]}{place}{self.number[1]}"


@dataclass(frozen=True)
class PixtralRows:
    """A token per patch, and a break after each row; the last is an end."""

    processor: Pixtral
    marker: str
    row_break: str
    end: str

    def runs(self, image: ProcessedImage) -> tuple[TextRun, ...]:
        """What replaces the marker."""
        height, width = image.crops[0].shape[:2]
        rows, columns = height // self.processor.patch["height"], width // self.processor.patch["width"]
        row = TextRun(self.marker, columns, True)
        return (*((row, TextRun(self.row_break)) * (rows - 1)), row, TextRun(self.end))
