"""Parameters of a model: from a safetensors checkpoint, or random.

Nothing here knows the model's modules: parameters are a flat mapping from nnx paths to shapes, and come back as a
mapping from the same paths to arrays.
"""

import math
import zlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec

from jaxllm.models.config_file import ConfigFile
from jaxllm.models.errors import ModelError
from jaxllm.models.layers.parameter import Rows
from jaxllm.models.safetensors_file import DTYPES, Tensor, read_header

ParameterPath = tuple[Any, ...]
Shapes = Mapping[ParameterPath, jax.ShapeDtypeStruct]
Progress = Callable[[int, int], None]

INDEX_FILE = "model.safetensors.index.json"
SINGLE_FILE = "model.safetensors"
LOOP, SCAN = "each", "all"
"""Names under which the two layer stacks keep their layers."""


@dataclass(frozen=True)
class Slot:
    """Where a checkpoint tensor goes: a parameter, or slice `layer` of a parameter that stacks all layers.

    `shape` is the tensor's; `rows` says what the parameter adds to it.
    """

    path: ParameterPath
    layer: int | None
    shape: tuple[int, ...]
    rows: Rows


def checkpoint_slots(
    shapes: Shapes, names: Mapping[str, str], num_layers: int, rows: Mapping[ParameterPath, Rows]
) -> dict[str, Slot]:
    """Slots by checkpoint tensor name. `names` maps module names to the checkpoint's, `*` is the layer's number.

    Raises `ModelError` for a module that `names` lacks.
    """
    slots: dict[str, Slot] = {}
    for path, shape in shapes.items():
        *modules, parameter = path
        number = next((part for part in modules if isinstance(part, int)), None)
        plain = ".".join("*" if part == SCAN or isinstance(part, int) else part for part in modules if part != LOOP)
        if plain not in names:
            raise ModelError(f"the family's weight names lack module {plain!r}")
        template = f"{names[plain]}.{parameter}"
        first, *others = shape.shape[1:] if SCAN in modules else shape.shape
        tensor = (rows[path].of_tensor(first), *others)
        if SCAN in modules:
            for layer in range(num_layers):
                slots[template.replace("*", str(layer))] = Slot(path, layer, tensor, rows[path])
        else:
            slots[template.replace("*", str(number))] = Slot(path, None, tensor, rows[path])
    return slots


def load_arrays(
    folder: Path,
    shapes: Shapes,
    slots: Mapping[str, Slot],
    ignored: Sequence[str] = (),
    progress: Progress | None = None,
) -> dict[ParameterPath, jax.Array]:
    """Read the checkpoint in `folder`, one tensor at a time, each to its parameter's type and straight to the devices.

    Of a parameter that is split over devices each gets its part and never more. Host memory beyond the result is one
    tensor. Everything is checked before the first byte of data is read. Tensors
    whose name ends with one of `ignored` may be there. Raises `ModelError`.
    """
    tensors = _matching_tensors(folder, slots, ignored)
    total = sum(tensor.end - tensor.start for tensor in tensors)
    arrays: dict[ParameterPath, jax.Array] = {}
    done = 0
    for tensor in tensors:
        slot, shape = slots[tensor.name], shapes[slots[tensor.name].path]
        values = slot.rows.expand(tensor.read(np.dtype(shape.dtype)))
        if slot.layer is None:
            arrays[slot.path] = jax.device_put(values, shape.sharding)
        else:
            if slot.path not in arrays:
                arrays[slot.path] = jnp.zeros(shape.shape, shape.dtype, device=shape.sharding)
            part = jax.device_put(values, _without_layers(shape.sharding))
            arrays[slot.path] = _write_slice(arrays.pop(slot.path), part, slot.layer)
        # Without waiting, host copies of the tensors would queue up behind a slow device.
        arrays[slot.path].block_until_ready()
        done += tensor.end - tensor.start
        if progress:
            progress(done, total)
    return arrays


def random_arrays(
    shapes: Shapes, slots: Mapping[str, Slot], seed: int, progress: Progress | None = None
) -> dict[ParameterPath, jax.Array]:
    """Random parameters made on the device, the same for a seed whether layers are stacked or not.

    Matrices are uniform with a variance of 1 / (size of the input), biases small, and weights of norms 1, which keeps
    activations and logits around one at any depth.
    """
    keys: dict[ParameterPath, list[int]] = {}
    rows: dict[ParameterPath, Rows] = {}
    for name, slot in slots.items():
        keys.setdefault(slot.path, []).append(zlib.crc32(f"{seed}/{name}".encode()))
        rows[slot.path] = slot.rows
    total = sum(shape.size * shape.dtype.itemsize for shape in shapes.values())
    arrays: dict[ParameterPath, jax.Array] = {}
    done = 0
    for path, shape in shapes.items():
        # uint64 is off by default; the hash below works on 32 bits.
        numbers = jnp.asarray(np.array(keys[path], np.uint32))
        make = partial(
            _random_values,
            shape=shape.shape,
            stacked=SCAN in path,
            dtype=shape.dtype,
            rows=rows[path],
            is_bias=path[-1] == "bias",
        )
        # Compiled for its place, so that no device makes more than its part.
        arrays[path] = jax.jit(make, out_shardings=shape.sharding)(numbers)
        done += shape.size * shape.dtype.itemsize
        if progress:
            progress(done, total)
    return arrays


