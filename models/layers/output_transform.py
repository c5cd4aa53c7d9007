"""What hidden states pass before the output layer, where it is more than a norm."""

import jax
import jax.numpy as jnp
from flax import nnx

from jaxllm.models.forward_context import ForwardContext
from jaxllm.models.layers.activation import find_activation
from jaxllm.models.layers.linear import Linear
from jaxllm.models.layers.norm import make_norm
from jaxllm.models.options import ForwardOptions
from jaxllm.models.plan import OutputTransformPlan


class OutputTransform(nnx.Module):
    """`norm(activation(dense(x)))`, see `OutputTransformPlan`. Raises `ModelError` for an unknown activation."""

    def __init__(
        self, in_size: int, size: int, plan: OutputTransformPlan, options: ForwardOptions, *, dtype: jnp.dtype
    ) -> None:
        self.activation = find_activation(plan.activation)
        self.dense = Linear(in_size, size, bias=plan.bias, axes=(None, None), dtype=dtype, options=options)
        self.norm = make_norm(plan.norm, size, dtype=dtype, options=options)

    def __call__(self, hidden: jax.Array, context: ForwardContext) -> jax.Array:
        """Map [R, D] to [R, size]."""
        return self.norm(self.activation(self.dense(hidden, context)))
