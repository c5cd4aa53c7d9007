"""A decoder-only language model: embedding, layers, norm, output layer."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from jaxllm.models.batch import Batch
from jaxllm.models.checkpoint.loading import load_into
from jaxllm.models.config import ModelConfig
from jaxllm.models.families import registry
from jaxllm.models.layers.embedding import Embedding, vocab_rows
from jaxllm.models.layers.linear import Linear
from jaxllm.models.layers.norm import RMSNorm
from jaxllm.models.layers.rope import rotation
from jaxllm.models.options import ForwardOptions
from jaxllm.models.sharding import constrain, model_parallel, split_kv_heads
from jaxllm.models.stack import make_stack
from jaxllm.pallas_kernels.linear import linear
from jaxllm.pallas_kernels.paged_attention import Heads, prepare


class CausalLM(nnx.Module):
    """The whole model. Built without memory; `load_model` returns one whose parameters are arrays."""

    def __init__(self, config: ModelConfig, options: ForwardOptions, dtype: jnp.dtype) -> None:
        self.config, self.options = config, options
        make_layer = registry.lookup(config.architecture).make_layer
        # A window that no request can outgrow hides nothing, and full attention is the cheaper code.
        windows = tuple(window if window < options.max_model_len else 0 for window in config.windows)
        self.embedding = Embedding(config, options, dtype=dtype, is_output=config.tie_word_embeddings)
        self.layers = make_stack(options.stack, lambda layer: make_layer(config, options, layer, dtype), windows)
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps, dtype=dtype, options=options)
        rows = vocab_rows(config, options)
        size, axes = config.vocab_size + rows.padding, ("vocab", "hidden")
        head = partial(Linear, config.hidden_size, size, bias=False, dtype=dtype, axes=axes, options=options, rows=rows)
        self.head = None if config.tie_word_embeddings else head()

    def __call__(self, batch: Batch, kv_cache: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Hidden states [T, D] after the final norm, and the cache [L, P, C, 2K, H] with this step's tokens."""
        config = self.config
        angles = rotation(config.rope, config.head_size, self.options.max_model_len, batch.ragged.positions)
        ragged = prepare(self.options.attention, batch.ragged, self._heads(kv_cache))
        hidden, kv_cache = self.layers(self.embedding(batch.token_ids), angles, ragged, kv_cache)
        return self.norm(hidden), kv_cache

    def _heads(self, kv_cache: jax.Array) -> Heads:
        """Attention of the layers on one device."""
        config, devices = self.config, model_parallel(self.options.mesh)
        return Heads(
            config.num_heads // devices,
            split_kv_heads(config, devices) // devices,
            config.head_size,
            kv_cache.dtype.name,
            frozenset(self.layers.windows),
        )

    def logits(self, hidden: jax.Array, num_rows: jax.Array | None = None) -> jax.Array:
        """Scores float32 [R, V] of hidden states [R, D], split over the devices along V, which may end in -inf.

        Those from row `num_rows` (int32 []) on mean nothing.
        """
        matrix = self.embedding.matrix if self.head is None else self.head.matrix
        logits = linear(hidden, matrix, num_rows, platform=self.options.platform)
        if logits.shape[1] > self.config.vocab_size:
            is_token = jnp.arange(logits.shape[1], dtype=jnp.int32) < self.config.vocab_size
            logits = jnp.where(is_token, logits, -jnp.inf)
        return constrain(logits, self.options.mesh, None, "vocab")


def abstract_model(config: ModelConfig, options: ForwardOptions, dtype: DTypeLike) -> CausalLM:
    """A model whose parameters are shapes: enough to lower and compile from, while weights load.

    Raises `ModelError` for an unknown architecture or a stack its layers do not fit.
    """
    return CausalLM(config, options, jnp.dtype(dtype))


def load_model(
    folder: Path,
    config: ModelConfig,
    options: ForwardOptions,
    dtype: DTypeLike,
    load_format: str = "auto",
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> CausalLM:
    """Read the safetensors checkpoint in `folder` to the devices, in `dtype`, one tensor at a time.

    `load_format` 'dummy' makes random weights from `seed` instead and ignores the folder. `progress` is called with
    the bytes done and the bytes in total. Raises `ModelError` naming the tensor or file that is missing, unexpected,
    wrongly shaped or corrupt.
    """
    family = registry.lookup(config.architecture)
    return load_into(
        abstract_model(config, options, dtype),
        folder,
        family.weight_names,
        ignored=(*family.ignored_tensors, *(("lm_head.weight",) if config.tie_word_embeddings else ())),
        num_layers=len(config.windows),
        load_format=load_format,
        seed=seed,
        progress=progress,
    )
