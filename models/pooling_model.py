"""Models that make vectors or scores of whole texts: a decoder or an encoder, and perhaps a classifier behind it."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Protocol, cast

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from jaxllm.models import registry
from jaxllm.models.batch import Batch, WholeTexts
from jaxllm.models.causal_lm import CausalLM
from jaxllm.models.config import ModelConfig
from jaxllm.models.family import Family, HeadPlan
from jaxllm.models.layers.linear import Linear
from jaxllm.models.layers.mlp import ACTIVATIONS
from jaxllm.models.layers.norm import LayerNorm
from jaxllm.models.loading import load_into
from jaxllm.models.options import ForwardOptions
from jaxllm.pallas_kernels.paged_attention.layout import CacheGeometry, cache_shape
from jaxllm.pallas_kernels.paged_attention.ragged import NULL_PAGE, RaggedBatch
from jaxllm.pallas_kernels.segment_attention.segments import Segments

PAGE_SIZE = 16
"""Tokens in a page of the cache that a decoder needs during a step."""


class Backbone(Protocol):
    """What turns texts into hidden states."""

    def __call__(self, texts: WholeTexts) -> jax.Array:
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

    def __call__(self, texts: WholeTexts) -> jax.Array:
        """Hidden states [T, D] after the final norm. Texts of one token come first."""
        tokens, rows = texts.token_ids.shape[0], texts.segments.starts.shape[0] - 1
        pages = 1 + tokens // PAGE_SIZE + rows
        config = self.config
        kv_heads, dtype = config.num_kv_heads, self.dtype.name
        geometry = CacheGeometry(1, pages, PAGE_SIZE, kv_heads, config.head_size, dtype)
        cache = jnp.zeros(cache_shape(self.options.attention, geometry), self.dtype)
        width = -(-min(self.options.max_model_len, tokens) // PAGE_SIZE)
        hidden, _ = self.model(Batch(texts.token_ids, consecutive_pages(texts.segments, width)), cache)
        return hidden


def consecutive_pages(segments: Segments, width: int) -> RaggedBatch:
    """The batch of whole texts for paged attention: each gets the next pages, of a table `width` pages wide."""
    lengths = segments.lengths
    needed = (lengths + (PAGE_SIZE - 1)) // PAGE_SIZE
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
    """Hidden states of whole texts; with `labels`, also a classifier of pooled ones."""

    def __init__(self, config: ModelConfig, options: ForwardOptions, dtype: jnp.dtype, labels: int | None) -> None:
        family = registry.lookup(config.architecture)
        self.config, self.dtype = config, dtype
        make: Callable[..., nnx.Module] = family.make_encoder or Decoder
        self.backbone = make(config, options, dtype)
        self.head = None if labels is None else Head(config, family.head, labels, options, dtype)

    def __call__(self, texts: WholeTexts) -> jax.Array:
        """Hidden states [T, D]."""
        return cast(Backbone, self.backbone)(texts)

    def scores(self, pooled: jax.Array) -> jax.Array:
        """Scores float32 [R, labels] of pooled hidden states [R, D]. Only of a classifier."""
        assert self.head is not None
        return self.head(pooled.astype(self.dtype)).astype(jnp.float32)


def abstract_pooling_model(
    config: ModelConfig, options: ForwardOptions, dtype: DTypeLike, labels: int | None
) -> PoolingModel:
    """A model whose parameters are shapes. Raises `ModelError` for an unknown architecture."""
    return PoolingModel(config, options, jnp.dtype(dtype), labels)


def load_pooling_model(
    folder: Path,
    config: ModelConfig,
    options: ForwardOptions,
    dtype: DTypeLike,
    labels: int | None,
    load_format: str = "auto",
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> PoolingModel:
    """As `jaxllm.models.causal_lm.load_model`. Raises `ModelError`."""
    family = registry.lookup(config.architecture)
    model = abstract_pooling_model(config, options, dtype, labels)
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
    )


def weight_names(family: Family) -> Mapping[str, str]:
    """Names in the checkpoint of all modules of a `PoolingModel`."""
    inside = "backbone." if family.make_encoder else "backbone.model."
    names = {f"{inside}{ours}": theirs for ours, theirs in family.weight_names.items()}
    return {**names, **{f"head.{ours}": theirs for ours, theirs in family.head_names.items()}}
