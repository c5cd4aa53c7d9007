"""Ragged paged attention: one operation for any mix of prefill chunks and decodes."""

from typing import Any, Protocol

import jax

from jaxllm.pallas_kernels.paged_attention.ragged import RaggedBatch
from jaxllm.pallas_kernels.paged_attention.reference import reference_paged_attention
from jaxllm.pallas_kernels.paged_attention.xla.attention import xla_paged_attention


class PagedAttention(Protocol):
    """What every implementation is: `paged_attention` without the choice."""

    def __call__(
        self,
        q: jax.Array,
        k: jax.Array,
        v: jax.Array,
        kv_cache: jax.Array,
        layer: int | jax.Array,
        batch: RaggedBatch,
        *,
        scale: float,
        window: int | jax.Array | None = None,
        soft_cap: float | None = None,
        sinks: jax.Array | None = None,
        alibi_slopes: jax.Array | None = None,
        k_scale: float | jax.Array | None = None,
        v_scale: float | jax.Array | None = None,
    ) -> tuple[jax.Array, jax.Array]:
        """See `paged_attention`."""
        ...


def _tpu_paged_attention(*args: Any, **kwargs: Any) -> tuple[jax.Array, jax.Array]:
    # Imported when it is wanted: other machines need not load the compiler of TPU kernels.
    from jaxllm.pallas_kernels.paged_attention.tpu.attention import tpu_paged_attention

    return tpu_paged_attention(*args, **kwargs)


def _gpu_paged_attention(*args: Any, **kwargs: Any) -> tuple[jax.Array, jax.Array]:
    from jaxllm.pallas_kernels.paged_attention.gpu.attention import gpu_paged_attention

    return gpu_paged_attention(*args, **kwargs)


def _cpu_paged_attention(*args: Any, **kwargs: Any) -> tuple[jax.Array, jax.Array]:
    from jaxllm.pallas_kernels.paged_attention.cpu.attention import cpu_paged_attention

    return cpu_paged_attention(*args, **kwargs)


IMPLEMENTATIONS: dict[str, PagedAttention] = {
    "reference": reference_paged_attention,
    "xla": xla_paged_attention,
    "tpu": _tpu_paged_attention,
    "gpu": _gpu_paged_attention,
    "cpu": _cpu_paged_attention,
}
"""`reference` is slow and obvious, `xla` runs everywhere, `tpu` is a Mosaic kernel, `gpu` a Mosaic kernel for Hopper,
`cpu` a kernel compiled by Numba. `layout.SHAPES` names those with a cache layout of their own."""


def paged_attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    kv_cache: jax.Array,
    layer: int | jax.Array,
    batch: RaggedBatch,
    *,
    scale: float,
    window: int | jax.Array | None = None,
    soft_cap: float | None = None,
    sinks: jax.Array | None = None,
    alibi_slopes: jax.Array | None = None,
    k_scale: float | jax.Array | None = None,
    v_scale: float | jax.Array | None = None,
    implementation: str = "xla",
) -> tuple[jax.Array, jax.Array]:
    """Write the step's keys and values into their pages, then let every token attend to its request so far.

    Axis letters: T tokens, R rows, W page-table width, L layers, P pages, C page size, N query heads, K KV heads,
    H head size. The layout of the cache follows "Ragged Paged Attention" (arXiv 2604.15464): in a page, key head 0,
    value head 0, key head 1, ... The cache of all layers is one array indexed inside, so that a scan carries it
    without a copy.

    Args:
        q: [T, N, H] queries, rotated.
        k: [T, K, H] keys, rotated.
        v: [T, K, H] values.
        kv_cache: [L, P, C, 2K, H], or as `cache_shape` says for the implementation; all finite (begin with zeros).
            Donate it to have it updated in place.
        layer: which layer of the cache.
        batch: where each token sits.
        scale: factor on the scores, usually H ** -0.5.
        window: a token at position p sees the keys at p - window + 1 to p; None or 0 sees all up to p.
        soft_cap: scores become soft_cap * tanh(score / soft_cap).
        sinks: float32 [N], a score per head that takes part in the softmax and has no value (gpt-oss).
        alibi_slopes: float32 [N], slope * (key position - query position) is added to the scores, after the cap
            (arXiv 2108.12409).
        k_scale: a stored key times this is the key; None means 1. Values are clipped to what the cache's type holds,
            and rounded where it holds integers.
        v_scale: likewise for values.
        implementation: a name in `IMPLEMENTATIONS`; never replaced by another.

    Returns:
        [T, N, H] in the dtype of `q` (padding tokens unspecified but finite) and the updated cache.

    Raises:
        KeyError: no implementation of that name.
    """
    function = IMPLEMENTATIONS[implementation]
    return function(
        q,
        k,
        v,
        kv_cache,
        layer,
        batch,
        scale=scale,
        window=window,
        soft_cap=soft_cap,
        sinks=sinks,
        alibi_slopes=alibi_slopes,
        k_scale=k_scale,
        v_scale=v_scale,
    )
