"""The indexes that choose keys for grouped-query attention, see `BlockIndexPlan` and `GroupIndexPlan`."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
from flax import nnx

from jaxllm.models.attention_plan import AttentionPlan, BlockIndexPlan, GroupIndexPlan
from jaxllm.models.config import ModelConfig
from jaxllm.models.forward_context import LayerContext
from jaxllm.models.layers.attention import Attention
from jaxllm.models.layers.linear import Linear
from jaxllm.models.layers.norm import AnyNorm, RMSNorm, make_norm
from jaxllm.models.layers.parameter import Rows
from jaxllm.models.layers.rope import Rotation, frequencies, pair_order, rotate
from jaxllm.models.options import ForwardOptions
from jaxllm.models.sharding import model_parallel, split_kv_heads
from jaxllm.pallas_kernels.paged_attention import BlockIndex, GroupIndex


class BlockIndexer(nnx.Module):
    """Products and norms that make a query for each KV head of a token, and one key.

    Devices share the queries as they do KV heads; each has the whole key.
    """

    def __init__(self, config: ModelConfig, plan: AttentionPlan, options: ForwardOptions, *, dtype: jnp.dtype) -> None:
        index = plan.index
        assert isinstance(index, BlockIndexPlan)
        _check(config, plan, index.size)
        given = config.kv_heads_of(plan)
        heads = split_kv_heads(given, model_parallel(options.mesh))
        self.plan = index
        rows = Rows(group=index.size, order=pair_order(plan.rope, index.size))
        linear = partial(Linear, config.hidden_size, bias=False, dtype=dtype, options=options)
        repeated = replace(rows, times=heads // given)
        self.query = linear(heads * index.size, axes=("heads", "hidden"), rows=repeated)
        self.key = linear(index.size, axes=(None, "hidden"), rows=rows)
        norm = partial(make_norm, index.norm, index.size, dtype=dtype, options=options, rows=rows)
        self.query_norm, self.key_norm = norm(), norm()

    def __call__(self, x: jax.Array, context: LayerContext) -> BlockIndex:
        """The index of tokens `x` [T, D]."""
        plan, forward = self.plan, context.forward
        query = self._turned(self.query(x, forward), self.query_norm, context)
        key = self._turned(self.key(x, forward), self.key_norm, context)[:, 0]
        return BlockIndex(query, key, plan.block, plan.top, plan.local)

    def _turned(self, x: jax.Array, norm: AnyNorm, context: LayerContext) -> jax.Array:
        """Heads [T, heads, I], normalised and rotated, from what a product gives."""
        return _rotated(norm(x.reshape(len(x), -1, self.plan.size)), context.rotation)


class GroupIndexer(nnx.Module):
    """Products and norms that make a token's queries, and one key. Each device has all of them."""

    def __init__(self, config: ModelConfig, plan: AttentionPlan, options: ForwardOptions, *, dtype: jnp.dtype) -> None:
        index, rope = plan.index, plan.rope
        assert isinstance(index, GroupIndexPlan)
        assert rope is not None
        assert not rope.sections, "a group is rotated as at one position"
        assert not rope.learns, "and by frequencies that are known"
        _check(config, plan, index.size)
        self.plan = index
        rows = Rows(group=index.size, order=pair_order(rope, index.size))
        linear = partial(Linear, config.hidden_size, bias=False, dtype=dtype, options=options)
        self.query = linear(index.heads * index.size, axes=(None, "hidden"), rows=rows)
        self.key = linear(index.size, axes=(None, "hidden"), rows=rows)
        norm = partial(make_norm, index.norm, index.size, dtype=dtype, options=options, rows=rows)
        self.query_norm, self.key_norm = norm(), norm()
        turns, self.factor = frequencies(rope, config.head_size_of(plan), options.max_model_len)
        self.frequencies = tuple(map(float, turns))

    def __call__(self, x: jax.Array, context: LayerContext) -> GroupIndex:
        """The index of tokens `x` [T, D]."""
        plan, forward = self.plan, context.forward
        query = self.query_norm(self.query(x, forward).reshape(len(x), -1, plan.size))
        assert isinstance(self.key_norm, RMSNorm)
        return GroupIndex(
            _rotated(query, context.rotation),
            self.key(x, forward),
            self.key_norm.norm.weight,
            plan.block,
            plan.top,
            plan.norm.eps,
            self.frequencies,
            self.factor,
        )


def _check(config: ModelConfig, plan: AttentionPlan, size: int) -> None:
    assert size <= config.head_size_of(plan), "index keys are cached as keys are"
    is_other = plan.window or plan.sinks or plan.alibi is not None or plan.source is not None or not plan.is_causal
    assert not is_other, "keys are chosen among all of a layer"


def _rotated(heads: jax.Array, rotation: Rotation | None) -> jax.Array:
    """Heads [T, heads, I] of an index, which may be shorter than those of attention: their other pairs stay."""
    if rotation is None:
        return heads
    cos, sin = (each[:, : heads.shape[2] // 2] for each in rotation)
    return rotate(heads, (cos, sin))


class IndexedAttention(Attention):
    """`Attention` to the keys that an index chooses."""

    def __init__(self, config: ModelConfig, plan: AttentionPlan, options: ForwardOptions, *, dtype: jnp.dtype) -> None:
        assert plan.experts is None, "experts' queries are not those of an index"
        super().__init__(config, plan, options, dtype=dtype)
        kind = GroupIndexer if isinstance(plan.index, GroupIndexPlan) else BlockIndexer
        self.indexer = kind(config, plan, options, dtype=dtype)

    def __call__(self, x: jax.Array, kv_cache: jax.Array, context: LayerContext) -> tuple[jax.Array, jax.Array]:
        """See `Attention`."""
        parts = self.parts.split(self.query_key_value(x, context.forward))
        attended, kv_cache = self.attend_parts(parts, kv_cache, context, self.indexer(x, context))
        return self.output(attended, context.forward), kv_cache
