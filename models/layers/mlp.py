"""The gated feed-forward block (arXiv 2002.05202)."""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from flax import nnx

from jaxllm.models.config import ModelConfig
from jaxllm.models.errors import ModelError, nearest
from jaxllm.models.layers.linear import Linear
from jaxllm.models.layers.parameter import AS_THEY_ARE, merged
from jaxllm.models.options import ForwardOptions
from jaxllm.models.sharding import model_parallel

ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "silu": jax.nn.silu,
    "swish": jax.nn.silu,
    "gelu": partial(jax.nn.gelu, approximate=False),
    "gelu_pytorch_tanh": partial(jax.nn.gelu, approximate=True),
    "relu": jax.nn.relu,
}
"""By the name that checkpoints use for them."""


class GatedMLP(nnx.Module):
    """`down(activation(gate(x)) * up(x))`. Gate and up are one product, which compiles in less time than two."""

    def __init__(self, config: ModelConfig, *, dtype: jnp.dtype, options: ForwardOptions) -> None:
        if config.activation not in ACTIVATIONS:
            hint = nearest(config.activation, ACTIVATIONS)
            raise ModelError(f"unknown activation {config.activation!r}{hint} (known: {', '.join(ACTIVATIONS)})")
        self.activation = config.activation
        wide, narrow = config.intermediate_size, config.hidden_size
        linear = partial(Linear, bias=config.mlp_bias, dtype=dtype, options=options)
        whole = (wide, AS_THEY_ARE)
        self.parts = merged(model_parallel(options.mesh), {"gate": whole, "up": whole})
        self.gate_up = linear(narrow, self.parts.size, axes=("mlp", "hidden"), rows=self.parts)
        self.down = linear(wide, narrow, axes=("hidden", "mlp"))

    def __call__(self, x: jax.Array, num_rows: jax.Array | None = None) -> jax.Array:
        """Map `x` [T, D], of which the first `num_rows` (int32 []) count, to [T, D]."""
        gate, up = self.parts.split(self.gate_up(x, num_rows))
        return self.down(ACTIVATIONS[self.activation](gate) * up, num_rows)
