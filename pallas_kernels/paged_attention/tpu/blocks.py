"""Which block sizes the kernels use: tuned ones, or a heuristic."""

import math
from dataclasses import replace

from jaxllm.pallas_kernels.paged_attention.tpu.common import Blocks, row_slots
from jaxllm.pallas_kernels.paged_attention.tpu.layout import Dims
from jaxllm.pallas_kernels.tpu_common.constants import LANES
from jaxllm.pallas_kernels.tpu_common.target import Target, target
from jaxllm.pallas_kernels.tuning import find_blocks

_MIB = 1 << 20


def choose_blocks(kernel: str, dims: Dims, tokens: int, chip: Target) -> Blocks:
    """Block sizes of `kernel` ("decode" or "prefill") for a step of `tokens` tokens.

    Both kernels cut a context into the same chunks, those of prefill. Weights are rounded alongside the largest score
    so far, so a token's result would depend a little on which of the two computes it.
    """
    blocks = _fit(_tuned_or_heuristic("prefill", dims, chip), dims, chip)
    if kernel == "prefill":
        return replace(blocks, queries=whole_queries(min(blocks.queries, tokens), dims))
    decode = _tuned_or_heuristic("decode", dims, chip)
    return _fit(replace(decode, chunk=blocks.chunk, keys=max(decode.keys, blocks.chunk)), dims, chip)


def _tuned_or_heuristic(kernel: str, dims: Dims, chip: Target) -> Blocks:
    """Tuned block sizes, or those of the heuristic."""
    key: dict[str, int | str] = {
        "kernel": kernel,
        "head_size": dims.head_size,
        "num_kv_heads": dims.num_kv_heads,
        "group": dims.group,
        "page_size": dims.page_size,
        "q_dtype": dims.q_dtype,
        "kv_dtype": dims.kv_dtype,
    }
    found = find_blocks("paged_attention", chip.chip, key, chip.device_kind)
    return Blocks(**found) if found is not None else _heuristic(kernel, dims, chip)


def _heuristic(kernel: str, dims: Dims, chip: Target) -> Blocks:
    """Decode: blocks large enough to hide a DMA's latency. Prefill: as many queries as a quarter of VMEM holds."""
    if kernel == "decode":
        # With few heads, several chunks are computed together, each perhaps in a slot of its own.
        slots = _power_of_two(16 // dims.num_kv_heads, 4, 16)
        block_bytes = min(8 * _MIB, chip.vmem_bytes // 3) // slots
        return Blocks(keys=_power_of_two(block_bytes // dims.token_bytes, 128, 4096), chunk=512, slots=slots)
    keys = _power_of_two(min(4 * _MIB, chip.vmem_bytes // 10) // dims.token_bytes, 128, 1024)
    # Queries twice and the weighted values, and 8 each of a maximum and a sum, in all heads.
    per_query = dims.num_kv_heads * dims.group_rows * 4 * (3 * dims.folds * LANES + 16)
    queries = _power_of_two(chip.vmem_bytes // 4 // per_query, 8, 512)
    return Blocks(keys, chunk=512, slots=2, queries=queries, heads=2)


def _power_of_two(value: int, least: int, most: int) -> int:
    """The largest power of two not above `value`, within bounds."""
    return max(least, min(most, 1 << max(value, 1).bit_length() - 1))


def _fit(blocks: Blocks, dims: Dims, chip: Target) -> Blocks:
    """Block sizes that agree with the page size and VMEM."""
    chunk = -(-min(blocks.chunk, blocks.keys) // LANES) * LANES
    if math.lcm(dims.page_size, chunk) > blocks.keys:
        chunk = LANES
    unit = math.lcm(dims.page_size, chunk)
    keys, slots = -(-blocks.keys // unit) * unit, blocks.slots
    while slots > 2 and slots * keys * dims.token_bytes > chip.vmem_bytes // 2:
        slots //= 2
    return replace(blocks, keys=keys, chunk=chunk, slots=slots)


def whole_queries(queries: int, dims: Dims) -> int:
    """Tokens of a block of queries, rounded up so that the rows of a KV head are whole registers of lanes."""
    unit = max(8, LANES // math.gcd(dims.group_rows, LANES))
    return -(-queries // unit) * unit


def vmem_bytes(blocks: Blocks, dims: Dims, tokens: int = 1) -> int:
    """The room that a kernel may use in VMEM: its buffers, and room for the values in flight.

    A row of the decode kernel has up to so many `tokens`.
    """
    rows = blocks.queries * tokens * dims.group_rows
    kv = blocks.slots * blocks.keys * dims.token_bytes
    q = max(2, row_slots(blocks, 1) // blocks.queries) * dims.num_kv_heads * dims.folds * rows * LANES * 4
    state = dims.num_kv_heads * max(rows, 8) * LANES * 4 * (2 + dims.folds)
    needed = kv + q + state + 6 * max(rows, 8) * max(blocks.chunk, LANES * dims.folds) * 4 + 8 * _MIB
    return min(needed, target().vmem_bytes)
