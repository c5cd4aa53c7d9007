"""Segment attention the obvious way: every token against every token, most of it masked."""

import jax
import jax.numpy as jnp

from jaxllm.pallas_kernels.segment_attention.relative import RelativeScores, scores_by_distance
from jaxllm.pallas_kernels.segment_attention.segments import Segments


def reference_segment_attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    segments: Segments,
    *,
    scale: float,
    window: int | None = None,
    relative: RelativeScores | None = None,
) -> jax.Array:
    """See `segment_attention`. Time and memory grow with T x T."""
    place = jnp.arange(q.shape[0], dtype=jnp.int32)
    is_token = place < segments.num_tokens
    visible = (segments.rows[:, None] == segments.rows) & is_token[:, None] & is_token
    if window is not None:
        visible &= jnp.abs(place[:, None] - place) <= window
    wide = (each.astype(jnp.float32) for each in (q, k, v))
    queries, keys, values = wide
    products = jnp.einsum("tnh,snh->nts", queries, keys)
    if relative is not None:
        by_query, by_key = (
            None if each is None else each.transpose(1, 0, 2) for each in (relative.by_query, relative.by_key)
        )
        products += scores_by_distance(by_query, by_key, relative.bucket(place[:, None] - place))
    scores = jnp.where(visible, products * scale, -jnp.inf)
    weights = jnp.where(visible, jax.nn.softmax(scores, axis=-1), 0.0)
    return jnp.einsum("nts,snh->tnh", weights, values).astype(q.dtype)
