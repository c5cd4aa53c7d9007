"""A small model of the same vocabulary that guesses at what a larger one will say."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, cast

import jax
import jax.numpy as jnp
from flax import nnx

from jaxllm.models.batch import Batch
from jaxllm.models.cache import Cache
from jaxllm.models.causal_lm import CausalLM, checkpoint_names
from jaxllm.models.checkpoint.loading import load_into
from jaxllm.models.checkpoint.model_config import read_config
from jaxllm.models.config import ModelConfig
from jaxllm.models.drafters.guessing import Ahead, likeliest
from jaxllm.models.errors import ModelError
from jaxllm.models.families import registry
from jaxllm.models.families.family import Names
from jaxllm.models.options import ForwardOptions
from jaxllm.pallas_kernels.linear import can_pack

if TYPE_CHECKING:
    from pathlib import Path

    from jaxllm.models.checkpoint.loading import WeightSource


MOST_PADDING = 0.01
"""Models of a family may have embeddings of slightly different sizes, whose last rows are no tokens: Qwen2.5-7B has 128
more than Qwen2.5-0.5B. What one has beyond the other is never right, and is looked up as its last row."""


@dataclass(frozen=True)
class DraftModelPlan:
    """A `DrafterPlan` of a whole model, which attends by the implementation `attention`."""

    config: ModelConfig
    dtype: str
    attention: str = "xla"
    taps: tuple[int, ...] = ()
    is_apart: bool = True
    num_kept: int = 0

    def make(self, config: ModelConfig, options: ForwardOptions, dtype: jnp.dtype) -> nnx.Module:
        """See `DrafterPlan`."""
        return DraftModel(self.config, self.forward(options), dtype)

    def cached_layers(self, config: ModelConfig) -> ModelConfig:
        """Its own."""
        return self.config

    def forward(self, options: ForwardOptions) -> ForwardOptions:
        """Those of the model, as far as they suit it."""
        is_native = options.native_matmul and fits_native_kernels(self.config, self.dtype)
        # As the model's attention does, if both take the kernel for CPUs.
        is_paired = (options.attention, self.attention) == ("cpu_pairs", "cpu") and self.config.latent is None
        stack = options.stack if is_native == options.native_matmul else "loop"
        return replace(
            options,
            attention="cpu_pairs" if is_paired else self.attention,
            adapters=None,
            drafter=None,
            cache_groups=False,
            sees_images=False,
            native_matmul=is_native,
            stack=stack,
        )

    def names(self, config: ModelConfig) -> Names:
        """None: it is apart."""
        return {}

    def load(
        self, drafter: nnx.Module, source: "WeightSource", progress: Callable[[int, int], None] | None
    ) -> nnx.Module:
        """See `DrafterPlan`."""
        own = cast("DraftModel", drafter)
        names = checkpoint_names(self.config, own.model.options)
        own.model = load_into(own.model, source, names, progress=progress)
        return own


def fits_native_kernels(config: ModelConfig, dtype: str) -> bool:
    """Whether the matrices of a model have sizes that the kernels of CPUs take."""
    return all(can_pack(size, dtype) for size in (config.hidden_size, *config.mlp_sizes()))


def read_draft_model(folder: "Path", target: ModelConfig, dtype: str) -> DraftModelPlan:
    """The plan of the model in a folder, for a model that it is to draft for. Raises `ModelError`."""
    config = read_config(folder)
    if registry.lookup(config.architecture).use != "generate":
        raise ModelError(f"{folder}: {config.architecture} does not generate tokens, so it cannot draft any")
    if abs(config.vocab_size - target.vocab_size) > MOST_PADDING * target.vocab_size:
        raise ModelError(
            f"{folder}: the draft model has {config.vocab_size} tokens and the model {target.vocab_size}: both need "
            "the same vocabulary"
        )
    if config.recurrences:
        raise ModelError(f"{folder}: {config.architecture} has recurrent layers, which cannot take back a token")
    return DraftModelPlan(config, dtype)


class DraftModel(nnx.Module):
    """The model. It reads all tokens that the larger one reads."""

    begins_with_sampled = True
    own_guesses = 0

    def __init__(self, config: ModelConfig, options: ForwardOptions, dtype: jnp.dtype) -> None:
        self.model = CausalLM(config, options, dtype)

    def follow(
        self,
        model: CausalLM,
        batch: Batch,
        after: jax.Array,
        lasts: jax.Array,
        hidden: jax.Array,
        tapped: jax.Array,
        cache: Cache,
    ) -> tuple[jax.Array, Cache]:
        """See `Drafter`."""
        states, cache = self.model(batch, cache)
        return states[lasts], cache

    def go_on(
        self, model: CausalLM, ahead: Ahead, number: int, states: jax.Array, cache: Cache
    ) -> tuple[jax.Array, Cache]:
        """See `Drafter`."""
        return self.model(ahead.batch(), cache)

    def guess(self, model: CausalLM, number: int, states: jax.Array, num_rows: jax.Array) -> jax.Array:
        """See `Drafter`."""
        return likeliest(self.model.logits(states, num_rows))
