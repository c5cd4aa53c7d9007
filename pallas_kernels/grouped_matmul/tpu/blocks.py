"""Which block sizes the kernel uses: tuned ones, or a heuristic."""

from dataclasses import dataclass, replace

import jax.numpy as jnp

from jaxllm.pallas_kernels.chips import CHIPS
from jaxllm.pallas_kernels.tpu_common.constants import LANES
from jaxllm.pallas_kernels.tpu_common.target import Target
from jaxllm.pallas_kernels.tuning import find_blocks

SUBLANES = 16
"""Rows of bfloat16 in a register: where a block may begin."""

_WINDOWS = (2048, 1024, 512, 256, 128, 64, 32, 16)
_MOST_ROWS = 256


@dataclass(frozen=True)
class Dims:
    """A call, as far as block sizes depend on it."""

    rows: int
    groups: int
    depth: int
    out_size: int
    dtype: str
    """Data type of rows and matrices; the wider one if they differ."""
    out_dtype: str

    def key(self) -> dict[str, int | str]:
        """Key of a tuned entry."""
        return {
            "kernel": "grouped_matmul",
            "in_size": self.depth,
            "out_size": self.out_size,
            "rows_per_group": _power_of_two(self.rows // self.groups, 1, 1024),
            "dtype": self.dtype,
        }


@dataclass(frozen=True)
class Blocks:
    """The bytes that the kernel has in VMEM at a time."""

    window: int
    """Rows of activations and results."""
    columns: int
    """Columns of the result: as many rows of a matrix. A multiple of 128 that divides it, or all."""
    block: int
    """Rows that are multiplied together."""

    def vmem_bytes(self, dims: Dims) -> int:
        """Bytes of the pipeline's double buffers, and of a product before it is stored."""
        item, out_item = (jnp.dtype(dtype).itemsize for dtype in (dims.dtype, dims.out_dtype))
        depth, columns = (-(-size // LANES) * LANES for size in (dims.depth, self.columns))
        piped = self.columns * depth * item + self.window * (depth * item + columns * out_item)
        return 2 * piped + 2 * self.block * columns * 4 + (4 << 20)


def choose_blocks(dims: Dims, target: Target) -> Blocks:
    """Block sizes for a chip. Raises `NotImplementedError` where its vector memory is too small for the matrices."""
    found = find_blocks("grouped_matmul", target.chip, dims.key(), target.device_kind)
    blocks = Blocks(**found) if found is not None else _heuristic(dims, target)
    window = min(blocks.window, dims.rows)
    while window > SUBLANES and replace(blocks, window=window).vmem_bytes(dims) > target.vmem_bytes:
        window = max(window // 2 // SUBLANES * SUBLANES, SUBLANES)
    fitting = replace(blocks, window=window, block=min(blocks.block, window))
    if fitting.vmem_bytes(dims) > target.vmem_bytes:
        raise NotImplementedError(
            f"grouped products with 'tpu' hold {blocks.columns} rows of {dims.depth} in vector memory, and this "
            f"chip has {target.vmem_bytes >> 20} MiB of it; choose 'xla'"
        )
    return fitting


def _heuristic(dims: Dims, target: Target) -> Blocks:
    """What takes least by `_cost` among what fits; of rows twice as many together as a group has: few cost as much."""
    block = _power_of_two(2 * dims.rows // dims.groups, 2 * SUBLANES, _MOST_ROWS)
    strips = [size for size in range(LANES, dims.out_size, LANES) if dims.out_size % size == 0] + [dims.out_size]
    every = [Blocks(window, columns, min(block, window)) for window in _WINDOWS for columns in strips]
    # A larger program takes the compiler longer, and decodes gain nothing by it.
    largest = (16 if block == _MOST_ROWS else 8) << 20
    most = max(largest // (dims.depth * jnp.dtype(dims.dtype).itemsize), strips[0])
    room = target.vmem_bytes * 4 // 5
    fitting = [blocks for blocks in every if blocks.columns <= most and blocks.vmem_bytes(dims) <= room]
    smallest = Blocks(SUBLANES, strips[0], SUBLANES)
    return min(fitting, key=lambda blocks: _cost(blocks, dims, target), default=smallest)


def _cost(blocks: Blocks, dims: Dims, target: Target) -> float:
    """Seconds by memory or matrix units, and of what neither hides: the first strip and window, and each step."""
    chip = CHIPS[target.chip]
    item, out_item = (jnp.dtype(dtype).itemsize for dtype in (dims.dtype, dims.out_dtype))
    strips = dims.out_size // blocks.columns
    groups, window = min(dims.groups, dims.rows), min(blocks.window, dims.rows)
    visits = -(-dims.rows // window) + groups - 1
    # A group's rows begin and end anywhere.
    products = dims.rows / blocks.block + visits / 2
    flops = 2 * products * max(blocks.block, _MOST_ROWS // 2) * dims.out_size * dims.depth
    matrices, first = groups * dims.out_size * dims.depth * item, window * dims.depth * item
    moved = matrices + dims.rows * (strips * dims.depth * item + dims.out_size * out_item)
    seconds = max(flops / chip.bf16_flops, moved / chip.hbm_bandwidth)
    return seconds + (first + blocks.columns * dims.depth * item) / chip.hbm_bandwidth + strips * visits * 2e-7


def _power_of_two(value: int, least: int, most: int) -> int:
    """The largest power of two not above `value`, within bounds."""
    return max(least, min(most, 1 << max(value, 1).bit_length() - 1))
