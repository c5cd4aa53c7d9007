"""Normalisation by root mean square (arXiv 1910.07467), and by mean and variance (arXiv 1607.06450)."""

from functools import partial

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax

from jaxllm.models.forward_context import ALL_ROWS
from jaxllm.models.layers.linear import Linear
from jaxllm.models.layers.parameter import AS_THEY_ARE, Merged, Rows, parameter
from jaxllm.models.norm_plan import NormPlan
from jaxllm.models.options import ForwardOptions
from jaxllm.models.sharding import sharding
from jaxllm.pallas_kernels.linear import Norm
from jaxllm.pallas_kernels.row_sum import rounded, row_sum, sum_of_squares


class RMSNorm(nnx.Module):
    """Scale the last axis to unit mean square, then by `weight` + `offset`. Computes in float32."""

    def __init__(self, weight: nnx.Param[jax.Array] | None, plan: NormPlan) -> None:
        self.weight, self.eps, self.offset = weight, plan.eps, plan.offset

    def __call__(self, x: jax.Array) -> jax.Array:
        """Normalise `x` [..., size]; the type stays."""
        return self.norm(x)

    @property
    def norm(self) -> Norm:
        """The norm as an operand of a product that takes it over."""
        if self.weight is None:
            return Norm(jnp.float32(1.0), self.eps)
        weight = self.weight[...]
        # In float32: 1 + w in bfloat16 would lose most of w.
        return Norm(weight.astype(jnp.float32) + self.offset if self.offset else weight, self.eps)


class LayerNorm(nnx.Module):
    """Shift and scale the last axis to mean 0 and variance 1, then by `weight` + `offset`, then by `bias`. In float32.

    Either may be missing.
    """

    def __init__(self, weight: nnx.Param[jax.Array] | None, bias: nnx.Param[jax.Array] | None, plan: NormPlan) -> None:
        self.weight, self.bias, self.eps, self.offset = weight, bias, plan.eps, plan.offset

    def __call__(self, x: jax.Array) -> jax.Array:
        """Normalise `x` [..., size]; the type stays."""
        wide = x.astype(jnp.float32)
        centred = wide - rounded(row_sum(wide) / wide.shape[-1])
        out = centred * lax.rsqrt(rounded(sum_of_squares(centred) / wide.shape[-1]) + self.eps)
        if self.weight is not None:
            out = out * (self.weight[...].astype(jnp.float32) + self.offset)
        if self.bias is not None:
            out = rounded(out) + self.bias[...].astype(jnp.float32)
        return out.astype(x.dtype)


class NoNorm(nnx.Module):
    """Stands where a layer has no norm."""

    def __call__(self, x: jax.Array) -> jax.Array:
        """`x` as it is."""
        return x


class GatedNorm(nnx.Module):
    """A norm, and a gate that two products make of what it gives; see `NormPlan`. Every device has all of it."""

    def __init__(
        self, inner: RMSNorm | LayerNorm, size: int, rank: int, options: ForwardOptions, *, dtype: jnp.dtype
    ) -> None:
        linear = partial(Linear, bias=False, dtype=dtype, options=options)
        self.inner = inner
        self.gate_down, self.gate_up = linear(size, rank, axes=(None, "hidden")), linear(rank, size, axes=(None, None))
        for product in (self.gate_down, self.gate_up):
            # Norms are told nothing of a step.
            product.takes_adapters = False

    def __call__(self, x: jax.Array) -> jax.Array:
        """Normalise `x` [T, size]; the type stays."""
        out = self.inner(x)
        gate = self.gate_up(jax.nn.silu(self.gate_down(out, ALL_ROWS)), ALL_ROWS)
        return (out * jax.nn.sigmoid(gate.astype(jnp.float32))).astype(out.dtype)


AnyNorm = RMSNorm | LayerNorm | NoNorm | GatedNorm


def make_norm(
    plan: NormPlan | None,
    *shape: int,
    dtype: jnp.dtype,
    options: ForwardOptions,
    axes: tuple[str | None, ...] = (None,),
    rows: Rows | Merged = AS_THEY_ARE,
) -> AnyNorm:
    """The norm of a plan, with parameters of `shape`, whose logical names are `axes`; None does nothing."""
    if plan is None:
        return NoNorm()

    def make() -> nnx.Param[jax.Array]:
        return parameter(shape, dtype, sharding(options.mesh, *axes), rows)

    weight = make() if plan.weight else None
    own = RMSNorm(weight, plan) if plan.kind == "rms" else LayerNorm(weight, make() if plan.bias else None, plan)
    return own if plan.gate_rank is None else GatedNorm(own, shape[-1], plan.gate_rank, options, dtype=dtype)
