"""The device side of one step of a pooling engine: forward pass, pooling and what follows it, in one executable.

Axis letters: T tokens, R rows (texts), D hidden size, O numbers per result (of an embedding, or the labels of a
classifier).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxllm.executor.compile.buckets import Bucket
from jaxllm.executor.packed_layout import PackedLayout
from jaxllm.models.batch import PackedSequences
from jaxllm.models.pooling_model import PoolingModel
from jaxllm.pallas_kernels.segment_attention.segments import Segments
from jaxllm.pooling.settings import PoolingSettings

FINISH_ROWS = 64
"""Hidden states of single tokens that one call of `make_finish`'s function takes."""


@dataclass(frozen=True)
class PoolingShape:
    """Shared by all step executables of a pooling engine."""

    settings: PoolingSettings

    def layout(self, bucket: Bucket) -> PackedLayout:
        """The packed input of a bucket. `sizes` are dimensions to keep, `flags` 1 for normalisation or activation."""
        tokens, rows = bucket.tokens, bucket.rows
        return PackedLayout(
            {
                "token_ids": ((tokens,), np.int32),
                "token_types": ((tokens,), np.int32),
                "rows": ((tokens,), np.int32),
                "starts": ((rows + 1,), np.int32),
                "num_tokens": ((), np.int32),
                "num_rows": ((), np.int32),
                "sizes": ((rows,), np.int32),
                "flags": ((rows,), np.int32),
            }
        )


def make_step(graph: nnx.GraphDef[PoolingModel], shape: PoolingShape, bucket: Bucket) -> Callable[..., Any]:
    """The function `(parameters, packed) -> (results float32 [R, O], hidden states [T, D])` of one bucket.

    For a model with results per token, results are [T, O] and there are no hidden states.
    """
    layout = shape.layout(bucket)

    def step(parameters: Any, packed: jax.Array) -> tuple[jax.Array, jax.Array]:
        model = nnx.merge(graph, parameters)
        inputs = layout.unpack(packed)
        segments = Segments(*(inputs[name] for name in ("starts", "rows", "num_tokens", "num_rows")))
        hidden = model(PackedSequences(inputs["token_ids"], inputs["token_types"], segments))
        settings, sizes, flags = shape.settings, inputs["sizes"], inputs["flags"]
        if settings.of_tokens:
            sizes, flags = sizes[segments.rows], flags[segments.rows]
            return finish(model, settings, settings.tasks[0], hidden.astype(jnp.float32), sizes, flags), hidden[:0]
        pooled = pool(hidden, segments, settings.pooling_type)
        return finish(model, settings, settings.tasks[0], pooled, sizes, flags), hidden

    return step


def make_finish(graph: nnx.GraphDef[PoolingModel], shape: PoolingShape, task: str) -> Callable[..., Any]:
    """The function `(parameters, hidden, sizes, flags) -> results`, all of 64 rows: what `finish` does, for tokens."""

    def of_tokens(parameters: Any, hidden: jax.Array, sizes: jax.Array, flags: jax.Array) -> jax.Array:
        return finish(nnx.merge(graph, parameters), shape.settings, task, hidden, sizes, flags)

    return of_tokens


def pool(hidden: jax.Array, segments: Segments, pooling_type: str) -> jax.Array:
    """One vector of each text, float32 [R, D], from hidden states [T, D]."""
    if pooling_type == "mean":
        rows = segments.starts.shape[0] - 1
        is_token = jnp.arange(hidden.shape[0], dtype=jnp.int32) < segments.num_tokens
        wide = jnp.where(is_token[:, None], hidden.astype(jnp.float32), 0.0)
        total = jax.ops.segment_sum(wide, segments.rows, rows, indices_are_sorted=False)
        return total / jnp.maximum(segments.lengths, 1).astype(jnp.float32)[:, None]
    place = segments.starts[:-1] if pooling_type == "cls" else jnp.maximum(segments.starts[1:] - 1, 0)
    return jnp.take(hidden, place, axis=0, mode="clip").astype(jnp.float32)


def finish(
    model: PoolingModel, settings: PoolingSettings, task: str, pooled: jax.Array, sizes: jax.Array, flags: jax.Array
) -> jax.Array:
    """Results float32 [R, O] of hidden states float32 [R, D], pooled or of tokens: embeddings, or scores of classes.

    An embedding keeps its first `sizes` numbers, the others are 0, and has length 1 where `flags` says so. Scores
    become probabilities where `flags` says so.
    """
    flagged = (flags > 0)[:, None]
    if task in ("embed", "token_embed"):
        vectors = model.project(pooled) if task == "embed" else model.project_tokens(pooled)
        kept = jnp.where(jnp.arange(vectors.shape[1], dtype=jnp.int32) < sizes[:, None], vectors, 0.0)
        length = jnp.sqrt(jnp.sum(kept * kept, axis=-1, keepdims=True))
        return jnp.where(flagged, kept / jnp.maximum(length, 1e-12), kept)
    if settings.use == "embed":
        return model.lexical_weights(pooled)
    scores = model.scores(pooled)
    if settings.activation == "softmax":
        return jnp.where(flagged, jax.nn.softmax(scores, axis=-1), scores)
    return jnp.where(flagged, jax.nn.sigmoid(scores), scores) if settings.activation == "sigmoid" else scores
