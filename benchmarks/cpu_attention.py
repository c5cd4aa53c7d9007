"""Attention on CPU (AVX512-BF16) over caches of several types, alternating.

    python -m benchmarks.cpu_attention [--heads 12,4,64] [--layers 12] [--batches 8x200,32x200,8x8000,p2000]

The first is bfloat16 widened to float32, then bfloat16 as it is, then int8 with a scale for each token and head, whose
queries and results are bfloat16 too, and float32 throughout.

A batch is rows x context of decodes, or `p` and the tokens of a prompt. A step is what lies between the products of
queries, keys and values and of the output, in all layers of a model: rotation, writing, attention. Of each kind: the
least and the median of processor seconds, of all threads, and the least of elapsed ones. Results are not compared:
the numbers of the caches are random.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxllm.models.layers.rope import rotate
from jaxllm.pallas_kernels.cpu_common.processor import host_processor
from jaxllm.pallas_kernels.cpu_common.zeros import zeros
from jaxllm.pallas_kernels.paged_attention import AttentionOptions, RaggedBatch, paged_attention
from jaxllm.pallas_kernels.paged_attention.cpu.attention import merged_attention
from jaxllm.pallas_kernels.paged_attention.cpu.pairs import merged_pairs

BATCHES = "8x200,32x200,8x2000,32x2000,8x8000,32x8000,p2000"
PAGE = 16
KINDS = ("widened", "native", "int8", "float32")
SCALE_BYTES = 4
"""Of a token and head in a cache of int8."""
Heads = tuple[int, int, int]
Step = Callable[[jax.Array, jax.Array, RaggedBatch], tuple[jax.Array, jax.Array]]


def make_batch(rows: list[tuple[int, int]]) -> RaggedBatch:
    """Rows of new and cached tokens, each with pages of its own, after page 0, which belongs to nobody."""
    new, cached = (np.array(each) for each in zip(*rows, strict=True))
    pages = -(-(new + cached) // PAGE)
    table, first = np.zeros((len(rows), pages.max()), np.int32), 1
    # Pages of a row do not lie side by side in a server that has run for a while.
    order = np.random.default_rng(0).permutation(int(pages.sum())) + 1
    for row, count in enumerate(pages):
        table[row, :count] = order[first - 1 : first - 1 + count]
        first += count
    positions = np.concatenate([np.arange(old, old + count) for count, old in zip(new, cached, strict=True)])
    starts = np.concatenate([[0], np.cumsum(new)])
    ints = partial(jnp.asarray, dtype=jnp.int32)
    return RaggedBatch(
        positions=ints(positions),
        token_rows=ints(np.repeat(np.arange(len(rows)), new)),
        query_start=ints(starts),
        kv_lens=ints(new + cached),
        page_table=ints(table),
        num_tokens=jnp.int32(new.sum()),
        num_decodes=jnp.int32((new == 1).sum()),
        num_requests=jnp.int32(len(rows)),
    )


def make_step(kind: str, heads: Heads, layers: int) -> Step:
    """All layers, one after the other, of queries, keys and values bfloat16 [T, (N + 2 K) * H]."""
    num_heads, num_kv_heads, size = heads
    options = AttentionOptions(size**-0.5, scale_bytes=SCALE_BYTES if kind == "int8" else 0)
    ends = [num_heads * size, (num_heads + num_kv_heads) * size]

    @partial(jax.jit, donate_argnums=1)
    def step(qkv: jax.Array, cache: jax.Array, batch: RaggedBatch) -> tuple[jax.Array, jax.Array]:
        angles = batch.positions[:, None] * 10000.0 ** (-jnp.arange(size // 2, dtype=jnp.float32) * 2 / size)
        rotation = jnp.cos(angles), jnp.sin(angles)

        def attend(layer: jax.Array, carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            last, cache = carry
            # Each layer waits for the last one.
            own = lax.optimization_barrier((qkv, last))[0]
            if kind != "widened":
                merged = merged_pairs if kind == "native" else merged_attention
                return merged(own, rotation, cache, layer, batch, options)
            query, key, value = (part.reshape(len(own), -1, size) for part in jnp.split(own, ends, axis=1))
            arrays = (rotate(query, rotation), rotate(key, rotation), value, cache)
            out, cache = paged_attention(*arrays, layer, batch, options, implementation="cpu")
            return out.reshape(last.shape), cache

        return lax.fori_loop(0, layers, attend, (jnp.zeros((len(qkv), ends[0]), qkv.dtype), cache))

    return step


def make_cache(kind: str, layers: int, pages: int, heads: Heads) -> jax.Array:
    """Random numbers, in memory like an engine's: large pages, where the system has them."""
    _, num_kv_heads, size = heads
    shape = (layers, pages, 2, num_kv_heads, PAGE * (size + (SCALE_BYTES if kind == "int8" else 0)))
    dtype = np.dtype({"int8": jnp.int8, "float32": jnp.float32}.get(kind, jnp.bfloat16))
    random = np.random.default_rng(2).standard_normal(shape[-1], np.float32)
    if kind == "int8":
        # Of the scales every one is about 1, so that no score is infinite.
        random = np.concatenate(
            [30 * random[: PAGE * size], np.frombuffer(np.ones(PAGE, np.float32).tobytes(), np.int8)]
        )
    numbers = jnp.asarray(random.astype(dtype))
    empty = jax.jit(lambda: zeros(shape, dtype))()
    filled: jax.Array = jax.jit(lambda cache, numbers: cache + numbers, donate_argnums=0)(empty, numbers)
    return filled


