"""Which block sizes the kernel uses: tuned ones, or a heuristic."""

from dataclasses import dataclass, replace

import jax.numpy as jnp

from jaxllm.pallas_kernels.tpu_common.target import Target
from jaxllm.pallas_kernels.tuning import find_blocks

_MIB = 1 << 20
_BLOCK, _MOST_WINDOW = 256, 2048


@dataclass(frozen=True)
class Dims:
    """A call, as far as block sizes depend on it."""

    rows: int
    depth: int
    strips: int
    columns: int
    groups: int
    bits: int
    """Bits of a value."""
    dtype: str
    """In which rows arrive."""
    wide: str
    """In which products are computed."""
    out_dtype: str

    def key(self) -> dict[str, int | str]:
        """Key of a tuned entry."""
        return {
            "kernel": "quantized_matmul",
            "in_size": self.depth,
            "out_size": self.strips * self.columns,
            "rows": 1 << max(self.rows - 1, 1).bit_length(),
            "bits": self.bits,
            "groups": self.groups,
            "dtype": self.wide,
        }

    @property
    def strip_bytes(self) -> int:
        """Bytes of the values of a strip."""
        return self.depth * self.columns * self.bits // 8


@dataclass(frozen=True)
class Blocks:
    """The bytes that the kernel has in VMEM at a time."""

    strips: int
    """Number of strips of the matrix; a divisor of all."""
    window: int
    """Rows of activations and results; a divisor of all."""
    block: int
    """Rows that are multiplied together; a divisor of the window."""

    def vmem_bytes(self, dims: Dims) -> int:
        """Bytes of the pipeline's double buffers, and of one widened strip and a product."""
        item, wide, out_item = (jnp.dtype(name).itemsize for name in (dims.dtype, dims.wide, dims.out_dtype))
        columns = self.strips * dims.columns
        matrix = self.strips * (dims.strip_bytes + 8 * dims.columns * max(dims.groups, 8))
        rows = self.window * (dims.depth * item + columns * out_item + 1024)
        own = dims.depth * (dims.columns * max(wide, 2) * 2 + self.block * wide) + self.block * dims.columns * 8
        return 2 * (matrix + rows) + own + 4 * _MIB


def choose_blocks(dims: Dims, target: Target) -> Blocks:
    """Block sizes for a chip. Raises `NotImplementedError` where its vector memory is too small for a strip."""
    found = find_blocks("linear", target.chip, dims.key(), target.device_kind)
    blocks = Blocks(**found) if found is not None else _heuristic(dims, target)
    if blocks.vmem_bytes(dims) > target.vmem_bytes:
        raise NotImplementedError(
            f"products with 'tpu' hold {dims.columns} columns of {dims.depth} in vector memory, and this chip has "
            f"{target.vmem_bytes >> 20} MiB of it; choose 'xla'"
        )
    return blocks


def _heuristic(dims: Dims, target: Target) -> Blocks:
    """Strips of up to 4 MiB, 8 on TPU7x, but an eighth of the matrix, and rows as room allows.

    Nothing hides the first fetch; after it, large strips hide the latency of each.
    """
    most = min(8 * _MIB if target.chip == "tpu7x" else 4 * _MIB, dims.strips * dims.strip_bytes // 8)
    strips = max(count for count in _divisors(dims.strips) if count == 1 or count * dims.strip_bytes <= most)
    windows = [_BLOCK * count for count in _divisors(dims.rows // _BLOCK)] if dims.rows > _BLOCK else [dims.rows]
    room = target.vmem_bytes * 4 // 5
    blocks = Blocks(strips, min(windows), min(_BLOCK, dims.rows))
    while blocks.vmem_bytes(dims) > room and blocks.strips > 1:
        blocks = replace(blocks, strips=max(count for count in _divisors(dims.strips) if count < blocks.strips))
    while blocks.vmem_bytes(dims) > room and blocks.block > 32 and blocks.block % 2 == 0:
        blocks = replace(blocks, block=blocks.block // 2, window=blocks.block // 2)
        windows = [blocks.window]
    every = [replace(blocks, window=window) for window in windows if window <= _MOST_WINDOW]
    return max((each for each in every if each.vmem_bytes(dims) <= room), key=lambda each: each.window, default=blocks)


def _divisors(number: int) -> list[int]:
    return [count for count in range(1, number + 1) if number % count == 0]
