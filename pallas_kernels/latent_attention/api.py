"""Latent attention in its absorbed form: one operation for any mix of prefill chunks and decodes."""

import jax

from jaxllm.pallas_kernels.latent_attention.backend import (
    ChosenKeys,
    KeyIndex,
    LatentBackend,
    LatentFeature,
    LatentGeometry,
    LatentOptions,
    get_latent_backend,
)
from jaxllm.pallas_kernels.ragged_batch import RaggedBatch


def latent_attention(
    q_latent: jax.Array,
    q_rope: jax.Array,
    latent: jax.Array,
    k_rope: jax.Array,
    kv_cache: jax.Array,
    layer: int | jax.Array,
    batch: RaggedBatch,
    options: LatentOptions,
    *,
    index: KeyIndex | None = None,
    implementation: str = "xla",
) -> tuple[jax.Array, jax.Array]:
    """Write the step's latents into their pages, then let every token attend to its request so far.

    This is multi-head latent attention of DeepSeek-V2 (arXiv 2405.04434), with the products that make keys and values
    of latents absorbed into queries and results. A token has one key, its latent and its rotary part side by side, and
    one value, its latent, for all heads: the score of a head is `q_latent . latent + q_rope . k_rope`, times the scale.

    Axis letters: T tokens, R rows, W page-table width, L layers, P pages, C page size, N query heads, Z size of a
    latent, Y size of the rotary part, I size of an index key.

    Args:
        q_latent: [T, N, Z] queries, multiplied by what makes keys of latents.
        q_rope: [T, N, Y] rotary parts of the queries, rotated.
        latent: [T, Z] the new tokens' latents, normalised.
        k_rope: [T, Y] their rotary parts, rotated.
        kv_cache: [L, P, C, Z + Y + I], or as `latent_cache_shape` says for the implementation; all finite (begin with
            zeros). Donate it to have it updated in place.
        layer: which layer of the cache.
        batch: where each token sits.
        options: see `LatentOptions`.
        index: what chooses the keys that each token sees, of those up to itself; None: it sees all of them.
        implementation: a name in `LATENT_BACKENDS`; never replaced by another.

    Returns:
        [T, N, Z] weighted sums of latents in the dtype of `q_latent` (padding tokens unspecified but finite), and the
        updated cache.

    Raises:
        KeyError: no implementation of that name.
        ValueError: the implementation lacks what is asked for, see `LatentFeature`, or attention to chosen keys.
    """
    arrays = (q_latent, q_rope, latent, k_rope, kv_cache)
    if index is not None:
        return indexed_latent_attention(*arrays, layer, batch, options, index, implementation=implementation)[:2]
    # The name in profiles and in compiled programs.
    with jax.named_scope("latent_attention"):
        return _backend(implementation, options).call(*arrays, layer, batch, options)


def indexed_latent_attention(
    q_latent: jax.Array,
    q_rope: jax.Array,
    latent: jax.Array,
    k_rope: jax.Array,
    kv_cache: jax.Array,
    layer: int | jax.Array,
    batch: RaggedBatch,
    options: LatentOptions,
    index: KeyIndex | ChosenKeys,
    *,
    implementation: str = "xla",
) -> tuple[jax.Array, jax.Array, ChosenKeys]:
    """`latent_attention` to chosen keys, which are returned, too: layers after this one may have the same.

    Where no request can have more keys than may be chosen, all are seen, and what is returned means nothing but that.

    Raises:
        KeyError: no implementation of that name.
        ValueError: the implementation lacks what is asked for, see `LatentFeature`, or attention to chosen keys.
    """
    with jax.named_scope("latent_attention"):
        backend, arrays = _backend(implementation, options, index), (q_latent, q_rope, latent, k_rope, kv_cache)
        if backend.call_indexed is None:
            raise ValueError(f"latent attention {implementation!r} does not support an index of keys")
        return backend.call_indexed(*arrays, layer, batch, options, index)


def _backend(implementation: str, options: LatentOptions, index: KeyIndex | ChosenKeys | None = None) -> LatentBackend:
    backend, asked = get_latent_backend(implementation), _features(options, index)
    if asked - backend.supports:
        raise ValueError(f"latent attention {implementation!r} does not support {', '.join(asked - backend.supports)}")
    return backend


def _features(options: LatentOptions, index: KeyIndex | ChosenKeys | None) -> frozenset[LatentFeature]:
    """What a call needs of an implementation."""
    asked: dict[LatentFeature, bool] = {
        "sinks": options.sinks is not None,
        "windows": bool(options.window),
        "latents of other layers": not options.writes,
        "an index of groups of keys": index is not None and index.pool > 1,
    }
    return frozenset(name for name, is_asked in asked.items() if is_asked)


def latent_cache_shape(implementation: str, geometry: LatentGeometry) -> tuple[int, ...]:
    """Shape of the cache that `implementation` reads and writes, see `LatentBackend.cache_shape`."""
    return get_latent_backend(implementation).cache_shape(geometry)


def prepare_latent(implementation: str, batch: RaggedBatch, num_heads: int, most_short: int) -> RaggedBatch:
    """A batch for all layers of a step, in place of `batch` in `latent_attention`: see `LatentBackend.prepare`."""
    return get_latent_backend(implementation).prepare(batch, num_heads, most_short)
