"""Operations in one call with a product, before it and after it."""

from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
from jax import lax
from jax.tree_util import register_dataclass

from jaxllm.pallas_kernels.row_sum import rounded, sum_of_squares


@register_dataclass
@dataclass(frozen=True)
class Norm:
    """Scales rows to unit mean square, with `epsilon` beneath the root, then by `weight` [in] (arXiv 1910.07467)."""

    weight: jax.Array
    epsilon: float = field(metadata={"static": True})

    def __call__(self, x: jax.Array) -> jax.Array:
        """Normalise `x` [..., in]. Computes in float32; the type stays."""
        wide = x.astype(jnp.float32)
        scale = lax.rsqrt(rounded(sum_of_squares(wide) / wide.shape[-1]) + self.epsilon)
        return (wide * scale * self.weight.astype(jnp.float32)).astype(x.dtype)


@register_dataclass
@dataclass(frozen=True)
class Fused:
    """Changes of a product's rows x [T, in], and terms added to the result; by default none."""

    norm: Norm | None = None
    is_gated: bool = field(default=False, metadata={"static": True})
    """x is [T, 2 in]: `silu` of its first half times its second one is multiplied (arXiv 2002.05202)."""
    residual: jax.Array | None = None
    """[T, out], added."""

    def prepare(self, x: jax.Array) -> jax.Array:
        """The rows that are multiplied."""
        if self.norm is not None:
            x = self.norm(x)
        if self.is_gated:
            gate, up = jnp.split(x, 2, axis=-1)
            x = jax.nn.silu(gate) * up
        return x


NOTHING = Fused()
