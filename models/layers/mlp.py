"""The gated feed-forward block (arXiv 2002.05202)."""

from functools import partial

import jax
import jax.numpy as jnp
from flax import nnx

from jaxllm.models.config import ModelConfig
from jaxllm.models.layers.activation import GatedActivation
from jaxllm.models.layers.linear import Linear
from jaxllm.models.layers.parameter import AS_THEY_ARE, merged
from jaxllm.models.options import ForwardOptions
from jaxllm.models.sharding import model_parallel


class GatedMLP(nnx.Module):
    """`down(activation(gate(x)) * up(x))`. Gate and up are one product, which compiles in less time than two."""

    def __init__(self, config: ModelConfig, *, dtype: jnp.dtype, options: ForwardOptions) -> None:
        wide, narrow = config.intermediate_size, config.hidden_size
        linear = partial(Linear, bias=config.mlp_bias, dtype=dtype, options=options)
        whole = (wide, AS_THEY_ARE)
        parts = merged(model_parallel(options.mesh), {"gate": whole, "up": whole})
        self.activation = GatedActivation(config.activation, parts)
        self.gate_up = linear(narrow, parts.size, axes=("mlp", "hidden"), rows=parts)
        self.down = linear(wide, narrow, axes=("hidden", "mlp"))

    def __call__(self, x: jax.Array, num_rows: jax.Array | None = None) -> jax.Array:
        """Map [T, D], of which the first `num_rows` (int32 []) count, to [T, D]."""
        return self.down(self.activation(self.gate_up(x, num_rows)), num_rows)
