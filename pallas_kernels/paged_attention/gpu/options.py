"""What is static about a launch of the kernel."""

import math
from dataclasses import dataclass

ROWS = 64
"""Query rows of a warpgroup: the M of a wgmma instruction."""

WARPGROUPS = 2
"""Warpgroups that compute; one more copies."""


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
    """Of what is multiplied, of the queries and of the output."""
    kv_dtype: str
    """Of the cache. Where it is another, tiles are converted in shared memory."""
    interpret: bool
    """Run in JAX's interpreter, on CPU."""

    @property
    def converts(self) -> bool:
        """Whether tiles must be converted before they are multiplied."""
        return self.dtype != self.kv_dtype

    @property
    def columns(self) -> int:
        """Most columns of the tiles in shared memory. 8-bit numbers, which would allow 128, are converted by these.

        Beside a wide accumulator, registers do not hold 64 columns that are being converted.
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
        """Keys of one copy: the most of which a page and a tile both hold whole numbers."""
        return math.gcd(self.tile, self.page_size)

    @property
    def tokens(self) -> int:
        """Tokens in the rows of a warpgroup."""
        return 1 if self.decode else ROWS // self.group

    @property
    def out_rows(self) -> int:
        """Rows that a warpgroup writes; shared memory is tiled by 8 rows."""
        return -(-self.group // 8) * 8 if self.decode else ROWS
