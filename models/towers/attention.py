"""Attention in towers, by the kernel that the engine chose.

Axis letters: P patches, N heads, H head size.
"""

from collections.abc import Callable
from functools import partial

import jax
from jax.sharding import PartitionSpec

from jaxllm.models.options import ForwardOptions
from jaxllm.models.sharding import over_model
from jaxllm.pallas_kernels.segment_attention.api import segment_attention
from jaxllm.pallas_kernels.segment_attention.segments import Segments


def attend_segments(
    q: jax.Array, k: jax.Array, v: jax.Array, segments: Segments, options: ForwardOptions, *, scale: float
) -> jax.Array:
    """Attention [P, N, H] of every patch to all of its segment, see `segment_attention`.

    Towers are whole on each device of the model axis: each computes all of it.
    """
    backend = options.mm_encoder_attn_backend
    attend: Callable[..., jax.Array] = partial(segment_attention, scale=scale, implementation=backend)
    if options.mesh is not None and backend in ("tpu", "triton"):
        whole = PartitionSpec()
        attend = over_model(attend, options.mesh, (whole,) * 4, whole)
    return attend(q, k, v, segments)
