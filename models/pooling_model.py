"""Models that make vectors or scores of whole texts: a decoder or an encoder, and perhaps a classifier after it."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import DTypeLike

from jaxllm.models.batch import Batch, PackedSequences
from jaxllm.models.cache import Cache
from jaxllm.models.causal_lm import CausalLM
from jaxllm.models.checkpoint.checkpoint import Checkpoint
from jaxllm.models.checkpoint.loading import load_into
from jaxllm.models.checkpoint.names import CheckpointNames
from jaxllm.models.checkpoint.tensor_source import source_of
from jaxllm.models.config import ModelConfig
from jaxllm.models.errors import ModelError
from jaxllm.models.families import registry
from jaxllm.models.families.family import Family, HeadPlan, Names
from jaxllm.models.forward_context import ALL_ROWS, ForwardContext
from jaxllm.models.kv_shape import kv_shape
from jaxllm.models.layers.activation import ACTIVATIONS
from jaxllm.models.layers.adapter_slots import add_adapter_slots
from jaxllm.models.layers.linear import Linear
from jaxllm.models.layers.norm import make_norm
from jaxllm.models.layers.projection import Outputs, Projection, projection_weights
from jaxllm.models.layers.whole_slots import WholeSlots
from jaxllm.models.norm_plan import NormPlan
from jaxllm.models.options import AdapterShape, ForwardOptions
from jaxllm.models.plan import OutputPlan
from jaxllm.pallas_kernels.low_rank import TokenSlots
from jaxllm.pallas_kernels.paged_attention import NULL_PAGE, RaggedBatch
from jaxllm.pallas_kernels.segment_attention.segments import Segments

if TYPE_CHECKING:
    from jaxllm.models.checkpoint.loading import WeightSource


class Decoder(nnx.Module):
    """A decoder-only model without its output layer: every token sees those before it.

    It runs on the kernels of generation, with a paged cache of one layer that lives as long as the step.
    """

    def __init__(self, config: ModelConfig, options: ForwardOptions, dtype: jnp.dtype) -> None:
        # Without the output layer, as if the embedding served for it.
        self.model = CausalLM(replace(config, tie_word_embeddings=True, output=OutputPlan()), options, dtype)
        self.config, self.options, self.dtype = config, options, dtype

    def __call__(self, texts: PackedSequences) -> jax.Array:
        """Hidden states [T, D] after the final norm. Texts of one token come first."""
        tokens, rows = texts.token_ids.shape[0], texts.segments.starts.shape[0] - 1
        config, page_size = self.config, self.options.page_size
        num_pages = 1 + tokens // page_size + rows
        attention, dtype = self.options.attention, self.dtype.name
        # Layers that read the keys of others need them to stay.
        layers = self.model.cache.depth if config.shares_keys else 1
        for_tpu = self.options.platform == "tpu" and len(config.kv_heads) > 1
        layout = {"layers": layers, "pages": num_pages, "page_size": page_size}
        shape = kv_shape(config, attention, **layout, dtype=dtype, for_tpu=for_tpu)
        cache = Cache((jnp.zeros(shape, self.dtype),))
        width = -(-min(self.options.max_model_len, tokens) // page_size)
        pages = consecutive_pages(texts.segments, page_size, width)
        hidden, _ = self.model(_batch(texts, pages), cache)
        return hidden if self.model.projection is None else self.model.projection(hidden, ALL_ROWS)


def _batch(texts: PackedSequences, pages: RaggedBatch) -> Batch:
    """Texts in these pages, and what images bring to them."""
    media = texts.media
    batch = Batch(texts.token_ids, pages, adapters=texts.adapters)
    if media is None:
        return batch
    offsets = media.rotary_offsets
    return replace(
        batch,
        ragged=replace(pages, visible_until=media.visible_until),
        given=media.given,
        rotary_positions=None if offsets is None else pages.positions + offsets,
        added=media.added,
    )


def consecutive_pages(segments: Segments, page_size: int, width: int) -> RaggedBatch:
    """The batch of whole texts for paged attention: each gets the next pages, of a table `width` pages wide.

    A page holds `page_size` tokens.
    """
    lengths = segments.lengths
    needed = (lengths + (page_size - 1)) // page_size
    first = 1 + jnp.cumsum(needed, dtype=jnp.int32) - needed
    column = jnp.arange(width, dtype=jnp.int32)
    return RaggedBatch(
        positions=segments.positions,
        token_rows=segments.rows,
        query_start=segments.starts,
        kv_lens=lengths,
        page_table=jnp.where(column < needed[:, None], first[:, None] + column, NULL_PAGE),
        num_tokens=segments.num_tokens,
        num_decodes=jnp.sum(lengths == 1, dtype=jnp.int32),
        num_requests=segments.num_rows,
    )


class Head(nnx.Module):
    """Scores of texts from their pooled hidden states."""

    def __init__(
        self, config: ModelConfig, plan: HeadPlan, labels: int, options: ForwardOptions, dtype: jnp.dtype
    ) -> None:
        size = config.embedding_size
        linear = partial(Linear, size, dtype=dtype, axes=(None, None), options=options)
        self.activation = plan.activation
        self.dense = linear(size, bias=plan.dense_bias) if plan.dense else None
        norm = NormPlan(kind="layer", eps=plan.norm_eps) if plan.norm else None
        self.norm = make_norm(norm, size, dtype=dtype, options=options)
        self.out = linear(labels, bias=plan.bias)
        slots = options.adapters
        self.whole_dense = _add_slots(self.dense, slots)
        self.whole_out = _add_slots(self.out, slots, 0 if slots is None else slots.most_labels)

    def __call__(self, pooled: jax.Array, adapters: TokenSlots | None = None) -> jax.Array:
        """Map [R, D] to [R, labels], before any softmax. `adapters` are the slots of the rows' adapters.

        There are as many columns as any adapter may have labels.
        """
        context = ForwardContext(adapters=adapters)
        if self.dense is not None:
            pooled = _replaced(self.whole_dense, self.dense(pooled, context), pooled, adapters)
            pooled = jnp.tanh(pooled) if self.activation == "tanh" else ACTIVATIONS[self.activation](pooled)
        pooled = self.norm(pooled)
        return _replaced(self.whole_out, self.out(pooled, context), pooled, adapters)


def _add_slots(linear: Linear | None, shape: AdapterShape | None, most_outputs: int = 0) -> WholeSlots | None:
    """Give a layer of a head slots for products of low rank; returns those for whole layers."""
    if linear is None or shape is None:
        return None
    # Slots of some modules only are those of some modules in layers.
    add_adapter_slots(linear, replace(shape, modules=None))
    return WholeSlots(linear, shape, most_outputs)


def _replaced(whole: WholeSlots | None, base: jax.Array, x: jax.Array, adapters: TokenSlots | None) -> jax.Array:
    return base if whole is None or adapters is None else whole.replace(base, x, adapters)


class PoolingModel(nnx.Module):
    """Hidden states of whole texts, and what is made of them."""

    def __init__(self, config: ModelConfig, options: ForwardOptions, dtype: jnp.dtype, outputs: Outputs) -> None:
        family = registry.lookup(config.architecture)
        self.config, self.dtype = config, dtype
        make: Callable[..., Callable[[PackedSequences], jax.Array]] = family.make_encoder or Decoder
        self.backbone = make(config, options, dtype)
        labels = outputs.labels
        self.head = None if labels is None else Head(config, family.head, labels, options, dtype)
        made = {name: Projection(layers, options) for name, layers in outputs.projections.items()}
        self.projection, self.token_projection = made.get("projection"), made.get("token_projection")
        self.lexical = made.get("lexical")

    def __call__(self, texts: PackedSequences) -> jax.Array:
        """Hidden states [T, D]."""
        return self.backbone(texts)

    def project(self, pooled: jax.Array) -> jax.Array:
        """Pooled hidden states float32 [R, D] as embeddings."""
        return pooled if self.projection is None else self.projection(pooled)

    def project_tokens(self, hidden: jax.Array) -> jax.Array:
        """Hidden states float32 [R, D] of single tokens as embeddings."""
        return hidden if self.token_projection is None else self.token_projection(hidden)

    def lexical_weights(self, hidden: jax.Array) -> jax.Array:
        """Weights float32 [R, 1] of tokens, from their hidden states float32 [R, D]. Only of a model with such."""
        assert self.lexical is not None
        return self.lexical(hidden)

    def scores(self, pooled: jax.Array, adapters: TokenSlots | None = None) -> jax.Array:
        """Scores float32 [R, labels] of pooled hidden states [R, D]. Only of a classifier.

        `adapters` are the slots of the rows' adapters, where the model has slots: the scores of a row come first, and
        what comes after as many as its adapter has labels says nothing.
        """
        assert self.head is not None
        return self.head(pooled.astype(self.dtype), adapters).astype(jnp.float32)


def abstract_pooling_model(
    config: ModelConfig, options: ForwardOptions, dtype: DTypeLike, outputs: Outputs
) -> PoolingModel:
    """A model whose parameters are shapes. Raises `ModelError` for an unknown architecture."""
    return PoolingModel(config, options, jnp.dtype(dtype), outputs)


def load_pooling_model(
    source: "WeightSource",
    config: ModelConfig,
    options: ForwardOptions,
    dtype: DTypeLike,
    outputs: Outputs,
    progress: Callable[[int, int], None] | None = None,
) -> PoolingModel:
    """As `jaxllm.models.causal_lm.load_model`. Raises `ModelError`."""
    family = registry.lookup(config.architecture)
    model = abstract_pooling_model(config, options, dtype, outputs)
    given: dict[tuple[str | int, ...], np.ndarray] = {}
    if isinstance(source, Checkpoint):
        for name, layers in outputs.projections.items():
            given.update({(name, *path): array for path, array in projection_weights(source, layers).items()})
        given.update(_judging_head(model, source, outputs.answer_ids) if outputs.answer_ids else {})
    return load_into(model, source, checkpoint_names(family, config, outputs), given=given, progress=progress)


def checkpoint_names(family: Family, config: ModelConfig, outputs: Outputs) -> CheckpointNames:
    """How checkpoints call the tensors of a model, which may have been trained with other heads."""
    heads = () if outputs.labels is not None else tuple(f"{name}." for name in family.head_names.values())
    names = family.names_of(config)
    generating = (f"{source_of(names['head']).name}.",) if "head" in names else ()
    return CheckpointNames(
        names=weight_names(family, config),
        renamed=family.renamed,
        omitted=family.omitted,
        synonyms=family.synonyms,
        ignored=family.ignored_tensors,
        ignored_beginnings=(*family.other_heads, *heads, *generating, *family.other_parts_of(config)),
        optional_prefix=family.prefix,
        known_format=config.weight_format,
    )


def _judging_head(
    model: PoolingModel, checkpoint: Checkpoint, answer_ids: Sequence[int]
) -> dict[tuple[str | int, ...], np.ndarray]:
    """The classifier's one row: one of the output layer, or of the embedding that serves for it, less another.

    See https://huggingface.co/Qwen/Qwen3-Reranker-0.6B/discussions/3.
    """
    names = registry.lookup(model.config.architecture).names_of(model.config)
    ends = [f"{source_of(names[name]).name}.weight" for name in ("head", "embedding")]
    by_name = {tensor.name: tensor for tensor in checkpoint.tensors}
    found = [tensor for end in ends for name, tensor in by_name.items() if end.endswith(name)]
    if not found:
        raise ModelError(f"{checkpoint.folder}: the checkpoint has neither {ends[0]} nor {ends[1]}")
    *no, yes = (found[0].row(index).astype(np.float32) for index in answer_ids)
    return {("head", "out", "weight"): (yes - no[0] if no else yes).reshape(1, -1)}


def weight_names(family: Family, config: ModelConfig) -> Names:
    """Names in the checkpoint of all modules of a `PoolingModel`."""
    inside = "backbone." if family.make_encoder else "backbone.model."
    names = {f"{inside}{ours}": theirs for ours, theirs in family.names_of(config).items()}
    heads = {f"head.{ours}": theirs for ours, theirs in family.head_names.items()}
    # Made up, for dummy weights: the real ones have files of their own.
    made_up = {f"{name}.layers.*": f"{name}.*" for name in ("projection", "token_projection", "lexical")}
    return {**names, **heads, **made_up}
