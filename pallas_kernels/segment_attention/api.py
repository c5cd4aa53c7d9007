"""Attention of every token to all tokens of its own text, before and after it."""

from typing import Protocol

import jax

from jaxllm.pallas_kernels.segment_attention.reference import reference_segment_attention
from jaxllm.pallas_kernels.segment_attention.relative import RelativeScores
from jaxllm.pallas_kernels.segment_attention.segments import Segments
from jaxllm.pallas_kernels.segment_attention.xla import xla_segment_attention


class SegmentAttention(Protocol):
    """The protocol of every implementation: `segment_attention` without the choice."""

    def __call__(
        self,
        q: jax.Array,
        k: jax.Array,
        v: jax.Array,
        segments: Segments,
        *,
        scale: float,
        window: int | None = None,
        relative: RelativeScores | None = None,
    ) -> jax.Array:
        """See `segment_attention`."""
        ...


IMPLEMENTATIONS: dict[str, SegmentAttention] = {
    "reference": reference_segment_attention,
    "xla": xla_segment_attention,
}
"""`reference` is slow and obvious, `xla` runs everywhere. There is no kernel for TPUs or GPUs yet."""


def segment_attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    segments: Segments,
    *,
    scale: float,
    window: int | None = None,
    relative: RelativeScores | None = None,
    implementation: str = "xla",
) -> jax.Array:
    """Bidirectional attention within each text of a flattened batch.

    Axis letters: T tokens, N heads, H head size.

    Args:
        q: [T, N, H] queries.
        k: [T, N, H] keys.
        v: [T, N, H] values.
        segments: where each text lies.
        scale: factor on the scores, usually H ** -0.5.
        window: a token sees keys at most this far away, on both sides; None: all of its text.
        relative: what is added to the scores, before the factor, by the distance of query and key.
        implementation: a name in `IMPLEMENTATIONS`.

    Returns:
        [T, N, H] in the dtype of `q`; padding tokens are unspecified but finite.

    Raises:
        KeyError: no implementation of that name.
    """
    return IMPLEMENTATIONS[implementation](q, k, v, segments, scale=scale, window=window, relative=relative)
