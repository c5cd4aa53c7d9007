"""Static sizes of a call of the TPU kernel, and its blocks."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import jax.numpy as jnp
from jax import lax

from jaxllm.pallas_kernels.latent_attention.backend import LatentSizes
from jaxllm.pallas_kernels.tpu_common.constants import LANES

PAGE_MULTIPLE = 16
"""Tokens of a page must fill whole tiles: 16 rows in bfloat16."""
DTYPES = ("bfloat16", "float32")
"""Types of the cache that the kernel reads."""


def whole_rows(size: int) -> int:
    """Rounded up to whole rows of lanes."""
    return -(-size // LANES) * LANES


def row_size(sizes: LatentSizes) -> int:
    """Numbers of a token in the cache: its key, then its index key, both in whole rows of lanes."""
    return whole_rows(sizes.key) + whole_rows(sizes.index)


def refusal(
    page_size: int, dtype: str, cached: LatentSizes | None = None, kinds: Sequence[LatentSizes] = ()
) -> str | None:
    """The sizes that the kernel would need if it cannot do these; `dtype` is the cache's (NumPy's name).

    Layers may be of several `kinds`, in a cache for tokens of the sizes `cached`.
    """
    if dtype in DTYPES and page_size % PAGE_MULTIPLE == 0:
        too_wide = [kind for kind in kinds if cached is not None and row_size(kind) > row_size(cached)]
        if too_wide:
            return (
                f"needs rows of {row_size(too_wide[0])} numbers for {too_wide[0]}, and those of the cache are shorter"
            )
        return None
    return (
        f"needs a page size that is a multiple of {PAGE_MULTIPLE} and a cache in {' or '.join(DTYPES)}, not "
        f"{page_size} and {dtype}"
    )


@dataclass(frozen=True)
class Blocks:
    """Block sizes of one kernel."""

    keys: int
    """Keys that are fetched together: a multiple of the page size and of `chunk`."""
    chunk: int
    """Keys of a step of the softmax: a multiple of 128."""
    slots: int
    """Blocks of keys in VMEM: one is computed, the others are on their way. A power of two."""
    queries: int = 1
    """Query tokens that are computed together."""


@dataclass(frozen=True)
class Sizes:
    """Sizes of a call: N query heads in whole tiles, S values of a token and Z of its value in whole rows of lanes."""

    heads: int
    token: int
    value: int
    page_size: int
    dtype: str
    window: int = 0
    """See `LatentOptions`."""

    @property
    def precision(self) -> lax.Precision | None:
        """Float32 operands are multiplied as such, not rounded to bfloat16."""
        return lax.Precision.HIGHEST if self.dtype == "float32" else None

    @property
    def bytes_each(self) -> int:
        """Bytes of a value in the cache."""
        return jnp.dtype(self.dtype).itemsize


def padded_heads(heads: int) -> int:
    """Heads rounded up to whole tiles."""
    return -(-heads // PAGE_MULTIPLE) * PAGE_MULTIPLE


def most_together(num_heads: int, tokens: int) -> int:
    """How many of so many tokens are computed together: those whose heads are about 512 rows of a product."""
    return max(1, min(512 // padded_heads(num_heads), tokens))


def choose_blocks(kernel: str, sizes: Sizes, tokens: int, most_short: int) -> Blocks:
    """Block sizes of "decode", of rows of up to `most_short` tokens, or "prefill".

    Both have the same chunks, so that a token's result is the same in either. A decode's blocks are large enough to
    hide what a DMA takes.
    """
    chunk = 256
    if kernel == "decode":
        # Most of a block of 1,024 keys would lie before a short window.
        keys = 512 if 0 < sizes.window <= 1024 else 1024
        return Blocks(math.lcm(keys, sizes.page_size), chunk, slots=4, queries=most_short)
    return Blocks(math.lcm(512, sizes.page_size), chunk, slots=2, queries=most_together(sizes.heads, tokens))


def vmem_bytes(blocks: Blocks, sizes: Sizes, limit: int) -> int:
    """The room that a kernel may use in VMEM: its buffers, and room for the values in flight."""
    rows = blocks.queries * sizes.heads
    kv = blocks.slots * blocks.keys * sizes.token * sizes.bytes_each
    queries = rows * sizes.bytes_each * (blocks.slots * sizes.token + 2 * sizes.value)
    state = 4 * rows * (2 * LANES + sizes.value)
    return min(kv + queries + state + 6 * rows * max(blocks.chunk, sizes.value) * 4 + (8 << 20), limit)