def checkpoint_files(folder: Path) -> list[Path]:
    """The safetensors files of a checkpoint, from its index if it has one. Raises `ModelError` when there are none."""
    if (folder / INDEX_FILE).is_file():
        index = ConfigFile.read(folder / INDEX_FILE)
        where = index.section("weight_map")
        if where is None:
            raise ModelError(f"{index.source}: 'weight_map' is missing or empty")
        files = [folder / name for name in sorted({where.text(key) for key in where.values})]
        lost = [file.name for file in files if not file.is_file()]
        if lost:
            raise ModelError(f"{index.source}: {len(lost)} of {len(files)} files are missing: {_some(lost)}")
        return files
    if (folder / SINGLE_FILE).is_file():
        return [folder / SINGLE_FILE]
    others = sorted(file.name for file in folder.glob("*") if file.suffix in (".safetensors", ".bin", ".pt", ".gguf"))
    hint = f" (found {_some(others)}, which cannot be read)" if others else ""
    raise ModelError(f"{folder}: neither {SINGLE_FILE} nor {INDEX_FILE} is there{hint}")


def _matching_tensors(folder: Path, slots: Mapping[str, Slot], ignored: Sequence[str]) -> list[Tensor]:
    tensors: dict[str, Tensor] = {}
    for file in checkpoint_files(folder):
        for tensor in read_header(file):
            if tensor.name in tensors:
                raise ModelError(f"tensor {tensor.name!r} is both in {tensors[tensor.name].path.name} and {file.name}")
            tensors[tensor.name] = tensor
    missing = [name for name in slots if name not in tensors]
    if missing:
        raise ModelError(f"{folder}: {_count(missing, 'tensor')} missing from the checkpoint: {_some(missing)}")
    extra = [name for name in tensors if name not in slots and not name.endswith(tuple(ignored))]
    if extra:
        raise ModelError(f"{folder}: {_count(extra, 'unexpected tensor')} in the checkpoint: {_some(extra)}")
    for name, slot in slots.items():
        tensor = tensors[name]
        if tensor.shape != slot.shape:
            raise ModelError(
                f"{tensor.path}: tensor {name!r} has shape {list(tensor.shape)}, expected {list(slot.shape)}"
            )
        if tensor.dtype not in DTYPES:
            raise ModelError(
                f"{tensor.path}: tensor {name!r} has type {tensor.dtype}, which cannot be read as a weight "
                f"(known: {', '.join(DTYPES)})"
            )
    return [tensor for name, tensor in tensors.items() if name in slots]


def _without_layers(sharding: Any) -> NamedSharding | None:
    """Where one layer's part of a stacked parameter goes."""
    return NamedSharding(sharding.mesh, PartitionSpec(*sharding.spec[1:])) if sharding is not None else None


@partial(jax.jit, donate_argnums=0)
def _write_slice(whole: jax.Array, part: jax.Array, layer: jax.Array) -> jax.Array:
    updated: jax.Array = lax.dynamic_update_index_in_dim(whole, part, layer, 0)
    return updated


def _random_values(
    keys: jax.Array, *, shape: tuple[int, ...], stacked: bool, dtype: Any, rows: Rows, is_bias: bool
) -> jax.Array:
    """A parameter of `shape`, its layers along the first axis if `stacked`, with a key for each layer.

    Made from a hash of each element's index in the checkpoint's tensor (murmur3's finaliser): rows that are there
    several times are the same, and no value depends on how the parameter is split.
    """
    part = shape[1:] if stacked else shape
    if len(part) < 2 and not is_bias:
        return jnp.ones(shape, dtype)
    row = lax.broadcasted_iota(jnp.uint32, part, 0)
    group, repeated = np.uint32(rows.group), np.uint32(rows.group * rows.times)
    index = (row // repeated * group + row % group) * np.uint32(math.prod(part[1:]) % 2**32)
    stride = 1
    for axis in reversed(range(1, len(part))):
        index += lax.broadcasted_iota(jnp.uint32, part, axis) * np.uint32(stride % 2**32)
        stride *= part[axis]
    bits = index[None] * np.uint32(0x9E3779B9) ^ keys.reshape(-1, *(1,) * len(part))
    bits = (bits ^ bits >> 16) * np.uint32(0x85EBCA6B)
    bits = (bits ^ bits >> 13) * np.uint32(0xC2B2AE35)
    uniform = ((bits ^ bits >> 16) >> 8).astype(jnp.float32) * 2.0**-24 - 0.5
    deviation = 0.02 if is_bias else part[-1] ** -0.5
    values = jnp.where(row < part[0] - rows.padding, uniform * (12**0.5 * deviation), 0.0)
    return values.astype(dtype).reshape(shape)


def _count(names: Collection[str], noun: str) -> str:
    return f"{len(names)} {noun}{'s' if len(names) > 1 else ''}"


def _some(names: Iterable[str]) -> str:
    first, rest = sorted(names)[:3], len(list(names)) - 3
    return ", ".join(first) + (f" and {rest} more" if rest > 0 else "")
