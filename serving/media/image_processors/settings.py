"""`Settings`: the fields of an image processor's configuration, read one by one, with none left unread."""

import math
from collections.abc import Collection, Mapping
from typing import Any, Final

from PIL import Image

from jaxllm.errors import ConfigError, RequestError, nearest, quoted

HARMLESS: Final = frozenset(
    {
        # Names and code, and where transformers puts arrays: nothing that an image depends on.
        "image_processor_type", "processor_class", "feature_extractor_type", "auto_map", "_processor_class",
        "_valid_processor_keys", "return_tensors", "data_format", "input_data_format", "device", "disable_grouping",
        "return_row_col_info", "num_channels", "image_seq_length", "_name_or_path",
        # Of LLaVA's first code; transformers reads the grid instead.
        "aspect_ratio_setting",
        # Of videos.
        "video_sampling",
    }
)  # fmt: skip
"""Fields that change no byte of an image."""

MOST_SIDE: Final = 1 << 16
"""Pixels of a side, and other sizes, in a configuration."""

IMAGENET: Final = (0.5, 0.5, 0.5)
"""transformers' IMAGENET_STANDARD_MEAN and IMAGENET_STANDARD_STD."""
CLIP_MEAN: Final = (0.48145466, 0.4578275, 0.40821073)
CLIP_STD: Final = (0.26862954, 0.26130258, 0.27577711)


