"""The layers of a model, run as a loop or as one scan, behind one interface.

Which is faster depends on the platform. A scan over stacked weights makes compile time independent of depth, and on
TPU costs nothing at run time. On CPU and GPU the compiler copies each layer's weights out of the stack, so a loop is
the better choice there, unless a kernel reads them (`LayerOf`). In both the KV cache of all layers is one array that is
carried along and indexed inside the attention kernel: passed as scan inputs and outputs it would be copied.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec

from jaxllm.models.errors import ModelError
from jaxllm.models.layers.attention import Context
from jaxllm.models.layers.parameter import LayerOf, placeholder
from jaxllm.models.layers.rope import Rotation
from jaxllm.pallas_kernels.paged_attention.ragged import RaggedBatch

Hidden = tuple[jax.Array, jax.Array]
"""Hidden states [T, D] and the KV cache [L, P, C, 2K, H]."""

Carry = tuple[jax.Array, jax.Array, jax.Array]
"""Number of the layer, hidden states and KV cache."""


class LoopStack(nnx.Module):
    """Layers with parameters of their own, unrolled in Python."""

    def __init__(self, make_layer: Callable[[int], nnx.Module], windows: tuple[int, ...]) -> None:
        self.each = nnx.List([make_layer(layer) for layer in range(len(windows))])
        self.windows = windows

    def __call__(self, x: jax.Array, rotation: Rotation, ragged: RaggedBatch, kv_cache: jax.Array) -> Hidden:
        """Run all layers on `x` [T, D]."""
        rotation = _computed_once(rotation, ragged)
        traced: dict[Any, Callable[..., Hidden]] = {}
        for index, (layer, window) in enumerate(zip(self.each, self.windows, strict=True)):
            graph, parameters = nnx.split(layer)
            # Layers that are alike are traced and lowered once: a kernel takes half a second each time.
            run = traced.setdefault((graph, window), jax.jit(partial(_run_layer, graph, window)))
            x, kv_cache = run(parameters, x, kv_cache, rotation, ragged, jnp.int32(index))
        return x, kv_cache


def _run_layer(
    graph: nnx.GraphDef[Any],
    window: int,
    parameters: Any,
    x: jax.Array,
    kv_cache: jax.Array,
    rotation: Rotation,
    ragged: RaggedBatch,
    index: jax.Array,
) -> Hidden:
    """Layer number `index` on `x` [T, D], with these parameters."""
    result: Hidden = nnx.merge(graph, parameters)(x, kv_cache, Context(rotation, ragged, index, window or None))
    return result


def _computed_once(rotation: Rotation, ragged: RaggedBatch) -> Rotation:
    """The same angles, out of reach of the compiler, which would compute sine and cosine again in every layer.

    Compilers for CPUs drop optimization barriers before they fuse, but fuse nothing into a conditional. A GPU would
    wait for the host to read its condition.
    """

    def branch(rotation: Rotation) -> Rotation:
        turned: Rotation = lax.cond(
            ragged.num_tokens >= 0, lambda: rotation, lambda: jax.tree.map(jnp.zeros_like, rotation)
        )
        return turned

    turned: Rotation = lax.platform_dependent(rotation, cpu=branch, default=lax.optimization_barrier)
    return turned


class ScanStack(nnx.Module):
    """One layer whose parameters have a leading axis L, run by `lax.scan`."""

    def __init__(self, make_layer: Callable[[int], nnx.Module], windows: tuple[int, ...]) -> None:
        first, *others = (make_layer(layer) for layer in range(len(windows)))
        graph, parameters = nnx.split(first)
        shapes = jax.tree.structure(parameters), jax.tree.leaves(parameters)
        for index, other in enumerate(others, start=1):
            other_graph, other_parameters = nnx.split(other)
            if (
                other_graph != graph
                or (jax.tree.structure(other_parameters), jax.tree.leaves(other_parameters)) != shapes
            ):
                raise ModelError(
                    f"layer {index} is built unlike layer 0, so the layers cannot be scanned; use the loop"
                )
        stacked = jax.tree.map(lambda leaf: _stacked(leaf, len(windows)), parameters)
        self.all = nnx.merge(graph, stacked)
        self.windows = windows

    def __call__(self, x: jax.Array, rotation: Rotation, ragged: RaggedBatch, kv_cache: jax.Array) -> Hidden:
        """Run all layers on `x` [T, D]."""
        graph, *states = nnx.split(self.all, _is_packed, ...)
        packed, parameters = states
        # XLA would move what is cheap to compute back into the loop, and compute it in every layer.
        rotation, ragged = lax.optimization_barrier((rotation, ragged))
        # A window that all layers share stays a constant, which kernels can exploit.
        shared = len(set(self.windows)) == 1

        def body(carry: Carry, inputs: tuple[nnx.State[Any, Any], jax.Array]) -> tuple[Carry, None]:
            index, x, kv_cache = carry
            values, window = inputs
            # What a kernel reads for itself is not sliced.
            whole = jax.tree.map(lambda array: LayerOf(array, index), packed)
            layer = nnx.merge(graph, whole, values)
            context = Context(rotation, ragged, index, (self.windows[0] or None) if shared else window)
            x, kv_cache = layer(x, kv_cache, context)
            return (index + 1, x, kv_cache), None

        windows = jnp.asarray(np.array(self.windows, np.int32))
        (_, *carry), _ = lax.scan(body, (jnp.int32(0), x, kv_cache), (parameters, windows))
        return carry[0], carry[1]


def _is_packed(path: Any, variable: Any) -> bool:
    return bool(variable.get_metadata()["layout"].is_packed)


def _stacked(leaf: jax.Array, layers: int) -> jax.Array:
    """The placeholder of all layers' parameters from that of one: a leading axis, which is not split."""
    one = leaf.sharding
    whole = NamedSharding(one.mesh, PartitionSpec(None, *one.spec)) if isinstance(one, NamedSharding) else None
    return placeholder((layers, *leaf.shape), leaf.dtype, whole)


Stack = LoopStack | ScanStack


def make_stack(kind: str, make_layer: Callable[[int], nnx.Module], windows: tuple[int, ...]) -> Stack:
    """Build the stack called `kind`, 'loop' or 'scan'. Raises `ModelError` when the layers do not fit it."""
    kinds: dict[str, type[LoopStack | ScanStack]] = {"loop": LoopStack, "scan": ScanStack}
    if kind not in kinds:
        raise ModelError(f"unknown layer stack {kind!r} (known: {', '.join(kinds)})")
    return kinds[kind](make_layer, windows)
