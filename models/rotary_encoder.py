"""Encoders made of decoders' layers that see both sides, after embeddings of tokens and of types."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from flax import nnx

from jaxllm.models.batch import PackedSequences
from jaxllm.models.cache import Cache
from jaxllm.models.cache_plan import plan_cache
from jaxllm.models.config import ModelConfig
from jaxllm.models.layers.adapter_slots import add_adapter_slots
from jaxllm.models.layers.embedding import Embedding, Table
from jaxllm.models.layers.fused_decoder import make_decoder_layer
from jaxllm.models.layers.norm import make_norm
from jaxllm.models.layers.rope import rotation
from jaxllm.models.options import ForwardOptions
from jaxllm.models.plan import LayerPlan
from jaxllm.models.stack import LayerInputs, make_stack, ropes_of
from jaxllm.pallas_kernels.paged_attention import RaggedBatch
from jaxllm.pallas_kernels.segment_attention.segments import Segments


@dataclass(frozen=True, kw_only=True)
class RotaryEncoderConfig(ModelConfig):
    """The additions of such an encoder: the number of token types, 0 for none. `norm` is that of the embeddings."""

    token_types: int = 0


class RotaryEncoder(nnx.Module):
    """Embeddings of tokens and types, a norm, layers."""

    def __init__(self, config: ModelConfig, options: ForwardOptions, dtype: jnp.dtype) -> None:
        assert isinstance(config, RotaryEncoderConfig)
        assert not any(layer.attention.is_causal for layer in config.layers)
        self.config, self.max_model_len = config, options.max_model_len
        self.embedding = Embedding(config, options, dtype=dtype)
        self.types = Table(config.token_types, config.hidden_size, dtype, options) if config.token_types else None
        self.norm = make_norm(config.norm, config.hidden_size, dtype=dtype, options=options)

        def make_one(plan: LayerPlan) -> nnx.Module:
            layer = make_decoder_layer(config, plan, options, dtype)
            return layer if options.adapters is None else add_adapter_slots(layer, options.adapters)

        self.layers = make_stack(options.stack, make_one, config.layers, plan_cache(config.layers, by_window=False))

    def __call__(self, texts: PackedSequences) -> jax.Array:
        """Hidden states [T, D] of the last layer."""
        config, segments = self.config, texts.segments
        x = self.embedding(texts.token_ids)
        if self.types is not None:
            x = x + self.types(texts.token_types)
        rotations = tuple(
            rotation(rope, config.head_size, self.max_model_len, segments.positions) for rope in ropes_of(config.layers)
        )
        # There is no cache: attention to both sides has all of a text at hand.
        views = {self.layers.view(0): _without_pages(segments)}
        told = LayerInputs(rotations, views, None, per_token=texts.context)
        x, _ = self.layers(self.norm(x), told, Cache((jnp.zeros((), x.dtype),)))
        return x


def _without_pages(segments: Segments) -> RaggedBatch:
    """Whole texts as a batch whose page table is never read."""
    lengths = segments.lengths
    return RaggedBatch(
        positions=segments.positions,
        token_rows=segments.rows,
        query_start=segments.starts,
        kv_lens=lengths,
        page_table=jnp.zeros((lengths.shape[0], 1), jnp.int32),
        num_tokens=segments.num_tokens,
        num_decodes=jnp.sum(lengths == 1, dtype=jnp.int32),
        num_requests=segments.num_rows,
    )
