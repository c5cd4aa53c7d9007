"""Activations, and the gated one between the two halves of a feed-forward block (arXiv 2002.05202)."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import jax

from jaxllm.models.errors import ModelError, nearest
from jaxllm.models.layers.parameter import Merged

ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "silu": jax.nn.silu,
    "swish": jax.nn.silu,
    "gelu": partial(jax.nn.gelu, approximate=False),
    "gelu_pytorch_tanh": partial(jax.nn.gelu, approximate=True),
    "relu": jax.nn.relu,
}
"""By the name that checkpoints use for them."""


@dataclass(frozen=True)
class GatedActivation:
    """`activation(gate) * up`, of the product with both weights `parts`. Raises `ModelError` for an unknown name."""

    activation: str
    parts: Merged

    def __post_init__(self) -> None:
        if self.activation not in ACTIVATIONS:
            hint = nearest(self.activation, ACTIVATIONS)
            raise ModelError(f"unknown activation {self.activation!r}{hint} (known: {', '.join(ACTIVATIONS)})")

    @property
    def is_silu(self) -> bool:
        """Whether it is silu of the first half of each row, times the second."""
        return ACTIVATIONS[self.activation] is jax.nn.silu and self.parts.blocks == 1

    def __call__(self, gate_up: jax.Array) -> jax.Array:
        """Map [T, 2 I] to [T, I]."""
        gate, up = self.parts.split(gate_up)
        return ACTIVATIONS[self.activation](gate) * up
