"""Layers of a tower that are alike, run one after the other.

There is a program for each size of images. So a scan is used, which is compiled in the time of one layer, but on CPUs
without native kernels: compilers for these would convert the weights of all layers to float32 before it.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax

from jaxllm.models.layers.parameter import LayerOf
from jaxllm.models.options import ForwardOptions
from jaxllm.models.stack import in_stack, stacked_layer


class RepeatedLayers(nnx.Module):
    """`count` layers: `each`, or `all` in one with parameters that have a leading axis, as in `models.stack`."""

    def __init__(self, make: Callable[[], nnx.Module], count: int, options: ForwardOptions) -> None:
        self.count = count
        self.is_scan = options.stack == "scan" or options.platform != "cpu"
        if self.is_scan:
            self.all = nnx.Dict({f"0:{count}:1": stacked_layer(make(), count)})
        else:
            self.each = nnx.List([make() for _ in range(count)])

    def run(self, step: Callable[[Any, jax.Array, Any], Any], carry: Any) -> Any:
        """What comes of `carry = step(layer, number, carry)` for all layers, whose numbers are int32 []."""
        if self.is_scan:
            return self._scan(step, carry)
        # Layers are traced and lowered once.
        graph, _ = nnx.split(self.each[0])
        one = jax.jit(lambda values, number, carry: step(nnx.merge(graph, values), number, carry))
        for number, layer in enumerate(self.each):
            carry = one(nnx.split(layer)[1], jnp.int32(number), carry)
        return carry

    def _scan(self, step: Callable[[Any, jax.Array, Any], Any], carry: Any) -> Any:
        (stacked,) = self.all.values()
        # What a kernel reads for itself is not sliced.
        graph, *states = nnx.split(stacked, in_stack, ...)
        whole, sliced = states

        def body(carry: Any, own: tuple[Any, jax.Array]) -> tuple[Any, None]:
            values, number = own
            found = jax.tree.map(lambda array: LayerOf(array, number), whole)
            return step(nnx.merge(graph, found, values), number, carry), None

        return lax.scan(body, carry, (sliced, jnp.arange(self.count, dtype=jnp.int32)))[0]
