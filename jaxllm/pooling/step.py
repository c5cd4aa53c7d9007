"""The device side of one step of a pooling engine: forward pass, pooling and what follows it, in one executable.

Axis letters: T tokens, R rows (texts), D hidden size, O numbers per result (of an embedding, or the labels of a
classifier, which are at most so many where adapters have others).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxllm.executor.compile.buckets import Bucket
from jaxllm.executor.media_programs import with_media
from jaxllm.executor.packed_layout import PackedLayout
from jaxllm.models.batch import PackedSequences, TextMedia
from jaxllm.models.options import AdapterShape
from jaxllm.models.pooling_model import PoolingModel
from jaxllm.pallas_kernels.low_rank import TokenSlots
from jaxllm.pallas_kernels.segment_attention.segments import Segments
from jaxllm.pooling.settings import PoolingSettings

Merge = Callable[[Any, Any], PoolingModel]
"""Makes a model of its parameters and the arrays of its adapter slots."""

FINISH_ROWS = 64
"""Hidden states of single tokens that one call of `make_finish`'s function takes."""


@dataclass(frozen=True)
class PoolingShape:
    """Shared by all step executables of a pooling engine."""

    settings: PoolingSettings
    adapters: AdapterShape | None = None
    """Slots for adapters, if there are any."""
    hidden_size: int = 0
    """Of the model's layers, where rows of images may stand in place of tokens; 0 elsewhere."""
    has_grid_positions: bool = False
    """Whether such rows turn by their places in an image."""
    sees_spans: bool = False
    """Whether tokens may see later ones of their span."""

    @property
    def sees_images(self) -> bool:
        """Whether texts may have images."""
        return self.hidden_size > 0

    def layout(self, bucket: Bucket) -> PackedLayout:
        """The packed input of a bucket. `sizes` are dimensions to keep, `flags` 1 for normalisation or activation.

        `adapter_slots` are there where there are slots, -1 for rows without an adapter. `media_rows` are 1 + the row of
        the pool in place of each token, or 0; for the others see `TextMedia`.
        """
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
                **({} if self.adapters is None else {"adapter_slots": ((rows,), np.int32)}),
                **({"media_rows": ((tokens,), np.int32)} if self.sees_images else {}),
                **({"rotary_offsets": ((3, tokens), np.int32)} if self.has_grid_positions else {}),
                **({"visible_until": ((tokens,), np.int32)} if self.sees_spans else {}),
            }
        )

    @property
    def media_fields(self) -> tuple[str, ...]:
        """The fields that say something of images, for each token."""
        others = (("rotary_offsets", self.has_grid_positions), ("visible_until", self.sees_spans))
        return ("media_rows", *(name for name, is_there in others if is_there)) if self.sees_images else ()

    def media_of(self, inputs: Mapping[str, jax.Array], pool: Sequence[jax.Array]) -> TextMedia | None:
        """The rows of images in a step, of the one pool [E, n * D] that there is where texts may have images."""
        if not self.sees_images:
            return None
        given, added = with_media(None, pool[0], inputs["media_rows"], self.hidden_size)
        return TextMedia(given, added, inputs.get("rotary_offsets"), inputs.get("visible_until"))

    def slots_of(self, slots: jax.Array) -> TokenSlots | None:
        """Slots of tokens or of rows as products take them, where there are any."""
        shape = self.adapters
        return None if shape is None else TokenSlots.of(slots, shape.num_slots, shape.rank)


