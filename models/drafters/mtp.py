"""Multi-token prediction: one layer more, which checkpoints of DeepSeek V3 and others have, guesses at further tokens.

The layer joins the hidden state of a token with the embedding of the token after it, and predicts the one after that.
For a further guess it takes its own output and the token that it has guessed. transformers' `MtpModel` is the oracle.

Axis letters: T tokens, R rows, D hidden size.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
from flax import nnx

from jaxllm.models.batch import Batch
from jaxllm.models.cache import Cache
from jaxllm.models.checkpoint.tensor_source import Source, source_of
from jaxllm.models.config import ModelConfig
from jaxllm.models.decoder import Decoder
from jaxllm.models.drafters.guessing import Ahead, likeliest
from jaxllm.models.families import registry
from jaxllm.models.families.family import MtpNames, Names
from jaxllm.models.layers.linear import Linear
from jaxllm.models.layers.norm import make_norm
from jaxllm.models.options import ForwardOptions
from jaxllm.models.sharding import constrain

if TYPE_CHECKING:
    from jaxllm.models.causal_lm import CausalLM
    from jaxllm.models.checkpoint.loading import WeightSource


@dataclass(frozen=True)
class MtpPlan:
    """A `DrafterPlan` of the layer that is in the model's checkpoint."""

    taps: tuple[int, ...] = ()
    is_apart: bool = False

    def make(self, config: ModelConfig, options: ForwardOptions, dtype: jnp.dtype) -> nnx.Module:
        """See `DrafterPlan`."""
        return MtpHead(self.cached_layers(config), _names_of(config), self.forward(options), dtype)

    def cached_layers(self, config: ModelConfig) -> ModelConfig:
        """The configuration of the layer alone."""
        layers = config.attention_layers
        return replace(config, layers=layers[:1] if _names_of(config).like_first else layers[-1:])

    def forward(self, options: ForwardOptions) -> ForwardOptions:
        """Those of the model."""
        return replace(options, adapters=None, drafter=None, cache_groups=False)

    def names(self, config: ModelConfig) -> Names:
        """See `DrafterPlan`."""
        names = _names_of(config)
        parts = {part: getattr(names, part) for part in ("embedding_norm", "hidden_norm", "joint", "norm")}
        found: dict[str, str | Source] = {
            f"drafter.{part}": name.format(layer=config.num_layers) for part, name in parts.items() if name is not None
        }
        own = names.layer.format(layer=config.num_layers)
        for module, given in registry.lookup(config.architecture).names_of(config).items():
            if module.startswith("layers.*."):
                source = source_of(given)
                _, _, inside = source.name.partition("*")
                found[f"drafter.{module}"] = replace(source, name=own + inside, layers=None)
        return found

    def load(
        self, drafter: nnx.Module, source: "WeightSource", progress: Callable[[int, int], None] | None
    ) -> nnx.Module:
        """Not used: its weights are loaded with the model's."""
        raise NotImplementedError


def _names_of(config: ModelConfig) -> MtpNames:
    names = registry.lookup(config.architecture).mtp
    assert names is not None
    return names


class MtpHead(Decoder):
    """The layer, and what joins its inputs. The model's embedding and output layer serve it, too."""

    begins_with_sampled = False
    own_guesses = 0

    def __init__(self, config: ModelConfig, names: MtpNames, options: ForwardOptions, dtype: jnp.dtype) -> None:
        super().__init__(config, options, dtype)
        size = config.hidden_size
        self.hidden_first = names.hidden_first
        self.embedding_norm = make_norm(config.norm, size, dtype=dtype, options=options)
        self.hidden_norm = make_norm(config.norm, size, dtype=dtype, options=options)
        self.joint = Linear(2 * size, size, bias=False, dtype=dtype, axes=(None, None), options=options)
        last = config.norm if names.norm is not None else None
        self.norm = make_norm(last, size, dtype=dtype, options=options)

    def follow(
        self,
        model: "CausalLM",
        batch: Batch,
        after: jax.Array,
        lasts: jax.Array,
        hidden: jax.Array,
        tapped: jax.Array,
        cache: Cache,
    ) -> tuple[jax.Array, Cache]:
        """See `Drafter`."""
        states, cache = self._read(model, replace(batch, token_ids=after), hidden, cache)
        return states[lasts], cache

    def go_on(
        self, model: "CausalLM", ahead: Ahead, number: int, states: jax.Array, cache: Cache
    ) -> tuple[jax.Array, Cache]:
        """See `Drafter`: what the output layer predicts from, [R, D]."""
        return self._read(model, ahead.batch(), states, cache)

    def _read(self, model: "CausalLM", batch: Batch, states: jax.Array, cache: Cache) -> tuple[jax.Array, Cache]:
        """What the output layer predicts from, [T, D], after tokens, from the hidden states before them."""
        inputs = [self.embedding_norm(model.embedded(batch)), self.hidden_norm(states)]
        if self.hidden_first:
            inputs.reverse()
        x = self.joint(jnp.concatenate(inputs, axis=1), batch.context)
        x, cache = self.layers(x, self.layer_inputs(batch, cache), cache)
        return constrain(self.norm(x), self.options.mesh, None, "hidden"), cache

    def guess(self, model: "CausalLM", number: int, states: jax.Array, num_rows: jax.Array) -> jax.Array:
        """See `Drafter`."""
        return likeliest(model.logits(states, num_rows))
