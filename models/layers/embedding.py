"""Token embedding, which may also serve as the output layer."""

from functools import partial
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import lax
from jax.sharding import PartitionSpec

from jaxllm.models.batch import GivenEmbeddings
from jaxllm.models.config import ModelConfig
from jaxllm.models.forward_context import ALL_ROWS, ForwardContext
from jaxllm.models.layers.linear import Linear
from jaxllm.models.layers.matrix import Matrix
from jaxllm.models.layers.norm import make_norm
from jaxllm.models.layers.parameter import Rows, parameter
from jaxllm.models.options import ForwardOptions
from jaxllm.models.sharding import (
    MODEL,
    model_parallel,
    over_model,
    padded_tokens,
    padded_vocab,
    partition,
    sharding,
    token_axis,
)
from jaxllm.pallas_kernels.linear import Weight, choose_layout

if TYPE_CHECKING:
    from jaxllm.pallas_kernels.linear.quantized import QuantizedLayout
    from jaxllm.pallas_kernels.linear.weight_type import WeightType


def vocab_rows(config: ModelConfig, options: ForwardOptions) -> Rows:
    """The sum of a matrix with a row per token, so that the vocabulary can be split."""
    return Rows(padding=padded_vocab(config, model_parallel(options.mesh)) - config.vocab_size)


def output_rows(config: ModelConfig, options: ForwardOptions) -> Rows:
    """The same of an output layer, which may have fewer tokens."""
    count = config.output_tokens
    return Rows(padding=padded_tokens(count, model_parallel(options.mesh)) - count)


class Embedding(Matrix):
    """`weight` [V, D], one row per token. With `is_output` the output layer uses it too."""

    def __init__(
        self, config: ModelConfig, options: ForwardOptions, *, dtype: jnp.dtype, is_output: bool = False
    ) -> None:
        rows = vocab_rows(config, options)
        shape = (config.vocab_size + rows.padding, config.embedding_size)
        self.is_native = is_output and options.native_matmul
        layout = choose_layout(shape, dtype, native=self.is_native, multiplies_pairs=options.multiplies_pairs)
        super().__init__(layout, dtype, ("vocab", "hidden"), rows, options)
        self.dtype = dtype

    def quantized_layout(self, kind: "WeightType") -> "QuantizedLayout":
        """See `Matrix`."""
        # Few models are quantized: starts of others are faster without the import.
        from jaxllm.pallas_kernels.linear.quantized_layouts import choose_quantized_layout

        rows, size = self.layout.shape
        return choose_quantized_layout((rows, size), kind, native=self.is_native)

    def __call__(self, token_ids: jax.Array) -> jax.Array:
        """Rows [T, D] of `token_ids` int32 [T]."""
        if model_parallel(self.mesh) == 1:
            return self.layout.rows(self.matrix, token_ids).astype(self.dtype)
        assert self.mesh is not None
        axis = token_axis(self.mesh, len(token_ids))
        look_up = over_model(
            partial(_look_up_shard, splits=axis is not None),
            self.mesh,
            (self.partitions(), PartitionSpec()),
            partition(axis, "hidden"),
        )
        rows: jax.Array = look_up(self.matrix, token_ids).astype(self.dtype)
        return rows


class TokenEmbedding(Embedding):
    """What a decoder's first layer gets: rows of tokens, scaled, with learned positions and a norm if it has them."""

    def __init__(self, config: ModelConfig, options: ForwardOptions, *, dtype: jnp.dtype) -> None:
        super().__init__(config, options, dtype=dtype, is_output=config.tie_word_embeddings)
        plan = config.embedding
        self.scale, self.scaled, self.offset = plan.scale, plan.scaled, plan.position_offset
        rows, size = plan.positions + plan.position_offset, config.hidden_size
        summed = config.embedding_size if plan.projects_sum else size
        self.positions = Table(rows, summed, dtype, options) if plan.positions else None
        self.sinusoids = plan.sinusoids
        self.types = Table(plan.token_types, summed, dtype, options) if plan.token_types else None
        self.norm = make_norm(plan.norm, summed, dtype=dtype, options=options)
        project = partial(Linear, config.embedding_size, size, bias=plan.projects_sum, axes=(None, None))
        self.projection = project(dtype=dtype, options=options) if plan.size else None
        self.projects_sum = plan.projects_sum

    def __call__(
        self,
        token_ids: jax.Array,
        positions: jax.Array | None = None,
        given: GivenEmbeddings | None = None,
        context: ForwardContext = ALL_ROWS,
    ) -> jax.Array:
        """Hidden states [T, D] of `token_ids` int32 [T] at `positions` int32 [T].

        Rows that are `given` stand in place of those of the table.
        """
        x = super().__call__(token_ids)
        if given is not None and not self.scaled:
            x = _with_given(x, given)
        if self.projection is not None and not self.projects_sum:
            x = self.projection(x, context)
        if self.scale != 1.0:
            x = x * jnp.asarray(self.scale, x.dtype)
        if given is not None and self.scaled:
            x = _with_given(x, given)
        if self.positions is not None:
            assert positions is not None
            x = x + self.positions(positions + self.offset)
        if self.sinusoids is not None:
            assert positions is not None
            x = x + sinusoids(positions + self.offset, x.shape[1], self.sinusoids).astype(x.dtype)
        if self.types is not None:
            x = x + self.types(jnp.zeros_like(token_ids))
        x = self.norm(x)
        return self.projection(x, context) if self.projection is not None and self.projects_sum else x


def sinusoids(positions: jax.Array, size: int, slowest: float) -> jax.Array:
    """Sines and then cosines of `positions` int32 [T], float32 [T, size], see `EmbeddingPlan.sinusoids`."""
    turns = np.float32(10000.0) ** (-np.arange(size // 2, dtype=np.float32) / np.float32(slowest))
    angles = positions.astype(jnp.float32)[:, None] * turns
    return jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], axis=-1)


def _with_given(x: jax.Array, given: GivenEmbeddings) -> jax.Array:
    return jnp.where(given.is_given[:, None], given.rows.astype(x.dtype), x)


class Bias(nnx.Module):
    """`bias` [V] of an output layer that the embedding serves for, with rows as `vocab_rows` has them."""

    def __init__(self, size: int, rows: Rows, options: ForwardOptions, *, dtype: jnp.dtype) -> None:
        self.bias = parameter((size,), dtype, sharding(options.mesh, "vocab"), rows)


class Table(nnx.Module):
    """`weight` [rows, D], whose rows are looked up; an index beyond the last row takes the last."""

    def __init__(self, rows: int, size: int, dtype: jnp.dtype, options: ForwardOptions) -> None:
        self.weight = parameter((rows, size), dtype, sharding(options.mesh, None, None))

    def __call__(self, index: jax.Array) -> jax.Array:
        """Rows [T, D] of `index` int32 [T]."""
        return jnp.take(self.weight[...], index, axis=0, mode="clip")


def _look_up_shard(weight: Weight, token_ids: jax.Array, *, splits: bool) -> jax.Array:
    """Each device gives the rows it has; the others' are zero. The sum is the whole, or each device's part of it."""
    count = weight.array.shape[0]
    place = token_ids - lax.axis_index(MODEL) * count
    is_here = (place >= 0) & (place < count)
    rows = weight.layout.rows(weight, place)
    known = jnp.where(is_here[:, None], rows, 0)
    return lax.psum_scatter(known, MODEL, tiled=True) if splits else lax.psum(known, MODEL)
