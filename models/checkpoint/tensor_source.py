"""Where the tensor of a module is in a checkpoint, if it is not a tensor of its own."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isqrt, prod
from typing import Protocol

import numpy as np

Shape = tuple[int, ...]


class TensorTransform(Protocol):
    """How a module's tensor comes out of one of the checkpoint. What is taken may share its memory."""

    def shape_of(self, wanted: Shape) -> Shape:
        """Shape of the checkpoint's tensor, from that of the module's."""
        ...

    def __call__(self, tensor: np.ndarray, wanted: Shape) -> np.ndarray:
        """The module's tensor, which has the shape `wanted`."""
        ...


@dataclass(frozen=True)
class Whole:
    """The tensor itself."""

    def shape_of(self, wanted: Shape) -> Shape:
        """The same."""
        return wanted

    def __call__(self, tensor: np.ndarray, wanted: Shape) -> np.ndarray:
        """The same."""
        return tensor


@dataclass(frozen=True)
class Fused:
    """Part number `index` of every one of `blocks` blocks of rows, whose parts have `sizes` rows."""

    sizes: Sequence[int]
    index: int
    blocks: int = 1

    def shape_of(self, wanted: Shape) -> Shape:
        """All rows of all parts."""
        return (self.blocks * sum(self.sizes), *wanted[1:])

    def __call__(self, tensor: np.ndarray, wanted: Shape) -> np.ndarray:
        """A view where there is one block."""
        start = sum(self.sizes[: self.index])
        blocks = tensor.reshape(self.blocks, -1, *tensor.shape[1:])
        return blocks[:, start : start + self.sizes[self.index]].reshape(wanted)


@dataclass(frozen=True)
class Transposed:
    """A matrix stored as (in, out), as GPT-2 has them; `then` takes from it what is wanted. Biases are as elsewhere."""

    then: TensorTransform = Whole()

    def shape_of(self, wanted: Shape) -> Shape:
        """Rows and columns exchanged."""
        return self.then.shape_of(wanted)[::-1]

    def __call__(self, tensor: np.ndarray, wanted: Shape) -> np.ndarray:
        """A copy where columns become rows."""
        return np.ascontiguousarray(self.then(tensor.T, wanted))


@dataclass(frozen=True)
class Interleaved:
    """Every row number `index` of `count`."""

    count: int
    index: int

    def shape_of(self, wanted: Shape) -> Shape:
        """All rows."""
        return (self.count * wanted[0], *wanted[1:])

    def __call__(self, tensor: np.ndarray, wanted: Shape) -> np.ndarray:
        """A view."""
        return tensor[self.index :: self.count]


