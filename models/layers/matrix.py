"""A matrix of a model: its parameters, which may be several, as one operand."""

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax
from jax.sharding import PartitionSpec
from jax.typing import DTypeLike

from jaxllm.models.forward_context import ForwardContext
from jaxllm.models.layers.parameter import ARRAYS, LayerOf, Merged, Rows, parameter
from jaxllm.models.options import ForwardOptions
from jaxllm.models.sharding import MODEL, model_parallel, over_model, partition, sharding
from jaxllm.pallas_kernels.linear import NOTHING, Fused, OperandLayout, Weight, WeightLayout, linear

if TYPE_CHECKING:
    from jaxllm.pallas_kernels.linear.quantized import QuantizedLayout
    from jaxllm.pallas_kernels.linear.weight_type import WeightType

Axes = tuple[str | None, str | None]


def weight_of(variable: Any, layout: OperandLayout) -> Weight:
    """The value of a matrix's variable as an operand."""
    value = variable.get_raw_value()
    return Weight(layout, value.stack, value.layer) if isinstance(value, LayerOf) else Weight(layout, value)


class Matrix(nnx.Module):
    """`weight` [out, in], and the other arrays of one of few bits, see `ARRAYS`.

    `axes` are the logical names of (out, in), see `jaxllm.models.sharding`.
    """

    def __init__(
        self, layout: WeightLayout, dtype: jnp.dtype, axes: Axes, rows: Rows | Merged, options: ForwardOptions
    ) -> None:
        self.layout: OperandLayout = layout
        self.weight = parameter(layout.shape, dtype, sharding(options.mesh, *axes), rows, layout)
        self.rows, self.axes, self.mesh, self.platform = rows, axes, options.mesh, options.platform
        self.weight_type: WeightType | None = None

    def set_weight_type(self, kind: "WeightType") -> None:
        """Have the parameters of a matrix of few bits. Raises `ModelError` where devices cannot share it."""
        # Few models are quantized: starts of others are faster without the import.
        from jaxllm.models.layers.quantized import array_axes, parameters

        layout = self.quantized_layout(kind)
        axes = array_axes(layout, self.axes, self.mesh)
        for name, variable in parameters(layout, axes, self.rows, self.mesh).items():
            setattr(self, name, variable)
        # Modules are compared by what they hold, so that it must be hashable.
        self.array_axes = tuple(axes.items())
        self.layout, self.weight_type = layout, kind

    def quantized_layout(self, kind: "WeightType") -> "QuantizedLayout":
        """The layout of such a matrix here."""
        raise NotImplementedError

    @property
    def matrix(self) -> Weight:
        """The weight as an operand."""
        found = weight_of(self.weight, self.layout)
        if self.weight_type is None:
            return found
        others = {name: _value(getattr(self, ARRAYS[name])) for name, _ in self.array_axes if name != "values"}
        return Weight(found.layout, found.array, found.layer, **others)

    def product(
        self,
        x: jax.Array,
        context: ForwardContext,
        fused: Fused = NOTHING,
        *,
        out_dtype: DTypeLike = jnp.float32,
    ) -> jax.Array:
        """See `linear`. What XLA does not split is run by each device, with its part of the matrix."""
        if not self.layout.on_each_device or model_parallel(self.mesh) == 1:
            return linear(x, self.matrix, context.num_rows, fused, out_dtype=out_dtype, platform=self.platform)
        out_axis, in_axis = self.axes
        assert self.mesh is not None
        assert fused.residual is None

        def own(x: jax.Array, weight: Weight) -> jax.Array:
            out = linear(x, weight, out_dtype=out_dtype, platform=self.platform)
            return out if partition(in_axis) == partition(None) else lax.psum(out, MODEL)

        specs = partition(None, in_axis), self.partitions()
        found: jax.Array = over_model(own, self.mesh, specs, partition(None, out_axis))(fused.prepare(x), self.matrix)
        return found

    def partitions(self) -> Weight:
        """How the operand is split, with partitions in place of arrays. What counts layers is whole."""
        weight = self.matrix
        axes = (("values", self.axes),) if self.weight_type is None else self.array_axes
        stack = () if weight.layer is None else (None,)
        split: dict[str, Any] = {name: partition(*stack, *own) for name, own in axes}
        layer: Any = None if weight.layer is None else PartitionSpec()
        return Weight(weight.layout, split.pop("values"), layer, **split)


def _value(variable: Any) -> Any:
    value = variable.get_raw_value()
    return value.stack if isinstance(value, LayerOf) else value
