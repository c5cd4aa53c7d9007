"""Attention of every token to units of a cache that are keys and values, in XLA's operations or by a kernel for CPUs.

The units that a token sees are a page table of its own, with pages of one unit: attention to them is that of decodes,
with one softmax over all, and gives a token the same bits alone and in a batch.
"""

from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import lax

from jaxllm.pallas_kernels.latent_attention import LatentOptions
from jaxllm.pallas_kernels.latent_attention.cpu.attention import attend_to_places
from jaxllm.pallas_kernels.ragged_batch import RaggedBatch
from jaxllm.pallas_kernels.xla_common.blockwise import Blocks, Pages, Part, decode_by_blocks
from jaxllm.pallas_kernels.xla_common.softmax import Heads

SMALL = Blocks(decode_rows=4, decode_keys=128, prefill_queries=4, prefill_keys=128)
LARGE = Blocks(decode_rows=64, decode_keys=512, prefill_queries=64, prefill_keys=1024)
"""Blocks on processors and on GPUs."""

KERNELS = {"cpu": False, "cpu_pairs": True}
"""Implementations that are the kernel of latent attention, and whether it multiplies bfloat16 as it is."""


@dataclass(frozen=True)
class _Keys(Pages):
    """Units [S, H]; each one is a page."""

    def keys(self, tables: jax.Array) -> Part:
        """See `Pages`."""
        return Part(self.kv_cache.at[tables].get(mode="promise_in_bounds")[:, None])

    def values(self, tables: jax.Array, keys: Part) -> Part:
        """See `Pages`."""
        return keys


def attend_to_units(
    q: jax.Array,
    units: jax.Array,
    seen: jax.Array,
    counts: jax.Array,
    num_tokens: jax.Array,
    *,
    scale: float,
    sinks: jax.Array | None = None,
    implementation: str = "xla",
) -> jax.Array:
    """Attention of each token to the units that it sees, [T, N, H] in the type of `q`.

    Args:
        q: [T, N, H] queries.
        units: [S, H] what the cache has, all finite; each is key and value.
        seen: int32 [T, M] which units each token sees.
        counts: int32 [T] how many of these count, the first ones, at least one.
        num_tokens: int32 [], the tokens that are not padding.
        scale: factor on the scores.
        sinks: float32 [N], scores that take part in each head's softmax without a value.
        implementation: a name in `KERNELS`, or any other for XLA's operations.

    Raises:
        ValueError: the kernel does not take these sizes or types.
    """
    tokens, num_heads, size = q.shape
    heads = Heads(num_heads, 1, size, scale, None, sinks, None, None)
    order, starts = jnp.arange(tokens + 1, dtype=jnp.int32), jnp.zeros_like(counts)
    rows = RaggedBatch(
        positions=counts - 1,
        token_rows=order[:tokens],
        query_start=order,
        kv_lens=counts,
        page_table=seen,
        num_tokens=num_tokens,
        num_decodes=num_tokens,
        num_requests=num_tokens,
    )
    if implementation in KERNELS:
        # A unit is a latent without a rotary part.
        options, paired = LatentOptions(scale, sinks=sinks), KERNELS[implementation]
        return attend_to_places(q, q[..., :0], units[None, :, None], 0, rows, options, paired=paired)

    def attend(blocks: Blocks) -> Callable[[jax.Array], jax.Array]:
        return lambda q: decode_by_blocks(q, _Keys(units, jnp.int32(0), 1, seen), rows, starts, heads, blocks)

    gpu = attend(LARGE)
    attended: jax.Array = lax.platform_dependent(q, cuda=gpu, rocm=gpu, default=attend(SMALL))
    return attended
