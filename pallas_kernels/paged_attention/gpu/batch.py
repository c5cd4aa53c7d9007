"""The plans of a step's attention: the same in all layers with the same window."""

from collections.abc import Callable
from dataclasses import dataclass, fields

import jax
import jax.numpy as jnp

from jaxllm.pallas_kernels.paged_attention.backend import Heads
from jaxllm.pallas_kernels.paged_attention.gpu.options import ROWS, WARPGROUPS
from jaxllm.pallas_kernels.paged_attention.gpu.plan import Plan, plan_decode, plan_prefill
from jaxllm.pallas_kernels.ragged_batch import RaggedBatch
from jaxllm.pallas_kernels.short_rows import MOST_SHORT, ShortBatch, ShortRows, short_rows
from jaxllm.pallas_kernels.tuning import find_blocks

MULTIPROCESSORS = 132
"""Multiprocessors of an H100 or H200 (SXM), if no GPU is present. A wrong number costs speed, never the result."""

DECODE_ITEMS = 8
"""Items of decode work per block to aim at, so that blocks end at about the same time."""

DECODE_SPLITS = 4
"""Most parts of a context where rows alone fill the machine; with fewer rows there may be more."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class GpuBatch(ShortBatch):
    """A batch with its plans."""

    plans: dict[int, tuple[Plan, Plan]]
    """By window, 0 for none: of the short rows, and of the others."""


def multiprocessors() -> int:
    """How many the GPU has that is here: an H100 has 132, or 114 on a PCIe card."""
    if jax.default_backend() != "gpu":
        return MULTIPROCESSORS
    return int(getattr(jax.local_devices()[0], "core_count", MULTIPROCESSORS))


def gpu_prepare(batch: RaggedBatch, heads: Heads) -> GpuBatch:
    """`batch` with the plans for all windows of `heads`."""
    blocks = multiprocessors()
    return with_plans(batch, heads, lambda window, short: make_plans(batch, window, short, heads, blocks))


def with_plans(batch: RaggedBatch, heads: Heads, make: Callable[[int, ShortRows], tuple[Plan, Plan]]) -> GpuBatch:
    """`batch` with what `make` plans for each window of `heads`."""
    given = {field.name: getattr(batch, field.name) for field in fields(RaggedBatch)}
    # The query heads of a KV head, of all tokens of a row, are rows of one product.
    most = min(heads.most_short, MOST_SHORT, max(ROWS * heads.num_kv_heads // heads.num_heads, 1))
    short = ShortRows.of(batch, most)
    return GpuBatch(**given, short=short, plans={window: make(window, short) for window in sorted(heads.windows)})


def prepared_plans(batch: RaggedBatch, window: int | jax.Array | None) -> tuple[Plan, Plan] | None:
    """The plans that a batch brings for a layer's window; None: it brings none."""
    if isinstance(batch, GpuBatch) and not isinstance(window, jax.Array):
        return batch.plans.get(window or 0)
    return None


def plans_of(batch: RaggedBatch, window: int | jax.Array | None, heads: Heads, blocks: int) -> tuple[Plan, Plan]:
    """The plans for a layer's window (see `paged_attention`): prepared ones, where there are any."""
    found = prepared_plans(batch, window) if blocks == multiprocessors() else None
    return found or make_plans(batch, window, short_rows(batch), heads, blocks)


def make_plans(
    batch: RaggedBatch, window: int | jax.Array | None, short: ShortRows, heads: Heads, blocks: int
) -> tuple[Plan, Plan]:
    """Plans for so many persistent blocks."""
    decode = plan_decode(
        batch,
        window,
        short,
        tile=choose_tile(heads.head_size, heads.kv_dtype, decode=True),
        splits=max_splits(batch, heads, blocks),
        items=DECODE_ITEMS * blocks,
        num_kv_heads=heads.num_kv_heads,
    )
    # Groups that are too large are rejected by the kernel.
    tokens = WARPGROUPS * max(ROWS // (heads.num_heads // heads.num_kv_heads), 1)
    tile = choose_tile(heads.head_size, heads.kv_dtype, decode=False)
    return decode, plan_prefill(batch, window, short, tile=tile, tokens=tokens)


def max_splits(batch: RaggedBatch, heads: Heads, blocks: int) -> int:
    """Most parts into which a decode's context is split."""
    rows = min(batch.positions.shape[0], batch.kv_lens.shape[0])
    return max(-(-2 * blocks // max(rows * heads.num_kv_heads, 1)), DECODE_SPLITS)


def choose_tile(head_size: int, kv_dtype: str, *, decode: bool) -> int:
    """Keys of a tile: as measured here, else as many as the registers hold in prefill.

    In decode it is bytes that count, and they are fewer.
    """
    found = find_blocks("paged_attention", None, tile_key(head_size, kv_dtype, decode=decode), local_gpu_kind())
    if found is not None:
        return found["tile"]
    return 64 if decode or head_size > 128 or jnp.dtype(kv_dtype).itemsize == 1 else 128


def local_gpu_kind() -> str | None:
    """The kind of GPU that is here."""
    return str(jax.local_devices()[0].device_kind) if jax.default_backend() == "gpu" else None


def tile_key(head_size: int, kv_dtype: str, *, decode: bool) -> dict[str, int | str]:
    """Under which a tile that was measured is kept."""
    return {"kernel": "decode" if decode else "prefill", "head_size": head_size, "kv_dtype": kv_dtype}
