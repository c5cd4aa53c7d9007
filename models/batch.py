"""The input of one forward pass."""

from dataclasses import dataclass

import jax
from jax.tree_util import register_dataclass

from jaxllm.pallas_kernels.paged_attention.ragged import RaggedBatch


@register_dataclass
@dataclass(frozen=True)
class Batch:
    """Tokens of one step: `token_ids` int32 [T], and where each of them sits."""

    token_ids: jax.Array
    ragged: RaggedBatch
