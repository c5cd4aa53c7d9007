"""Parameters of a model from a safetensors checkpoint.

Nothing here knows the model's modules: parameters are a flat mapping from nnx paths to what they are, and come back
as a mapping from the same paths to arrays.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec

from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.checkpoint.host_parameter import HostParameter
from jaxllm.models.checkpoint.other_formats import advice_for_other_weights
from jaxllm.models.checkpoint.safetensors_file import DTYPES, Tensor, read_header
from jaxllm.models.errors import ModelError
from jaxllm.models.layers.parameter import Merged, ParameterSpec, Part, Rows

ParameterPath = tuple[Any, ...]
Specs = Mapping[ParameterPath, ParameterSpec]
Progress = Callable[[int, int], None]

INDEX_FILE = "model.safetensors.index.json"
SINGLE_FILE = "model.safetensors"
LOOP, SCAN = "each", "all"
"""Names under which the two layer stacks keep their layers."""


@dataclass(frozen=True)
class Slot:
    """Where a checkpoint tensor goes: a parameter, or slice `layer` of a parameter that stacks all layers.

    `shape` is the tensor's; `rows` says what the parameter adds to it. Where it holds several tensors, `part` of each
    of its `blocks` is this one's.
    """

    path: ParameterPath
    layer: int | None
    shape: tuple[int, ...]
    rows: Rows
    part: Part | None = None
    blocks: int = 1


def checkpoint_slots(specs: Specs, names: Mapping[str, str], num_layers: int) -> dict[str, Slot]:
    """Slots by checkpoint tensor name. `names` maps module names to the checkpoint's, `*` is the layer's number.

    Raises `ModelError` for a module that `names` lacks.
    """
    slots: dict[str, Slot] = {}
    for path, spec in specs.items():
        *modules, parameter = path
        first, *others = spec.layout.shape
        number = next((part for part in modules if isinstance(part, int)), None)
        layers = list(range(num_layers)) if SCAN in modules else [number]
        for module, size, slot in _tensors_of(path, first, spec.rows):
            plain = ".".join("*" if part == SCAN or isinstance(part, int) else part for part in module if part != LOOP)
            if plain not in names:
                raise ModelError(f"the family's weight names lack module {plain!r}")
            template = f"{names[plain]}.{parameter}"
            found = replace(slot, shape=(slot.rows.of_tensor(size), *others))
            for layer in layers:
                stacked = layer if SCAN in modules else None
                slots[template.replace("*", str(layer))] = replace(found, layer=stacked)
    return slots


def _tensors_of(
    path: ParameterPath, size: int, rows: Rows | Merged
) -> Iterator[tuple[tuple[str | int, ...], int, Slot]]:
    """For each tensor that a parameter of `size` rows holds: the module it is named after, its rows, and its slot."""
    *modules, _ = path
    if isinstance(rows, Rows):
        yield tuple(modules), size, Slot(path, None, (), rows)
        return
    for part in rows.parts:
        slot = Slot(path, None, (), part.rows, part, rows.blocks)
        yield (*modules[:-1], part.name), rows.blocks * part.size, slot


def load_arrays(
    folder: Path,
    specs: Specs,
    slots: Mapping[str, Slot],
    ignored: Sequence[str] = (),
    progress: Progress | None = None,
) -> dict[ParameterPath, jax.Array]:
    """Read the checkpoint in `folder`, one tensor at a time, each to its parameter's type and straight to the devices.

    Of a parameter that is split over devices each gets its part and never more. Host memory beyond the result is the
    tensors of one parameter. Everything is checked before the first byte of data is read. Tensors whose name ends with
    one of `ignored` may be there. Raises `ModelError`.
    """
    tensors = _matching_tensors(folder, slots, ignored)
    total = sum(tensor.end - tensor.start for tensor in tensors)
    arrays: dict[ParameterPath, jax.Array] = {}
    incomplete: dict[ParameterPath, HostParameter] = {}
    done = 0
    for tensor in tensors:
        slot = slots[tensor.name]
        spec, array = specs[slot.path], specs[slot.path].array
        values = slot.rows.expand(tensor.read(np.dtype(array.dtype)))
        is_small = slot.layer is not None and len(spec.layout.shape) == 1
        if spec.layout.is_packed or is_small or (slot.part is not None and slot.layer is None):
            layers = 1 if slot.layer is None else array.shape[0]
            parameter = incomplete.get(slot.path) or HostParameter(spec, layers)
            incomplete[slot.path] = parameter
            parameter.add(values, slot.layer, slot.part, slot.blocks)
            if parameter.is_complete:
                arrays[slot.path] = incomplete.pop(slot.path).to_device()
        elif slot.layer is not None:
            if slot.path not in arrays:
                arrays[slot.path] = jnp.zeros(array.shape, array.dtype, device=array.sharding)
            part = jax.device_put(values, _without_layers(array.sharding))
            start = 0 if slot.part is None else slot.part.start
            arrays[slot.path] = _write(arrays.pop(slot.path), part, slot.layer, start, blocks=slot.blocks)
        else:
            arrays[slot.path] = jax.device_put(values, array.sharding)
        if slot.path in arrays:
            # Without waiting, host copies of the tensors would queue up behind a slow device.
            arrays[slot.path].block_until_ready()
        done += tensor.end - tensor.start
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
    raise ModelError(f"{folder}: neither {SINGLE_FILE} nor {INDEX_FILE} is there{advice_for_other_weights(folder)}")


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


@partial(jax.jit, donate_argnums=0, static_argnames="blocks")
def _write(whole: jax.Array, tensor: jax.Array, layer: jax.Array, start: jax.Array, *, blocks: int) -> jax.Array:
    """Put a tensor into a parameter of all layers: that of layer `layer`, from row `start` of each of its blocks on."""
    every = whole.reshape(whole.shape[0], blocks, -1, *whole.shape[2:])
    part = tensor.reshape(1, blocks, -1, *tensor.shape[1:])
    zeros = (0,) * (part.ndim - 3)
    updated: jax.Array = lax.dynamic_update_slice(every, part, (layer, 0, start, *zeros))
    return updated.reshape(whole.shape)


def _count(names: Collection[str], noun: str) -> str:
    return f"{len(names)} {noun}{'s' if len(names) > 1 else ''}"


def _some(names: Iterable[str]) -> str:
    first, rest = sorted(names)[:3], len(list(names)) - 3
    return ", ".join(first) + (f" and {rest} more" if rest > 0 else "")
