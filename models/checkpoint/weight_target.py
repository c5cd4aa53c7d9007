"""Where the tensors of a checkpoint go: which parameter, which layer of it, which rows."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from jaxllm.models.checkpoint.tensor_source import Source, TensorTransform, Whole, source_of
from jaxllm.models.errors import ModelError
from jaxllm.models.layers.parameter import Merged, ParameterSpec, Part, Rows

ParameterPath = tuple[Any, ...]
Specs = Mapping[ParameterPath, ParameterSpec]

LOOP, SCAN = "each", "all"
"""Names under which the two layer stacks keep their layers: by number, or by a range "start:stop:step"."""


@dataclass(frozen=True)
class WeightTarget:
    """Where a checkpoint tensor goes: a parameter, or slice `layer` of a parameter that stacks several layers.

    `take` makes of the tensor one of `shape`; `rows` says what the parameter adds to that. Where it holds several
    tensors, `part` of each of its `blocks` is this one's.
    """

    path: ParameterPath
    layer: int | None
    shape: tuple[int, ...]
    rows: Rows
    part: Part | None = None
    blocks: int = 1
    take: TensorTransform = Whole()

    @property
    def tensor_shape(self) -> tuple[int, ...]:
        """Shape of the checkpoint's tensor."""
        return self.take.shape_of(self.shape)


Slots = Mapping[str, Sequence[WeightTarget]]
"""By the name of the checkpoint's tensor, which may be more than one module's."""


def checkpoint_slots(specs: Specs, names: Mapping[str, str | Source], first_layer: int = 0) -> Slots:
    """Slots of all tensors. `names` maps module names to the checkpoint's, `*` is the layer's number.

    The first of the layers there are has number `first_layer`. Raises `ModelError` for a module that `names` lacks.
    """
    slots: dict[str, list[WeightTarget]] = {}
    for path, spec in specs.items():
        if spec.name != "values":
            continue  # It comes with the values.
        *modules, parameter = path
        first, *others = spec.shape
        layers, is_stacked = layers_of(modules)
        for module, size, slot in _tensors_of(path, first, spec.rows):
            plain = _plain_name(module)
            if plain not in names:
                raise ModelError(f"the family's weight names lack module {plain!r}")
            source = source_of(names[plain])
            expert = None if slot.part is None else slot.part.expert
            found = replace(slot, shape=(slot.rows.of_tensor(size), *others))
            for index, layer in enumerate(layers):
                name = source.tensor(parameter, first_layer + layer, expert)
                take = source.take_of(first_layer + layer, expert)
                slots.setdefault(name, []).append(replace(found, layer=index if is_stacked else None, take=take))
    return slots


def layers_of(modules: Sequence[str | int]) -> tuple[Sequence[int], bool]:
    """Numbers of the layers that a module is of, or one that means nothing; and whether they are stacked."""
    if SCAN in modules:
        start, stop, step = (int(part) for part in str(modules[modules.index(SCAN) + 1]).split(":"))
        return range(start, stop, step), True
    return [next((part for part in modules if isinstance(part, int)), 0)], False


def _plain_name(modules: Sequence[str | int]) -> str:
    """A module's name with `*` for the layer, however layers are kept."""
    parts = list(modules)
    if SCAN in parts:
        del parts[parts.index(SCAN)]
    return ".".join("*" if isinstance(part, int) or ":" in part else part for part in parts if part != LOOP)


def _tensors_of(
    path: ParameterPath, size: int, rows: Rows | Merged
) -> Iterator[tuple[tuple[str | int, ...], int, WeightTarget]]:
    """For each tensor that a parameter of `size` rows holds: the module it is named after, its rows, and its slot."""
    *modules, _ = path
    if isinstance(rows, Rows):
        yield tuple(modules), size, WeightTarget(path, None, (), rows)
        return
    for part in rows.tensors():
        slot = WeightTarget(path, None, (), part.rows, part, rows.blocks)
        yield (*modules[:-1], part.name), rows.blocks * part.size, slot
