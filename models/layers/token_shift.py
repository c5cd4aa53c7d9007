"""A token mixed with the one before it, as RWKV does in place of a convolution."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from flax import nnx

from jaxllm.models.cache import States
from jaxllm.models.forward_context import LayerContext
from jaxllm.models.layers.parameter import parameter
from jaxllm.models.layers.states import take_in_drafts
from jaxllm.models.options import ForwardOptions
from jaxllm.models.sharding import sharding
from jaxllm.pallas_kernels.causal_convolution import causal_convolution


class TokenShift(nnx.Module):
    """For each of `names` a share [D] of the token itself; the rest is of the one before it."""

    def __init__(self, size: int, names: Sequence[str], options: ForwardOptions, *, dtype: jnp.dtype) -> None:
        self.names, self.platform = tuple(names), options.platform
        for name in names:
            setattr(self, name, parameter((size,), dtype, sharding(options.mesh, None)))

    def __call__(
        self, x: jax.Array, before: jax.Array, inputs: States, context: LayerContext
    ) -> tuple[tuple[jax.Array, ...], jax.Array, States]:
        """The mixtures [T, D] of `x` [T, D], the last tokens [R, 1, D] after those `before`, and inputs of drafts."""
        rows = context.states
        before, inputs = take_in_drafts(before, x, inputs, context, self.platform)
        num_drafts = None if rows is None or rows.drafts is None else rows.drafts.num_drafts
        # All of the token before, nothing of the token itself.
        taps = jnp.broadcast_to(jnp.array([1, 0], x.dtype), (x.shape[1], 2))
        shifted, after = causal_convolution(x, before, taps, None, context.ragged.query_start, num_drafts)
        shares = (getattr(self, name)[...] for name in self.names)
        return tuple(x * share + shifted * (1 - share) for share in shares), after, inputs
