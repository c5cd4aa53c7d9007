"""Linear layers that adapters bring whole, such as the classifier of `modules_to_save`: slots for those of a step."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax

from jaxllm.models.layers.adapter_slots import AdapterArray
from jaxllm.models.layers.linear import Linear
from jaxllm.models.layers.parameter import placeholder
from jaxllm.models.options import AdapterShape
from jaxllm.pallas_kernels.low_rank import TokenSlots

FEWEST_ROWS = 2
"""XLA multiplies a single row by other code, which adds up in another order."""


class WholeSlots(nnx.Module):
    """What the adapters in the slots have in the place of one linear layer, for small layers that few rows pass.

    `weight` [S, out, in] and `bias` [S, 1, out] are there for slots whose `is_present` [S, 1, 1] is not 0. `out` may be
    more than the layer has: adapters use the first outputs.
    """

    def __init__(self, linear: Linear, shape: AdapterShape, most_outputs: int = 0) -> None:
        """Adapters may have `most_outputs`, or as many outputs as the layer, if it has more."""
        out_size, in_size = linear.layout.shape
        out_size, slots = max(out_size, most_outputs), shape.num_slots

        def array(*sizes: int) -> AdapterArray:
            return AdapterArray(placeholder((slots, *sizes), jnp.dtype(shape.dtype), None))

        self.weight, self.is_present = array(out_size, in_size), array(1, 1)
        self.bias = array(1, out_size) if linear.bias is not None else None

    def replace(self, base: jax.Array, x: jax.Array, rows: TokenSlots) -> jax.Array:
        """Outputs [R, out]: for rows whose adapter has the layer, its product with `x` [R, in].

        For the others they are `base` [R, ...], the layer's own outputs, and zeros after these.
        """
        weight, is_present = _value(self.weight), _value(self.is_present)[:, 0, 0] != 0
        base = jnp.pad(base, ((0, 0), (0, weight.shape[1] - base.shape[1])))
        bias = None if self.bias is None else _value(self.bias)
        padded = jnp.pad(x, ((0, max(0, FEWEST_ROWS - len(x))), (0, 0)))
        count = len(x)

        def replace_slot(index: jax.Array, out: jax.Array) -> jax.Array:
            slot = slots[index]
            own = jnp.einsum("ri,oi->ro", padded, weight[slot], preferred_element_type=jnp.float32)
            if bias is not None:
                own = own + bias[slot].astype(jnp.float32)
            return jnp.where((rows.slots == slot)[:, None], own[:count].astype(out.dtype), out)

        # The slots that any row needs come first; the loop's length is data.
        numbers = jnp.arange(len(weight), dtype=jnp.int32)
        is_used = is_present & jnp.any(rows.slots[:, None] == numbers, axis=0)
        slots = jnp.argsort(~is_used, stable=True).astype(jnp.int32)
        return lax.fori_loop(0, jnp.sum(is_used, dtype=jnp.int32), replace_slot, base)


def _value(variable: AdapterArray) -> jax.Array:
    found: Any = variable.get_raw_value()
    return found
