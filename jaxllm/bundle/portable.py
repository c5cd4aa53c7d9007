"""A compiled function as bytes and plain data, and back.

`jax.experimental.serialize_executable` pickles what lies around the runtime's bytes: shapes, shardings, structure. Here
these are data of a few types, checked when read, and a callable is put together from them again. That touches JAX's
internals, and all that does is in this file (the same in JAX 0.10.2 and 0.11.2).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import msgspec
import numpy as np
from jax._src.interpreters import pxla
from jax._src.lib import xla_client  # type: ignore[attr-defined]
from jax.errors import JaxRuntimeError
from jax.experimental.layout import Layout
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding, SingleDeviceSharding

from jaxllm.errors import ConfigError

Axes = str | list[str] | None
"""Mesh axes that one axis of an array is split over."""


_LENGTH = 8
"""Bytes that say how long a description is."""


class SavedArray(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An array that goes in or comes out. `split` has an entry per split axis; null: the array is on one device."""

    dtype: str
    shape: list[int]
    split: list[Axes] | None


class SavedCall(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How to call an executable: the flat arguments that it takes, in order, and what it returns.

    `kept` are the positions of the arguments that are used at all, `inputs` their arrays. `committed`: the results
    belong to their devices.
    """

    name: str
    kept: list[int]
    inputs: list[SavedArray]
    outputs: list[SavedArray]
    committed: bool


_CALL = msgspec.json.Decoder(SavedCall)
"""Made here, in one thread: with msgspec 0.22, threads that decode a type for the first time at once crash."""


@dataclass(frozen=True)
class DeviceAssignment:
    """Where executables run: the devices in the order of the assignment, and the mesh over them, if there is one."""

    devices: tuple[Any, ...]
    mesh: Mesh | None


def save(compiled: jax.stages.Compiled) -> tuple[bytes, SavedCall]:
    """The runtime's bytes and how to call them.

    Raises:
        ConfigError: the executable needs something that bytes cannot hold (a callback into Python, say).
    """
    executable: Any = compiled._executable  # noqa: SLF001
    unloaded = executable._unloaded_executable  # noqa: SLF001
    beyond = (unloaded.ordered_effects, unloaded.unordered_effects, unloaded.host_callbacks, unloaded.keepalive)
    if any(beyond) or unloaded.mut is not None or compiled._params.const_args:  # noqa: SLF001
        raise ConfigError(f"{unloaded.name} cannot be saved: it calls back into Python or captures arrays")
    runtime = unloaded.xla_executable
    # One that is loaded belongs to a client, one for absent devices does not.
    data = runtime.client.serialize_executable(runtime) if hasattr(runtime, "client") else runtime.serialize()
    call = SavedCall(
        name=unloaded.name,
        kept=sorted(unloaded.kept_var_idx),
        inputs=_describe(unloaded.input_avals, unloaded.input_shardings),
        outputs=_describe(unloaded.output_avals, unloaded.output_shardings),
        committed=unloaded.committed,
    )
    return data, call


def load(
    data: bytes, call: SavedCall, arguments: tuple[Any, ...], result: Any, assignment: DeviceAssignment
) -> jax.stages.Compiled:
    """The executable, ready to be called. Runs no compiler and traces nothing.

    `arguments` are the shapes that it takes, and `result` has the structure of what it returns: neither is taken from
    what was saved.

    Raises:
        ConfigError: the description does not suit them, or the runtime rejects the bytes.
    """
    leaves, in_tree = jax.tree.flatten((arguments, {}))
    results, out_tree = jax.tree.flatten(result)
    _check(call, leaves, len(results))
    devices = xla_client.DeviceList(assignment.devices)
    client = assignment.devices[0].client
    try:
        runtime = client.deserialize_executable(data, executable_devices=devices)
    except JaxRuntimeError as error:
        raise ConfigError(f"the runtime rejects executable {call.name}: {error}") from error
    in_avals, in_shardings = _restore(call.inputs, assignment)
    out_avals, out_shardings = _restore(call.outputs, assignment)
    in_layouts = [Layout.from_pjrt_layout(layout) for layout in runtime.get_parameter_layouts()]
    out_layouts = [Layout.from_pjrt_layout(layout) for layout in runtime.get_output_layouts()]
    if (len(in_layouts), len(out_layouts)) != (len(call.inputs), len(call.outputs)):
        raise ConfigError(
            f"executable {call.name} takes or returns a different number of arrays than its description states"
        )
    executable = pxla.UnloadedMeshExecutable(
        xla_executable=runtime,
        device_list=devices,
        backend=client,
        input_avals=in_avals,
        input_shardings=in_shardings,
        output_avals=out_avals,
        output_shardings=out_shardings,
        committed=call.committed,
        name=call.name,
        unordered_effects=[],
        ordered_effects=[],
        keepalive=[],
        host_callbacks=[],
        kept_var_idx=set(call.kept),
        mut=None,
        xla_in_layouts=in_layouts,
        dispatch_in_layouts=pxla.get_dispatch_layouts(in_layouts, in_shardings, in_avals),
        xla_out_layouts=out_layouts,
        all_args_info=None,
        pgle_profiler=None,
    ).load()
    info = [jax.stages.ArgInfo(_aval(leaf.shape, leaf.dtype), donated=False) for leaf in leaves]
    return jax.stages.Compiled(executable, [], jax.tree.unflatten(in_tree, info), out_tree)


def to_bytes(compiled: jax.stages.Compiled) -> bytes:
    """An executable with the description of its call. Raises like `save`."""
    data, call = save(compiled)
    header = msgspec.json.encode(call)
    return len(header).to_bytes(_LENGTH, "little") + header + data


def from_bytes(
    content: memoryview, arguments: tuple[Any, ...], result: Any, assignment: DeviceAssignment
) -> jax.stages.Compiled:
    """The inverse of `to_bytes`. Raises like `load`, and `ValueError` for anything but its results."""
    end = _LENGTH + int.from_bytes(content[:_LENGTH], "little")
    call = _CALL.decode(content[_LENGTH:end])
    return load(bytes(content[end:]), call, arguments, result, assignment)


def _check(call: SavedCall, arguments: Sequence[jax.ShapeDtypeStruct], num_results: int) -> None:
    """Raise `ConfigError` unless the description fits the arguments and results of the program."""
    known = call.kept == sorted(set(call.kept)) and all(0 <= index < len(arguments) for index in call.kept)
    taken = [(str(arguments[index].dtype), list(arguments[index].shape)) for index in call.kept] if known else None
    if taken != [(array.dtype, array.shape) for array in call.inputs] or len(call.outputs) != num_results:
        raise ConfigError(f"executable {call.name} was made for other arguments or results than this engine's")


def _describe(avals: Sequence[Any], shardings: Sequence[Sharding]) -> list[SavedArray]:
    return [
        SavedArray(str(aval.dtype), list(aval.shape), _describe_sharding(sharding))
        for aval, sharding in zip(avals, shardings, strict=True)
    ]


def _describe_sharding(sharding: Sharding) -> list[Axes] | None:
    if sharding.num_devices == 1:
        # Also in a mesh of one: an engine of one device has none, and executables for absent devices always do.
        return None
    if isinstance(sharding, NamedSharding):
        return [list(axes) if isinstance(axes, tuple) else axes for axes in sharding.spec]
    if sharding.is_fully_replicated:
        return []
    raise ConfigError(f"cannot save a sharding of this kind: {sharding}")


def _restore(arrays: Sequence[SavedArray], assignment: DeviceAssignment) -> tuple[list[Any], list[Sharding]]:
    avals = [_aval(array.shape, array.dtype) for array in arrays]
    return avals, [_restore_sharding(array.split, assignment) for array in arrays]


def _restore_sharding(split: list[Axes] | None, assignment: DeviceAssignment) -> Sharding:
    if split is None:
        return SingleDeviceSharding(assignment.devices[0])
    if assignment.mesh is None:
        raise ConfigError("the executable needs a device mesh, and this engine has none")
    try:
        spec = PartitionSpec(*(tuple(axes) if isinstance(axes, list) else axes for axes in split))
        return NamedSharding(assignment.mesh, spec)
    except ValueError as error:
        raise ConfigError(f"the sharding does not fit this engine's mesh: {error}") from error


def _aval(shape: Sequence[int], dtype: Any) -> Any:
    try:
        return jax.core.ShapedArray(tuple(shape), np.dtype(dtype))
    except TypeError as error:
        raise ConfigError(f"unknown array dtype {dtype!r}") from error
