"""Attention of every token to all tokens of its own text, before and after it."""

from collections.abc import Mapping
from importlib import import_module
from typing import Protocol, cast

import jax

from jaxllm.pallas_kernels.segment_attention.relative import RelativeScores
from jaxllm.pallas_kernels.segment_attention.segments import Segments


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


IMPLEMENTATIONS: Mapping[str, tuple[str, str]] = {
    "reference": ("reference", "reference_segment_attention"),
    "xla": ("xla", "xla_segment_attention"),
    "tpu": ("tpu", "tpu_segment_attention"),
    "triton": ("triton", "triton_segment_attention"),
}
"""Module and function of each: `reference` is slow and obvious, `xla` runs everywhere. The kernels for TPUs and GPUs
have no windows, and are for segments that are the same whatever else is computed."""


def _get(implementation: str) -> SegmentAttention:
    """An implementation by its name. Others are not imported. Raises `KeyError` where there is none."""
    module, function = IMPLEMENTATIONS[implementation]
    return cast(SegmentAttention, getattr(import_module(f"{__package__}.{module}"), function))


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
    return _get(implementation)(q, k, v, segments, scale=scale, window=window, relative=relative)