def parsed(batch: str) -> list[tuple[int, int]]:
    """Rows of new and cached tokens: '8x200' are decodes, 'p2000' is a prompt."""
    if batch.startswith("p"):
        return [(int(batch[1:]), 0)]
    rows, context = map(int, batch.split("x"))
    return [(1, context)] * rows


def measure(
    steps: dict[str, Step], qkv: jax.Array, batch: RaggedBatch, layers: int, heads: Heads, repeats: int
) -> dict[str, tuple[list[float], list[float]]]:
    """Of each kind its processor seconds and elapsed seconds; they take turns, after one more each."""
    times: dict[str, tuple[list[float], list[float]]] = {kind: ([], []) for kind in steps}
    pages = int(batch.page_table.max()) + 1
    caches = {kind: make_cache(kind, layers, pages, heads) for kind in steps}
    inputs = {kind: qkv.astype(jnp.float32 if kind == "float32" else jnp.bfloat16) for kind in steps}
    for repeat in range(repeats + 1):
        for kind, step in steps.items():
            own, elapsed = time.process_time(), time.perf_counter()
            _, caches[kind] = jax.block_until_ready(step(inputs[kind], caches[kind], batch))
            if repeat:
                times[kind][0].append(time.process_time() - own)
                times[kind][1].append(time.perf_counter() - elapsed)
    return times


def main() -> None:
    """Print a line for each batch and kind."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--heads", default="12,4,64", help="query heads, KV heads, head size")
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--batches", default=BATCHES)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--repeats", type=int, default=10)
    options = parser.parse_args()
    if not host_processor().multiplies_bfloat16:
        raise SystemExit("this processor has no AVX512-BF16")
    num_heads, num_kv_heads, size = heads = tuple(map(int, options.heads.split(",")))
    assert len(heads) == 3
    steps = {kind: make_step(kind, heads, options.layers) for kind in options.kinds}
    for name in options.batches.split(","):
        batch = make_batch(parsed(name))
        qkv = np.random.default_rng(1).standard_normal((len(batch.positions), (num_heads + 2 * num_kv_heads) * size))
        found = measure(steps, jnp.asarray(qkv), batch, options.layers, heads, options.repeats)
        first = None
        for kind, (own, elapsed) in found.items():
            first = min(own) if first is None else first
            print(
                f"{name:8} {kind:8} processor {1e3 * min(own):8.2f} ms, median {1e3 * statistics.median(own):8.2f}"
                f"   elapsed {1e3 * min(elapsed):8.2f} ms   {first / min(own):5.2f} x",
                flush=True,
            )


if __name__ == "__main__":
    main()
