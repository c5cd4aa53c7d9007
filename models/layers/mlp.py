"""The gated feed-forward block (arXiv 2002.05202)."""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from flax import nnx

from jaxllm.models.config import ModelConfig
from jaxllm.models.errors import ModelError, nearest
from jaxllm.models.layers.linear import Linear
from jaxllm.models.options import ForwardOptions

ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "silu": jax.nn.silu,
    "swish": jax.nn.silu,
    "gelu": partial(jax.nn.gelu, approximate=False),
    "gelu_pytorch_tanh": partial(jax.nn.gelu, approximate=True),
    "relu": jax.nn.relu,
}
"""By the name that checkpoints use for them."""


class GatedMLP(nnx.Module):
    """`down(activation(gate(x)) * up(x))`."""

    def __init__(self, config: ModelConfig, *, dtype: jnp.dtype, options: ForwardOptions) -> None:
        if config.activation not in ACTIVATIONS:
            hint = nearest(config.activation, ACTIVATIONS)
            raise ModelError(f"unknown activation {config.activation!r}{hint} (known: {', '.join(ACTIVATIONS)})")
        self.activation = config.activation
        wide, narrow = config.intermediate_size, config.hidden_size
        linear = partial(Linear, bias=config.mlp_bias, dtype=dtype, options=options)
        self.gate = linear(narrow, wide, axes=("mlp", "hidden"))
        self.up = linear(narrow, wide, axes=("mlp", "hidden"))
        self.down = linear(wide, narrow, axes=("hidden", "mlp"))

    def __call__(self, x: jax.Array) -> jax.Array:
        """Map `x` [T, D] to [T, D]."""
        return self.down(ACTIVATIONS[self.activation](self.gate(x)) * self.up(x))