def make_step(merge: Merge, shape: PoolingShape, bucket: Bucket) -> Callable[..., Any]:
    """The function of one bucket, which takes `(parameters, adapters, media, packed)`.

    It returns results float32 [R, O] and hidden states [T, D]. For a model with results per token, results are [T, O]
    and there are no hidden states. `media` is a tuple of the pool of images' rows, empty for a model of text alone.
    """
    layout = shape.layout(bucket)

    def step(parameters: Any, adapters: Any, media: Any, packed: jax.Array) -> tuple[jax.Array, jax.Array]:
        model = merge(parameters, adapters)
        inputs = layout.unpack(packed)
        segments = Segments(*(inputs[name] for name in ("starts", "rows", "num_tokens", "num_rows")))
        of_rows = of_tokens = None
        if shape.adapters is not None:
            slots = inputs["adapter_slots"]
            is_token = jnp.arange(bucket.tokens, dtype=jnp.int32) < segments.num_tokens
            of_rows, of_tokens = map(shape.slots_of, (slots, jnp.where(is_token, slots[segments.rows], -1)))
        rows = shape.media_of(inputs, media)
        hidden = model(PackedSequences(inputs["token_ids"], inputs["token_types"], segments, of_tokens, rows))
        task, sizes, flags = shape.settings.tasks[0], inputs["sizes"], inputs["flags"]
        if shape.settings.of_tokens:
            sizes, flags, states = sizes[segments.rows], flags[segments.rows], hidden.astype(jnp.float32)
            return finish(model, shape.settings, task, states, sizes, flags, of_tokens), hidden[:0]
        pooled = pool(hidden, segments, shape.settings.pooling_type)
        return finish(model, shape.settings, task, pooled, sizes, flags, of_rows), hidden

    return step


def make_finish(merge: Merge, shape: PoolingShape, task: str) -> Callable[..., Any]:
    """The function `(parameters, adapters, hidden, sizes, flags, slots) -> results`, all of 64 rows.

    It is what `finish` does, for tokens; `slots` are those of their adapters.
    """

    def of_tokens(parameters: Any, adapters: Any, *given: jax.Array) -> jax.Array:
        hidden, sizes, flags, slots = given
        return finish(merge(parameters, adapters), shape.settings, task, hidden, sizes, flags, shape.slots_of(slots))

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
    model: PoolingModel,
    settings: PoolingSettings,
    task: str,
    pooled: jax.Array,
    sizes: jax.Array,
    flags: jax.Array,
    adapters: TokenSlots | None,
) -> jax.Array:
    """Results float32 [R, O] of hidden states float32 [R, D], pooled or of tokens: embeddings, or scores of classes.

    An embedding keeps its first `sizes` numbers, the others are 0, and has length 1 where `flags` says so. Scores
    become probabilities where `flags` says so; those of a row are the first `sizes`. `adapters` are the slots of the
    rows' adapters.
    """
    flagged = (flags > 0)[:, None]
    if task in ("embed", "token_embed"):
        vectors = model.project(pooled) if task == "embed" else model.project_tokens(pooled)
        kept = jnp.where(jnp.arange(vectors.shape[1], dtype=jnp.int32) < sizes[:, None], vectors, 0.0)
        length = jnp.sqrt(jnp.sum(kept * kept, axis=-1, keepdims=True))
        return jnp.where(flagged, kept / jnp.maximum(length, 1e-12), kept)
    if settings.use == "embed":
        return model.lexical_weights(pooled)
    scores = model.scores(pooled, adapters)
    if adapters is None:
        return jnp.where(flagged, _probabilities(scores, settings), scores)
    # Rows that are none have a size of 0.
    labels = jnp.maximum(sizes, 1)[:, None]
    own = jnp.where(jnp.arange(scores.shape[1], dtype=jnp.int32) < labels, scores, -jnp.inf)
    return jnp.where(flagged, _probabilities(own, settings, labels), scores)


def _probabilities(scores: jax.Array, settings: PoolingSettings, labels: jax.Array | None = None) -> jax.Array:
    """What the classifier's activation makes of scores [R, O]; labels beyond those of a row, int32 [R, 1], are -inf."""
    match settings.activation:
        case "none":
            return scores
        case "sigmoid":
            return jax.nn.sigmoid(scores)
        case "softmax":
            return jax.nn.softmax(scores, axis=-1)
    if labels is None:
        return jax.nn.sigmoid(scores) if settings.num_labels == 1 else jax.nn.softmax(scores, axis=-1)
    return jnp.where(labels == 1, jax.nn.sigmoid(scores), jax.nn.softmax(scores, axis=-1))
