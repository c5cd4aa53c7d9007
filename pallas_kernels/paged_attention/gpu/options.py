"""The arguments of the kernel, and the static options of a launch."""

import math
from dataclasses import dataclass
from typing import Any

ROWS = 64
"""Query rows of a warpgroup: the M of a wgmma instruction."""

WARPGROUPS = 2
"""Warpgroups that compute; one more copies."""

COMPUTE_TYPES = {
    "bfloat16": "bfloat16",
    "float16": "float16",
    "int8": "bfloat16",
    "float8_e4m3fn": "float16",
    "float8_e5m2": "float16",
}
"""By type of the cache, the type that is multiplied: it holds every number of the cache's type, and Hopper converts to
it in one instruction."""


def refusal(*, group: int, head_size: int, page_size: int, kv_dtype: str) -> str | None:
    """Why the kernel cannot do it, for `group` query heads per KV head; None where it can."""
    if kv_dtype not in COMPUTE_TYPES:
        return f"a KV cache of {kv_dtype}; supported: {', '.join(COMPUTE_TYPES)}"
    if page_size % 8:
        return f"pages of {page_size} tokens; supported: multiples of 8"
    # Shared memory is swizzled by at least 32 bytes.
    multiple = 16 if kv_dtype in ("bfloat16", "float16") else 32
    if head_size % multiple or head_size > 256:
        return f"heads of size {head_size} in {kv_dtype}; supported: multiples of {multiple} up to 256"
    return f"{group} query heads per KV head; supported: up to {ROWS}" if group > ROWS else None


def is_hopper(device: Any) -> bool:
    """Whether a JAX device has the instructions of compute capability 9."""
    return str(getattr(device, "compute_capability", "")).startswith("9.")


@dataclass(frozen=True)
class KernelOptions:
    """Everything static about a launch."""

    decode: bool
    layers: int
    num_kv_heads: int
    group: int
    """Query heads of a KV head."""
    head_size: int
    page_size: int
    tile: int
    """Keys in a tile."""
    stages: int
    """Tiles in the ring; even, so that in decode a slot always belongs to the same warpgroup."""
    blocks: int
    """Persistent blocks: one per multiprocessor."""
    windowed: bool
    soft_cap: float | None
    alibi: bool
    dtype: str
    """Data type of products, queries and output."""
    kv_dtype: str
    """Data type of the cache. If it differs, tiles are converted in shared memory."""
    interpret: bool
    """Run in JAX's interpreter, on CPU."""
    most_short: int = 1
    """Tokens of a row at most that are computed as a decode."""

    @property
    def converts(self) -> bool:
        """Whether tiles must be converted before they are multiplied."""
        return self.dtype != self.kv_dtype

    @property
    def columns(self) -> int:
        """Most columns of the tiles in shared memory. 8-bit numbers, which would allow 128, are converted by these.

        Besides a wide accumulator, registers do not hold 64 columns that are being converted.
        """
        return 32 if self.converts and self.head_size > 128 else 64

    @property
    def alternates(self) -> bool:
        """Whether warpgroups take turns: one multiplies while the other computes its softmax."""
        return not self.decode

    @property
    def registers(self) -> tuple[int, int]:
        """Registers of a thread that computes and of one that copies: 2 x 128 and 128 threads share 65536.

        A wide accumulator needs all it can get; copying many small pages needs more than the least.
        """
        return (240, 32) if self.head_size > 128 else (232, 40)

    @property
    def piece(self) -> int:
        """Keys of one copy: the greatest common divisor of a page and a tile."""
        return math.gcd(self.tile, self.page_size)

    @property
    def tokens(self) -> int:
        """Tokens in the rows of a warpgroup."""
        return self.most_short if self.decode else ROWS // self.group

    @property
    def out_rows(self) -> int:
        """Rows that a warpgroup writes; shared memory is tiled by 8 rows."""
        return -(-self.most_short * self.group // 8) * 8 if self.decode else ROWS
