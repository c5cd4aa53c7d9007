"""Multi-token prediction: one layer more, which checkpoints of DeepSeek V3 and others have, guesses at further tokens.

The layer joins the hidden state of a token with the embedding of the token after it, and predicts the one after that.
For a further guess it takes its own output and the token that it has guessed. transformers' `MtpModel` is the oracle.

Axis letters: T tokens, D hidden size.
"""

from dataclasses import replace

import jax
import jax.numpy as jnp

from jaxllm.models.batch import Batch
from jaxllm.models.cache import Cache
from jaxllm.models.checkpoint.source import Source, source_of
from jaxllm.models.config import ModelConfig
from jaxllm.models.decoder import Decoder
from jaxllm.models.families import registry
from jaxllm.models.families.family import MtpNames, Names
from jaxllm.models.layers.linear import Linear
from jaxllm.models.layers.norm import make_norm
from jaxllm.models.options import ForwardOptions
from jaxllm.models.sharding import constrain


def mtp_config(config: ModelConfig) -> ModelConfig:
    """The configuration of the layer alone."""
    layers = config.attention_layers
    return replace(config, layers=layers[:1] if _names_of(config).like_first else layers[-1:])


def mtp_names(config: ModelConfig) -> Names:
    """Where checkpoints have the parts of a model's `MtpHead`."""
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


def _names_of(config: ModelConfig) -> MtpNames:
    names = registry.lookup(config.architecture).mtp
    assert names is not None
    return names


class MtpHead(Decoder):
    """The layer, and what joins its inputs. The model's embedding and output layer serve it, too."""

    def __init__(self, config: ModelConfig, options: ForwardOptions, dtype: jnp.dtype) -> None:
        options = replace(options, adapters=None, drafter=None)
        super().__init__(mtp_config(config), options, dtype)
        size = config.hidden_size
        names = _names_of(config)
        self.hidden_first = names.hidden_first
        self.embedding_norm = make_norm(config.norm, size, dtype=dtype, options=options)
        self.hidden_norm = make_norm(config.norm, size, dtype=dtype, options=options)
        self.joint = Linear(2 * size, size, bias=False, dtype=dtype, axes=(None, None), options=options)
        self.norm = make_norm(config.norm if names.norm is not None else None, size, dtype=dtype, options=options)

    def __call__(self, embedded: jax.Array, hidden: jax.Array, batch: Batch, cache: Cache) -> tuple[jax.Array, Cache]:
        """What the output layer predicts from, [T, D], and the cache with this step's tokens.

        `embedded` [T, D] are the tokens after those whose hidden states `hidden` [T, D] are, the model's after its last
        norm or the head's own. Token t of the batch is where its hidden state is from.
        """
        inputs = [self.embedding_norm(embedded), self.hidden_norm(hidden)]
        if self.hidden_first:
            inputs.reverse()
        x = self.joint(jnp.concatenate(inputs, axis=1), batch.context)
        x, cache = self.layers(x, self.layer_inputs(batch, cache), cache)
        return constrain(self.norm(x), self.options.mesh, None, "hidden"), cache
