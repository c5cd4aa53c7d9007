"""Models that make vectors or scores of whole texts: a decoder or an encoder, and perhaps a classifier behind it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Protocol, cast

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import DTypeLike

from jaxllm.models.batch import Batch, PackedSequences
from jaxllm.models.causal_lm import CausalLM
from jaxllm.models.checkpoint.loading import load_into, tensors_in
from jaxllm.models.config import ModelConfig
from jaxllm.models.errors import ModelError
from jaxllm.models.families import registry
from jaxllm.models.families.family import Family, HeadPlan
from jaxllm.models.layers.activation import ACTIVATIONS
from jaxllm.models.layers.linear import Linear
from jaxllm.models.layers.norm import LayerNorm
from jaxllm.models.layers.projection import DenseLayer, Projection, projection_weights
from jaxllm.models.options import ForwardOptions
from jaxllm.pallas_kernels.paged_attention import NULL_PAGE, CacheGeometry, RaggedBatch, cache_shape
from jaxllm.pallas_kernels.segment_attention.segments import Segments


class Backbone(Protocol):
    """What turns texts into hidden states."""

    def __call__(self, texts: PackedSequences) -> jax.Array:
        """Hidden states [T, D] of all tokens."""
        ...


class Decoder(nnx.Module):
    """A decoder-only model without its output layer: every token sees those before it.

    It runs on the kernels of generation, with a paged cache of one layer that lives as long as the step.
    """

    def __init__(self, config: ModelConfig, options: ForwardOptions, dtype: jnp.dtype) -> None:
        # Without the output layer, as if the embedding served for it.
        self.model = CausalLM(replace(config, tie_word_embeddings=True), options, dtype)
        self.config, self.options, self.dtype = config, options, dtype

    def __call__(self, texts: PackedSequences) -> jax.Array:
        """Hidden states [T, D] after the final norm. Texts of one token come first."""
        tokens, rows = texts.token_ids.shape[0], texts.segments.starts.shape[0] - 1
        config, page_size = self.config, self.options.page_size
        pages = 1 + tokens // page_size + rows
        kv_heads, dtype = config.num_kv_heads, self.dtype.name
        geometry = CacheGeometry(1, pages, page_size, kv_heads, config.head_size, dtype)
        cache = jnp.zeros(cache_shape(self.options.attention, geometry), self.dtype)
        width = -(-min(self.options.max_model_len, tokens) // page_size)
        hidden, _ = self.model(Batch(texts.token_ids, consecutive_pages(texts.segments, page_size, width)), cache)
        return hidden


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
        size = config.hidden_size
        linear = partial(Linear, size, dtype=dtype, axes=(None, None), options=options)
        norm = partial(LayerNorm, size, plan.norm_eps, dtype=dtype, options=options, use_bias=False)
        self.activation = plan.activation
        self.dense = linear(size, bias=plan.dense_bias) if plan.dense else None
        self.norm = norm() if plan.norm else None
        self.out = linear(labels, bias=plan.bias)

    def __call__(self, pooled: jax.Array) -> jax.Array:
        """Map [R, D] to [R, labels], before any softmax."""
        if self.dense is not None:
            pooled = self.dense(pooled)
            pooled = jnp.tanh(pooled) if self.activation == "tanh" else ACTIVATIONS[self.activation](pooled)
        if self.norm is not None:
            pooled = self.norm(pooled)
        return self.out(pooled)


class PoolingModel(nnx.Module):
    """Hidden states of whole texts; with `labels`, also a classifier of pooled ones; with `dense`, layers for them."""

    def __init__(
        self,
        config: ModelConfig,
        options: ForwardOptions,
        dtype: jnp.dtype,
        labels: int | None,
        dense: Sequence[DenseLayer] = (),
    ) -> None:
        family = registry.lookup(config.architecture)
        self.config, self.dtype = config, dtype
        make: Callable[..., nnx.Module] = family.make_encoder or Decoder
        self.backbone = make(config, options, dtype)
        self.head = None if labels is None else Head(config, family.head, labels, options, dtype)
        self.projection = Projection(dense, options) if dense else None

    def __call__(self, texts: PackedSequences) -> jax.Array:
        """Hidden states [T, D]."""
        return cast(Backbone, self.backbone)(texts)

    def project(self, pooled: jax.Array) -> jax.Array:
        """Pooled hidden states float32 [R, D] as embeddings."""
        return pooled if self.projection is None else self.projection(pooled)

    def scores(self, pooled: jax.Array) -> jax.Array:
        """Scores float32 [R, labels] of pooled hidden states [R, D]. Only of a classifier."""
        assert self.head is not None
        return self.head(pooled.astype(self.dtype)).astype(jnp.float32)


def abstract_pooling_model(
    config: ModelConfig,
    options: ForwardOptions,
    dtype: DTypeLike,
    labels: int | None,
    dense: Sequence[DenseLayer] = (),
) -> PoolingModel:
    """A model whose parameters are shapes. Raises `ModelError` for an unknown architecture."""
    return PoolingModel(config, options, jnp.dtype(dtype), labels, dense)


def load_pooling_model(
    folder: Path,
    config: ModelConfig,
    options: ForwardOptions,
    dtype: DTypeLike,
    labels: int | None,
    dense: Sequence[DenseLayer] = (),
    answer_ids: Sequence[int] = (),
    load_format: str = "auto",
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> PoolingModel:
    """As `jaxllm.models.causal_lm.load_model`. Raises `ModelError`.

    With two `answer_ids`, the classifier of one label is made of the output layer: its score is by how much the second
    token's logit is larger than the first's.
    """
    family = registry.lookup(config.architecture)
    model = abstract_pooling_model(config, options, dtype, labels, dense)
    given = {}
    if load_format != "dummy":
        given = {("projection", *path): array for path, array in projection_weights(folder, dense).items()}
        given.update(_judging_head(model, folder, answer_ids) if answer_ids else {})
    heads = () if labels is not None else tuple(f"{name}." for name in family.head_names.values())
    return load_into(
        model,
        folder,
        weight_names(family),
        ignored=family.ignored_tensors,
        ignored_beginnings=(*family.other_heads, *heads),
        optional_prefix=family.prefix,
        num_layers=config.num_layers,
        load_format=load_format,
        seed=seed,
        progress=progress,
        given=given,
    )


def _judging_head(
    model: PoolingModel, folder: Path, answer_ids: Sequence[int]
) -> dict[tuple[str | int, ...], np.ndarray]:
    """The classifier's one row: the difference of two rows of the output layer, or of the embedding that serves for it.

    See https://huggingface.co/Qwen/Qwen3-Reranker-0.6B/discussions/3.
    """
    names = registry.lookup(model.config.architecture).weight_names
    ends = [f"{names[name]}.weight" for name in ("head", "embedding")]
    by_name = {tensor.name: tensor for tensor in tensors_in(folder)}
    found = [tensor for end in ends for name, tensor in by_name.items() if end.endswith(name)]
    if not found:
        raise ModelError(f"{folder}: neither {ends[0]} nor {ends[1]} is in the checkpoint")
    no, yes = (found[0].row(index).astype(np.float32) for index in answer_ids)
    return {("head", "out", "weight"): (yes - no).reshape(1, -1)}


def weight_names(family: Family) -> Mapping[str, str]:
    """Names in the checkpoint of all modules of a `PoolingModel`."""
    inside = "backbone." if family.make_encoder else "backbone.model."
    names = {f"{inside}{ours}": theirs for ours, theirs in family.weight_names.items()}
    heads = {f"head.{ours}": theirs for ours, theirs in family.head_names.items()}
    # Made up, for dummy weights: the real ones have files of their own.
    return {**names, **heads, "projection.layers.*": "projection.*"}
