"""Gives the matrices of a module the types that a plan names: which become quantized, and as what."""

import logging
from collections.abc import Sequence
from typing import Any

from flax import nnx

from jaxllm.models.errors import ModelError
from jaxllm.models.layers.matrix import Matrix
from jaxllm.models.layers.parameter import Merged, Rows
from jaxllm.models.quantization.convert import common_type
from jaxllm.pallas_kernels.linear.weight_type import WeightType

logger = logging.getLogger(__name__)


def set_weight_types(module: nnx.Module, types: Sequence[tuple[str, WeightType]]) -> None:
    """Give the modules inside their types, by their names in the module.

    Those that become one matrix get a type that all can be brought to; where some have no type, none has. Raises
    `ModelError`, which names them, where types cannot be brought to one.
    """
    if not types:
        return
    by_name = dict(types)
    # A list: giving a module parameters changes what is walked over.
    for path, each in list(nnx.iter_modules(module)):
        if isinstance(each, Matrix):
            names = _names_of(path, each.rows)
            kind = _shared_type(names, [by_name.get(name) for name in names])
            if kind is not None:
                each.set_weight_type(kind)


def _names_of(path: Sequence[Any], rows: Rows | Merged) -> list[str]:
    """Names of a module as weight names have them, one for each of the matrices that it is made of."""
    parts = ["*" if isinstance(part, int) else part for part in path]
    if isinstance(rows, Rows):
        return [".".join(parts)]
    return [".".join([*parts[:-1], part.name]) for part in rows.parts]


def _shared_type(names: Sequence[str], kinds: Sequence[WeightType | None]) -> WeightType | None:
    known = [kind for kind in kinds if kind is not None]
    if not known:
        return None
    if len(known) < len(kinds):
        ordinary = ", ".join(name for name, kind in zip(names, kinds, strict=True) if kind is None)
        logger.warning("%s: not quantized, because %s is not, and they are multiplied together", names, ordinary)
        return None
    found = common_type(known)
    if found is None:
        given = "; ".join(f"{name}: {kind}" for name, kind in zip(names, known, strict=True))
        raise ModelError(f"matrices that are multiplied together have types without a lossless common type: {given}")
    return found