class Settings:
    """Reads fields with defaults, remembers which, and names the others. A missing or null field has its default.

    `error` is raised for a bad value: `ConfigError` for a checkpoint's file, `RequestError` for a request's fields.
    """

    def __init__(
        self,
        fields: Mapping[str, Any],
        source: str,
        error: type[ConfigError] | type[RequestError] = ConfigError,
    ) -> None:
        self.source = source
        self._fields = {name: value for name, value in fields.items() if value is not None}
        self._unread = set(self._fields) - HARMLESS
        self._error = error

    def fail(self, message: str) -> ConfigError | RequestError:
        """The error of a bad value, to be raised."""
        if self._error is RequestError:
            return RequestError(f"{self.source}: {message}", "mm_processor_kwargs")
        return self._error(f"{self.source}: {message}")

    def given(self, name: str) -> bool:
        """Whether a field has a value."""
        return name in self._fields

    def ignore(self, *names: str) -> None:
        """Accept fields that change nothing of one image, such as how several are padded to one size."""
        self._unread.difference_update(names)

    def flag(self, name: str, default: bool) -> bool:
        """A boolean."""
        value = self._take(name, default)
        if not isinstance(value, bool):
            raise self.fail(f"{name}={quoted(value)}: expected true or false")
        return value

    def require(self, name: str, value: bool, default: bool) -> None:
        """Check a boolean with only one supported value."""
        if self.flag(name, default) is not value:
            raise self.fail(f"{name}={not value} is not supported for this image processor")

    def integer(self, name: str, default: int, low: int = 1, high: int = MOST_SIDE) -> int:
        """An integer within bounds."""
        return self._integer(name, self._take(name, default), low, high)

    def section(self, name: str) -> "Settings | None":
        """A mapping of fields, which may have others too; None where it is missing."""
        value = self._take(name, None)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise self.fail(f"{name}={quoted(value)}: expected a mapping")
        return Settings(value, f"{self.source}: {name}", self._error)

    def number(self, name: str, default: float, low: float, high: float) -> float:
        """A finite number within bounds."""
        return self._number(name, self._take(name, default), low, high)

    def text(self, name: str, default: str) -> str:
        """A text."""
        value = self._take(name, default)
        if not isinstance(value, str):
            raise self.fail(f"{name}={quoted(value)}: expected a text")
        return value

    def channels(self, name: str, default: tuple[float, ...]) -> tuple[float, ...]:
        """A number for each of the three channels; one number stands for all."""
        value = self._take(name, default)
        values = tuple(value) if isinstance(value, (list, tuple)) else (value,) * 3
        if len(values) != 3:
            raise self.fail(f"{name} has {len(values)} values: expected one for each of 3 channels")
        return tuple(self._number(name, each, -1e6, 1e6) for each in values)

    def resample(self, default: Image.Resampling) -> Image.Resampling:
        """The filter for resizing, in Pillow's numbers."""
        return Image.Resampling(self.integer("resample", int(default), 0, 5))

    def edges(
        self, name: str, default: Mapping[str, int], allowed: Collection[frozenset[str]], *, square: bool = True
    ) -> dict[str, int]:
        """A size: a mapping with one of the `allowed` sets of keys, [height, width], or a number.

        A number is height and width where `square`, unless default_to_square says otherwise, and else the shortest
        edge.
        """
        value = self._take(name, default)
        if name == "size":
            square = self.flag("default_to_square", square)
        if isinstance(value, int) and not isinstance(value, bool):
            value = {"height": value, "width": value} if square else {"shortest_edge": value}
        elif isinstance(value, (list, tuple)) and len(value) == 2:
            value = {"height": value[0], "width": value[1]}
        if not isinstance(value, Mapping):
            raise self.fail(f"{name}={quoted(value)}: expected a mapping of sizes in pixels")
        found = {str(key): each for key, each in value.items() if each is not None}
        if frozenset(found) not in allowed:
            choices = " or ".join(" and ".join(sorted(keys)) for keys in allowed)
            raise self.fail(f"{name} has {', '.join(sorted(found)) or 'no keys'}: expected {choices}")
        # A size of two bounds may count pixels, and not those of a side.
        most = MOST_SIDE**2 if frozenset(found) in (PIXELS, PIXEL_COUNTS) else MOST_SIDE
        return {key: self._integer(f"{name}.{key}", each, 1, most) for key, each in found.items()}

    def pairs(self, name: str, default: tuple[tuple[int, int], ...], most: int = 256) -> tuple[tuple[int, int], ...]:
        """A list of [height, width], at most `most` of them."""
        value = self._take(name, default)
        if not isinstance(value, (list, tuple)) or not 1 <= len(value) <= most:
            raise self.fail(f"{name}: expected a list of 1 to {most} pairs [height, width]")
        for each in value:
            if not isinstance(each, (list, tuple)) or len(each) != 2:
                raise self.fail(f"{name} has {quoted(each)}: expected a pair [height, width]")
        sides = [tuple(self._integer(name, side, 1, MOST_SIDE) for side in pair) for pair in value]
        return tuple((height, width) for height, width in sides)

    def check_all_read(self, known: Collection[str]) -> None:
        """Raise for fields that nobody has read, whose effect is thus missing."""
        if self._unread:
            names = ", ".join(f"{name}={quoted(self._fields[name])}" for name in sorted(self._unread)[:8])
            hint = nearest(min(self._unread), known) if len(self._unread) == 1 else ""
            raise self.fail(f"not supported: {names}{hint}")

    def _take(self, name: str, default: Any) -> Any:
        self._unread.discard(name)
        return self._fields.get(name, default)

    def _integer(self, name: str, value: Any, low: int, high: int) -> int:
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise self.fail(f"{name}={quoted(value)}: expected an integer from {low} to {high}")
        return value

    def _number(self, name: str, value: Any, low: float, high: float) -> float:
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not is_number or not math.isfinite(value) or not low <= value <= high:
            raise self.fail(f"{name}={quoted(value)}: expected a number from {low:g} to {high:g}")
        return float(value)


PIXELS: Final = frozenset({"shortest_edge", "longest_edge"})
"""Keys of the size of processors that count an image's pixels, or bound both edges."""
PIXEL_COUNTS: Final = frozenset({"min_pixels", "max_pixels"})
"""The same, as older checkpoints say it."""
SQUARE: Final = frozenset({"height", "width"})
SHORTEST: Final = frozenset({"shortest_edge"})
LONGEST: Final = frozenset({"longest_edge"})
