"""Parameters of a quantized matrix, and how they are split over devices."""

from collections.abc import Mapping

from flax import nnx
from jax.sharding import Mesh

from jaxllm.models.errors import ModelError
from jaxllm.models.layers.parameter import ARRAYS, AS_THEY_ARE, Merged, Rows, merged, parameter
from jaxllm.models.sharding import devices_along, sharding
from jaxllm.pallas_kernels.linear.quantized import QuantizedLayout
from jaxllm.pallas_kernels.linear.weight_type import Values, WeightType

Axes = tuple[str | None, ...]


def array_axes(layout: QuantizedLayout, axes: tuple[str | None, str | None], mesh: Mesh | None) -> Mapping[str, Axes]:
    """Logical axes of the arrays of a matrix [out, in] with these `axes`, by the arrays' names.

    Scales are split like the inputs where each device's inputs are whole groups; else all devices have all of them.
    Raises `ModelError` where two inputs of a byte would be on two devices.
    """
    kind, in_size = layout.kind, layout.shape[1]
    out_axis, in_axis = axes
    devices = devices_along(mesh, in_axis)
    own = in_size // devices
    if kind.values == Values.CODES and devices > 1 and own % 2:
        raise ModelError(f"a 4-bit matrix with {in_size} inputs cannot be split over {devices} devices")
    is_whole_groups = kind.group is not None and own % kind.group == 0
    scales = (out_axis, in_axis if is_whole_groups else None)
    found = {"values": axes, "scales": scales, "offsets": scales, "order": (None,), "input_scale": (None,)}
    return {name: found[name] for name in layout.arrays()}


def check_shares_inputs(in_size: int, kind: WeightType, devices: int) -> None:
    """Raise `ModelError` unless so many devices can each multiply with a part of a matrix's inputs, by itself."""
    problem = kind.split_problem(in_size, devices)
    if problem:
        raise ModelError(
            f"experts' matrices {problem} cannot be split over {devices} devices within an expert; give "
            "--enable-expert-parallel, or use fewer devices"
        )


def parameters(
    layout: QuantizedLayout, axes: Mapping[str, Axes], rows: Rows | Merged, mesh: Mesh | None
) -> dict[str, nnx.Param]:  # type: ignore[type-arg]
    """Placeholders of the arrays of a matrix, by the names of parameters."""
    inputs: Rows | Merged = AS_THEY_ARE
    if isinstance(rows, Merged):
        inputs = merged(1, {part.name: (1, AS_THEY_ARE) for part in rows.parts}, rows.experts)
    made_of = {"order": AS_THEY_ARE, "input_scale": inputs}
    found = {}
    for name, own in layout.arrays(inputs.size if isinstance(inputs, Merged) else 1).items():
        place = sharding(mesh, *axes[name])
        about = {"array": name, "matrix": layout}
        found[ARRAYS[name]] = parameter(
            own.layout.shape, own.dtype, place, made_of.get(name, rows), own.layout, **about
        )
    return found
