"""What a prompt has in place of an image of several tiles: their features, and texts that say where each was.

Each class writes what transformers' processor of a model writes.
"""

from collections.abc import Callable
from dataclasses import dataclass

from jaxllm.serving.media.image_processors.base import ProcessedImage
from jaxllm.serving.media.text_runs import TextRun


@dataclass(frozen=True)
class Idefics3Tiles:
    """Every tile with its row and column, a line per row, and the whole image at last."""

    length: int
    fake: str
    marker: str
    whole: str

    def runs(self, image: ProcessedImage) -> tuple[TextRun, ...]:
        """What replaces the marker."""
        features = TextRun(self.marker, self.length, True)
        found: list[TextRun] = []
        for row in range(1, image.rows + 1):
            for column in range(1, image.columns + 1):
                found += [TextRun(self.fake), TextRun(f"<row_{row}_col_{column}>"), features]
            found.append(TextRun("\n"))
        if found:
            found.append(TextRun("\n"))
        return (*found, TextRun(self.fake), TextRun(self.whole), features, TextRun(self.fake))


@dataclass(frozen=True)
class Idefics2Pieces:
    """The features of each piece between fake tokens; neighbours share one."""

    length: int
    fake: str
    marker: str

    def runs(self, image: ProcessedImage) -> tuple[TextRun, ...]:
        """What replaces the marker. Where two images meet, transformers leaves one fake token of two."""
        piece = (TextRun(self.fake), TextRun(self.marker, self.length, True))
        return (*(piece * len(image.crops)), TextRun(self.fake))


@dataclass(frozen=True)
class Gemma3Crops:
    """A block of features for the image and for each crop, with words around the crops."""

    length: int
    marker: str
    feature: str
    end: str

    def runs(self, image: ProcessedImage) -> tuple[TextRun, ...]:
        """What replaces the marker."""
        block = (
            TextRun("\n\n"), TextRun(self.marker), TextRun(self.feature, self.length, True), TextRun(self.end),
            TextRun("\n\n"),
        )  # fmt: skip
        crops = len(image.crops) - 1
        if not crops:
            return block
        found = [TextRun("Here is the original image "), *block]
        found.append(TextRun(" and here are some crops to help you see better "))
        for number in range(crops):
            found += [TextRun(" "), *block] if number else block
        return tuple(found)


@dataclass(frozen=True)
class AyaTiles:
    """Every tile with its number, and the whole image at last, between a start and an end."""

    length: int
    marker: str
    feature: str
    start: str
    end: str
    tile: str
    whole: str

    def runs(self, image: ProcessedImage) -> tuple[TextRun, ...]:
        """What replaces the marker."""
        features = TextRun(self.feature, self.length, True)
        found = [TextRun(self.start)]
        for number in range(1, len(image.crops)):
            found += [TextRun(f"{self.tile}_{number}"), features]
        return (*found, TextRun(self.whole), features, TextRun(self.end))


@dataclass(frozen=True)
class Cohere2Tiles:
    """Every tile with a break after it, between a start and an end."""

    length: int
    marker: str
    start: str
    tile_break: str
    end: str

    def runs(self, image: ProcessedImage) -> tuple[TextRun, ...]:
        """What replaces the marker."""
        tile = (TextRun(self.marker, self.length, True), TextRun(self.tile_break))
        return (TextRun(self.start), *(tile * len(image.crops)), TextRun(self.end))


@dataclass(frozen=True)
class LFM2Tiles:
    """Every tile with its row and column, and the whole image at last, between a start and an end."""

    marker: str
    lengths: Callable[[ProcessedImage], list[int]]
    """Features of each crop."""
    start: str
    end: str
    whole: str
    is_marked: bool
    """Whether there is anything but features."""

    def runs(self, image: ProcessedImage) -> tuple[TextRun, ...]:
        """What replaces the marker."""
        places = [f"<|img_row_{row}_col_{column}|>" for row in range(1, image.rows + 1)
                  for column in range(1, image.columns + 1)]  # fmt: skip
        lengths = self.lengths(image)
        before = [*places, self.whole][: len(lengths)] if len(lengths) > 1 else [""]
        found = [TextRun(self.start)]
        for text, length in zip(before, lengths, strict=True):
            found += [TextRun(text), TextRun(self.marker, length, True)]
        found.append(TextRun(self.end))
        return tuple(run for run in found if run.is_feature or (self.is_marked and run.text))


@dataclass(frozen=True)
class Llama4Tiles:
    """Tiles with separators between columns and after rows, and the whole image at last, between a start and an end."""

    marker: str
    length: Callable[[ProcessedImage], int]

    def runs(self, image: ProcessedImage) -> tuple[TextRun, ...]:
        """What replaces the marker."""
        features = TextRun("<|patch|>", self.length(image), True)
        row = [features, *[TextRun("<|tile_x_separator|>"), features] * (image.columns - 1)]
        grid = [*row, TextRun("<|tile_y_separator|>")] * image.rows if len(image.crops) > 1 else []
        return (TextRun("<|image_start|>"), *grid, TextRun("<|image|>"), features, TextRun("<|image_end|>"))