@dataclass(frozen=True)
class HalvesSwapped:
    """Rows whose groups of `size` have their second half first."""

    size: int

    def shape_of(self, wanted: Shape) -> Shape:
        """The same."""
        return wanted

    def __call__(self, tensor: np.ndarray, wanted: Shape) -> np.ndarray:
        """A copy."""
        halves = tensor.reshape(-1, 2, self.size // 2, *tensor.shape[1:])
        return np.ascontiguousarray(halves[:, ::-1]).reshape(wanted)


@dataclass(frozen=True)
class OfExpert:
    """The source of an expert in a tensor of all `count`, (count, ...), or, `in_rows`, (count * rows, ...)."""

    count: int
    then: TensorTransform = Whole()
    in_rows: bool = False
    expert: int = 0

    def shape_of(self, wanted: Shape) -> Shape:
        """The shape of all."""
        first, *others = self.then.shape_of(wanted)
        return (self.count * first, *others) if self.in_rows else (self.count, first, *others)

    def __call__(self, tensor: np.ndarray, wanted: Shape) -> np.ndarray:
        """From one expert's tensor."""
        return self.then(tensor.reshape(self.count, *self.then.shape_of(wanted))[self.expert], wanted)


@dataclass(frozen=True)
class AsRow:
    """A tensor that is one row of a matrix."""

    def shape_of(self, wanted: Shape) -> Shape:
        """Shape of the row."""
        return wanted[1:]

    def __call__(self, tensor: np.ndarray, wanted: Shape) -> np.ndarray:
        """A view."""
        return tensor.reshape(wanted)


@dataclass(frozen=True)
class OfOne:
    """The tensor as the one of a batch, or that of such a batch, and so on."""

    times: int = 1

    def shape_of(self, wanted: Shape) -> Shape:
        """With axes of one before its own."""
        return (1,) * self.times + tuple(wanted)

    def __call__(self, tensor: np.ndarray, wanted: Shape) -> np.ndarray:
        """A view."""
        return tensor.reshape(wanted)


@dataclass(frozen=True)
class OfOneElement:
    """The tensor with axes of one after its own, and perhaps before them."""

    times: int = 1
    before: int = 0

    def shape_of(self, wanted: Shape) -> Shape:
        """With these axes."""
        return (1,) * self.before + tuple(wanted) + (1,) * self.times

    def __call__(self, tensor: np.ndarray, wanted: Shape) -> np.ndarray:
        """A view."""
        return tensor.reshape(wanted)


@dataclass(frozen=True)
class InHeads:
    """Rows that have two axes: those of `count` heads, and then each head's own."""

    count: int

    def shape_of(self, wanted: Shape) -> Shape:
        """With both axes."""
        return (self.count, wanted[0] // self.count, *wanted[1:])

    def __call__(self, tensor: np.ndarray, wanted: Shape) -> np.ndarray:
        """A view."""
        return tensor.reshape(wanted)


@dataclass(frozen=True)
class InOneAxis:
    """The tensor with all its axes in one."""

    def shape_of(self, wanted: Shape) -> Shape:
        """How many elements there are."""
        return (prod(wanted),)

    def __call__(self, tensor: np.ndarray, wanted: Shape) -> np.ndarray:
        """A view."""
        return tensor.reshape(wanted)


@dataclass(frozen=True)
class OfSquare:
    """Rows that lie in a square, (side, side, columns), line by line; as the one of a batch, if it `is_batch`."""

    is_batch: bool = True

    def shape_of(self, wanted: Shape) -> Shape:
        """Shape of the square."""
        side = isqrt(wanted[0])
        return (*(1,) * self.is_batch, side, side, *wanted[1:])

    def __call__(self, tensor: np.ndarray, wanted: Shape) -> np.ndarray:
        """A view."""
        return tensor.reshape(wanted)


@dataclass(frozen=True)
class ChannelsFirst:
    """A matrix whose columns are each channel at `count` places, of one that has each place's channels together.

    That is what `torch.nn.functional.unfold` gives.
    """

    count: int

    def shape_of(self, wanted: Shape) -> Shape:
        """The same."""
        return wanted

    def __call__(self, tensor: np.ndarray, wanted: Shape) -> np.ndarray:
        """A copy."""
        channels = tensor.reshape(len(tensor), -1, self.count)
        return np.ascontiguousarray(channels.transpose(0, 2, 1)).reshape(wanted)


@dataclass(frozen=True)
class VectorAsRow:
    """The tensor itself, where it is a matrix; of a vector a matrix with one row."""

    def shape_of(self, wanted: Shape) -> Shape:
        """Shape of the matrix."""
        return wanted if len(wanted) > 1 else (1, *wanted)

    def __call__(self, tensor: np.ndarray, wanted: Shape) -> np.ndarray:
        """A view."""
        return tensor.reshape(wanted)


@dataclass(frozen=True)
class UnitRows:
    """A matrix whose rows are divided by their length."""

    def shape_of(self, wanted: Shape) -> Shape:
        """The same."""
        return wanted

    def __call__(self, tensor: np.ndarray, wanted: Shape) -> np.ndarray:
        """A copy; lengths are computed in float32."""
        wide = tensor.astype(np.float32)
        length = np.linalg.norm(wide, axis=1, keepdims=True)
        return (wide / np.maximum(length, 1e-12)).astype(tensor.dtype)


@dataclass(frozen=True)
class ConvolutionAsMatrix:
    """A convolution over patches, (out, channels, height, width), as a matrix (out, height * width * channels).

    Patches are square and have `channels`; None is for patches of one pixel. Biases are as elsewhere.
    """

    channels: int | None = 3

    def shape_of(self, wanted: Shape) -> Shape:
        """Shape of the convolution."""
        if len(wanted) == 1:
            return wanted
        if self.channels is None:
            return (*wanted, 1, 1)
        side = isqrt(wanted[1] // self.channels)
        return (wanted[0], self.channels, side, side)

    def __call__(self, tensor: np.ndarray, wanted: Shape) -> np.ndarray:
        """A copy where channels come last."""
        return tensor if len(wanted) == 1 else np.ascontiguousarray(tensor.transpose(0, 2, 3, 1)).reshape(wanted)


@dataclass(frozen=True)
class FramesAsMatrix:
    """A convolution over patches of several frames, (out, channels, frames, height, width), as a matrix.

    Frames come first, channels last. Otherwise like `ConvolutionAsMatrix`.
    """

    frames: int = 2
    channels: int = 3

    def shape_of(self, wanted: Shape) -> Shape:
        """Shape of the convolution."""
        if len(wanted) == 1:
            return wanted
        side = isqrt(wanted[1] // self.channels // self.frames)
        return (wanted[0], self.channels, self.frames, side, side)

    def __call__(self, tensor: np.ndarray, wanted: Shape) -> np.ndarray:
        """A copy in that order."""
        return tensor if len(wanted) == 1 else np.ascontiguousarray(tensor.transpose(0, 2, 3, 4, 1)).reshape(wanted)


@dataclass(frozen=True)
class TapsAsMatrix:
    """A convolution over time, (out, channels, taps), as a matrix (out, taps * channels). Biases are as elsewhere."""

    taps: int

    def shape_of(self, wanted: Shape) -> Shape:
        """Shape of the convolution."""
        return wanted if len(wanted) == 1 else (wanted[0], wanted[1] // self.taps, self.taps)

    def __call__(self, tensor: np.ndarray, wanted: Shape) -> np.ndarray:
        """A copy where channels come last."""
        return tensor if len(wanted) == 1 else np.ascontiguousarray(tensor.transpose(0, 2, 1)).reshape(wanted)


@dataclass(frozen=True)
class WithoutBias:
    """A matrix of so many `columns`, and zeros as the bias that it has not: that comes of the same tensor."""

    columns: int

    def shape_of(self, wanted: Shape) -> Shape:
        """Shape of the matrix."""
        return (wanted[0], self.columns)

    def __call__(self, tensor: np.ndarray, wanted: Shape) -> np.ndarray:
        """The matrix itself."""
        return np.zeros(wanted, tensor.dtype) if len(wanted) == 1 else tensor


@dataclass(frozen=True)
class Source:
    """Tensors called `name` (`*`: the layer's number, `{expert}`: an expert's); `take` gives a module's part.

    What follows the name is a dot and the parameter's own, unless `endings` has something else for that. Layer i has
    number `layers[i]` there, which may be more of a name, or i; where layers differ, `takes[i]` is its own `take`.
    """

    name: str
    take: TensorTransform = Whole()
    endings: Mapping[str, str] = field(default_factory=dict)
    layers: Sequence[int | str] | None = None
    takes: Sequence[TensorTransform] = ()

    def tensor(self, parameter: str, layer: int, expert: int | None = None) -> str:
        """Name of the tensor of a parameter."""
        ending = self.endings.get(parameter, f".{parameter}")
        number = layer if self.layers is None else self.layers[layer]
        return f"{self.name}{ending}".replace("*", str(number)).replace("{expert}", str(expert))

    def take_of(self, layer: int, expert: int | None) -> TensorTransform:
        """How the tensor of a layer, or of an expert if it is one's, is taken."""
        take = self.takes[layer] if self.takes else self.take
        return replace(take, expert=expert) if isinstance(take, OfExpert) and expert is not None else take


def source_of(name: str | Source) -> Source:
    """The source of a module whose tensors may be its own, called `name`."""
    return name if isinstance(name, Source) else Source(name)


def fused(name: str, sizes: dict[str, int], blocks: int = 1) -> dict[str, Source]:
    """Sources of several modules whose rows lie in tensors called `name`, by the rows of each in a block."""
    rows = tuple(sizes.values())
    return {module: Source(name, Fused(rows, index, blocks)) for index, module in enumerate(sizes)}
