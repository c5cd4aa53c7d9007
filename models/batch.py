"""The input of one forward pass."""

from dataclasses import dataclass

import jax
from jax.tree_util import register_dataclass

from jaxllm.pallas_kernels.paged_attention.ragged import RaggedBatch
from jaxllm.pallas_kernels.segment_attention.segments import Segments


@register_dataclass
@dataclass(frozen=True)
class Batch:
    """Tokens of one step: `token_ids` int32 [T], and where each of them sits."""

    token_ids: jax.Array
    ragged: RaggedBatch


@register_dataclass
@dataclass(frozen=True)
class PackedSequences:
    """Whole texts side by side, for models that keep nothing of them.

    `token_ids` int32 [T]; `token_types` int32 [T], 1 for those of the second of two texts that are read together.
    """

    token_ids: jax.Array
    token_types: jax.Array
    segments: Segments
