"""Feed-forward blocks: gated ones (arXiv 2002.05202), and those of two products."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax
from jax.sharding import Mesh

from jaxllm.models.config import ModelConfig
from jaxllm.models.forward_context import ForwardContext
from jaxllm.models.layers.activation import LEARNED, GatedActivation, LearnedActivation, find_activation
from jaxllm.models.layers.linear import Linear
from jaxllm.models.layers.norm import NoNorm, make_norm
from jaxllm.models.layers.parameter import AS_THEY_ARE, Merged, merged
from jaxllm.models.mlp_plan import MLPPlan
from jaxllm.models.options import ForwardOptions
from jaxllm.models.sharding import model_parallel, token_axis
from jaxllm.pallas_kernels.linear import RowMajor, Weight
from jaxllm.pallas_kernels.linear import linear as matmul

MANY_TOKENS = 512
"""Steps of so many and more are bound by arithmetic."""


class GatedMLP(nnx.Module):
    """`down(activation(gate(x)) * up(x))`. Gate and up are one product, which compiles in less time than two."""

    def __init__(self, config: ModelConfig, plan: MLPPlan, *, dtype: jnp.dtype, options: ForwardOptions) -> None:
        wide, narrow = plan.size or config.intermediate_size, config.hidden_size
        linear = partial(Linear, dtype=dtype, options=options)
        whole = (wide, AS_THEY_ARE)
        parts = merged(model_parallel(options.mesh), {"gate": whole, "up": whole})
        self.activation = GatedActivation(plan.activation, parts, plan.gate_scale, plan.sparsity, plan.clamped)
        self.gate_up = linear(narrow, parts.size, bias=plan.bias, axes=("mlp", "hidden"), rows=parts)
        self.norm = make_norm(plan.norm, wide, dtype=dtype, options=options, axes=("mlp",))
        self.down = linear(wide, narrow, bias=plan.bias or plan.down_bias, axes=("hidden", "mlp"))
        self.mesh, self.platform = options.mesh, options.platform

    def __call__(self, x: jax.Array, context: ForwardContext) -> jax.Array:
        """Map [T, D] to [T, D]."""
        if self.mesh is not None and context.adapters is None and self._travels(self.mesh, len(x)):
            # As in `_travels`.
            from jaxllm.models.layers.ring_mlp import run_ring_mlp

            return run_ring_mlp(self._partial_product, x, self.gate_up.weight[...], self.down.weight[...], self.mesh)
        if self.platform == "tpu" and model_parallel(self.mesh) == 1 and len(x) >= MANY_TOKENS:
            # XLA would fuse the norm before this with the product, and compute it again for each block of outputs.
            x = lax.optimization_barrier(x)
        return self.down(self.norm(self.activation(self.gate_up(x, context))), context)

    def _travels(self, mesh: Mesh, tokens: int) -> bool:
        """Whether tokens go around the ring of devices, see `ring_mlp`."""
        # Only on several devices: starts on one are faster without the import.
        from jaxllm.models.layers.ring_mlp import fits_ring

        is_split = token_axis(mesh, tokens) is not None and fits_ring(tokens, model_parallel(mesh))
        # Which gates are low depends on all of them, and so does a norm.
        is_separate = self.gate_up.bias is None and self.down.bias is None and not self.activation.sparsity
        is_separate = is_separate and isinstance(self.norm, NoNorm)
        is_ordinary = self.gate_up.weight_type is None and self.down.weight_type is None
        return is_split and is_separate and is_ordinary

    def _partial_product(self, x: jax.Array, wide: jax.Array, narrow: jax.Array) -> jax.Array:
        """The term that one device, with its parts of the matrices, adds to the result [T, D]."""

        def product(x: jax.Array, part: jax.Array) -> jax.Array:
            weight = Weight(RowMajor((part.shape[0], part.shape[1])), part)
            return matmul(x, weight, out_dtype=x.dtype, platform=self.platform)

        activation = replace(self.activation, parts=Merged(1, self.activation.parts.parts))
        return product(activation(product(x, wide)), narrow)


class MLP(nnx.Module):
    """`down(activation(up(x)))`. Raises `ModelError` for an unknown activation."""

    def __init__(self, config: ModelConfig, plan: MLPPlan, *, dtype: jnp.dtype, options: ForwardOptions) -> None:
        wide, narrow = plan.size or config.intermediate_size, config.hidden_size
        linear = partial(Linear, dtype=dtype, options=options)
        self.activation = plan.activation
        self.learned = LearnedActivation(dtype, options) if plan.activation == LEARNED else None
        if self.learned is None:
            find_activation(plan.activation)
        self.up = linear(narrow, wide, bias=plan.bias, axes=("mlp", "hidden"))
        self.norm = make_norm(plan.norm, wide, dtype=dtype, options=options, axes=("mlp",))
        self.down = linear(wide, narrow, bias=plan.bias or plan.down_bias, axes=("hidden", "mlp"))

    def __call__(self, x: jax.Array, context: ForwardContext) -> jax.Array:
        """Map [T, D] to [T, D]."""
        activation = find_activation(self.activation) if self.learned is None else self.learned
        return self.down(self.norm(activation(self.up(x, context))), context)


def make_mlp(config: ModelConfig, plan: MLPPlan, *, dtype: jnp.dtype, options: ForwardOptions) -> GatedMLP | MLP:
    """The block of a plan."""
    kind = GatedMLP if plan.is_gated else MLP
    return kind(config, plan, dtype=dtype, options=options)
