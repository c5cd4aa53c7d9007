"""The difference of two attentions (differential transformers, arXiv 2410.05258)."""

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax

from jaxllm.models.attention_plan import DifferencePlan
from jaxllm.models.layers.parameter import parameter
from jaxllm.models.options import ForwardOptions
from jaxllm.models.sharding import sharding


class Difference(nnx.Module):
    """Half of the heads less the other half times a factor, normalised; see `DifferencePlan`.

    The factor is exp(query_1 . key_1) - exp(query_2 . key_2) + `initial`, of four vectors of `size`. KV heads are there
    `times` times.
    """

    def __init__(
        self, size: int, times: int, plan: DifferencePlan, options: ForwardOptions, *, dtype: jnp.dtype
    ) -> None:
        whole = sharding(options.mesh, None)
        self.query_1, self.key_1, self.query_2, self.key_2 = (parameter((size,), dtype, whole) for _ in range(4))
        self.times, self.plan = times, plan

    def values(self, heads: jax.Array) -> jax.Array:
        """Values [T, K, 2 H] from those of the product, [T, K, H]: each has one of either half of the heads."""
        first, second = jnp.split(heads[:, :: self.times], 2, axis=1)
        both = jnp.concatenate([first, second], axis=-1)
        return jnp.repeat(jnp.concatenate([both, both], axis=1), self.times, axis=1)

    def __call__(self, out: jax.Array) -> jax.Array:
        """From what attention gives [T, N, 2 H] the difference, as heads of H elements, [T, N, H]."""
        first, second = jnp.split(out.astype(jnp.float32), 2, axis=1)
        factor = _exponential(self.query_1, self.key_1) - _exponential(self.query_2, self.key_2) + self.plan.initial
        mixed = first - factor * second
        normed = mixed * lax.rsqrt((mixed * mixed).mean(axis=-1, keepdims=True) + self.plan.eps)
        return ((1 - self.plan.initial) * normed).astype(out.dtype).reshape(len(out), out.shape[1], -1)


def _exponential(query: nnx.Param[jax.Array], key: nnx.Param[jax.Array]) -> jax.Array:
    return jnp.exp((query[...].astype(jnp.float32) * key[...].astype(jnp.float32)).sum())
