"""An adapter as one slot of a model has it.

Axis letters: L layers of a stack, Q the rank of a slot, P parts of a merged matrix.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from jaxllm.models.adapters.adapter import Adapter, LowRank, Replaced, rows_of
from jaxllm.models.adapters.errors import AdapterError
from jaxllm.models.adapters.targets import is_target
from jaxllm.models.checkpoint.weight_target import ParameterPath, WeightTarget
from jaxllm.models.layers.parameter import Merged, ParameterSpec

SlotShapes = Mapping[ParameterPath, Any]
"""Shapes of the arrays of a model's slots, by their path in the model, see `split_adapters`."""

_EMPTY: Mapping[str | int, float] = {"scale": np.nan, "base_bias": 1}
"""What arrays have that an adapter says nothing of, other than 0. Magnitudes become factors, see `set_factors`."""


def slot_arrays(
    adapter: Adapter,
    slots: SlotShapes,
    specs: Mapping[ParameterPath, ParameterSpec],
    targets: Sequence[str] = (),
) -> list[np.ndarray]:
    """What one slot has of every array, in the order of `slots`: such as [(L,) 1, P * Q, in] and [(L,) 1, Q, out].

    `specs` are those of the model's parameters, and `targets` the modules that may have adapters, if not all. Raises
    `AdapterError` for parts of an adapter that slots do not have.
    """
    for each in adapter.low_rank:
        # Whether experts have slots is an option of its own.
        if targets and each.kind != "experts" and not is_target(each.module, targets):
            raise AdapterError(
                f"{adapter.config.source}: {each.module!r} is none of the modules that this server gives slots to "
                "(--lora-target-modules)"
            )
    for problem in _problems(adapter, slots):
        raise AdapterError(f"{adapter.config.source}: {problem}; merge the adapter into its model to serve it")
    arrays = {path: _zeros(path, shape) for path, shape in slots.items()}
    for each in adapter.low_rank:
        (_put_expert if each.kind == "experts" else _put)(arrays, each, specs[each.target.path].rows)
    for replaced in adapter.replaced:
        path = replaced.target.path
        if _is_bias(replaced, slots):
            _put_bias(arrays, replaced)
            continue
        own = arrays[_whole(path, path[-1])][0]
        # A classifier may have fewer labels than there is room for.
        (own[0] if path[-1] == "bias" else own)[: len(replaced.values)] = replaced.values
        arrays[_whole(path, "is_present")][...] = 1
    return list(arrays.values())


def _problems(adapter: Adapter, slots: SlotShapes) -> Iterator[str]:
    """What of an adapter has no place in a slot."""
    if adapter.config.invocation_tokens:
        # Queries multiply with them what keys of all tokens have in common, from before the invocation, too.
        heads = [each.module for each in adapter.low_rank if _is_of_heads(each, slots)]
        if heads:
            yield f"'alora_invocation_tokens' with an adapter of {heads[0]!r} is not supported"
    yield from _problems_of_whole(adapter, slots)
    if adapter.token_rows:
        yield "'trainable_token_indices': trained embeddings are not supported"
    for each in adapter.low_rank:
        if _path_of(each, "down") not in slots:
            yield f"adapters of {each.module!r} are not supported"
        has_vectors = any(path[-1] == "scale" for path in slots)
        if each.bias is not None and _path_of(each, "bias") not in slots:
            why = "is not supported there" if has_vectors else "takes --lora-vectors"
            yield f"{each.module!r} has a bias (lora_bias), which {why}"
        if each.magnitude is not None and _path_of(each, "scale") not in slots:
            why = "are not supported there" if has_vectors else "take --lora-vectors"
            yield f"{each.module!r} has magnitudes (use_dora), which {why}"


def _problems_of_whole(adapter: Adapter, slots: SlotShapes) -> Iterator[str]:
    """What of the tensors that stand in the place of the model's own has no place in a slot."""
    given = {each.target.path: len(each.values) for each in adapter.replaced}
    for replaced in adapter.replaced:
        if _is_bias(replaced, slots):
            continue
        path, shape = replaced.target.path, replaced.values.shape
        array = slots.get(_whole(path, path[-1]))
        if array is None and path[-1] == "bias" and (*path[:-1], "adapters", "down") in slots:
            yield f"{replaced.name!r} is a trained bias, which takes --lora-vectors"
            continue
        if array is None:
            yield f"{replaced.name!r} is trained as a whole, which is not supported"
        elif shape[0] > (most := array.shape[-1 if path[-1] == "bias" else -2]):
            yield f"{replaced.name!r} has {shape[0]} labels, and slots have room for {most} (--max-lora-cls-labels)"
        for other in ("weight", "bias"):
            if array is None or _whole(path, other) not in slots:
                continue
            if (*path[:-1], other) not in given:
                yield f"{replaced.name!r} has no {other} beside it"
            elif given[*path[:-1], other] != shape[0]:
                yield f"{replaced.name!r} has {shape[0]} labels, and its {other} {given[*path[:-1], other]}"


def _is_of_heads(each: LowRank, slots: SlotShapes) -> bool:
    """Whether an adapter is one of the matrices of heads, see `HeadSlots`."""
    return each.kind not in ("linear", "experts") and _path_of(each, "down") in slots


def _whole(path: ParameterPath, array: str) -> ParameterPath:
    """Where slots for a whole layer have what stands in the place of a parameter of it, see `WholeSlots`."""
    return (*path[:-2], f"whole_{path[-2]}", array)


def _is_bias(replaced: Replaced, slots: SlotShapes) -> bool:
    """Whether a tensor is a linear layer's bias, which slots have a vector for."""
    path = replaced.target.path
    return path[-1] == "bias" and _whole(path, "bias") not in slots and (*path[:-1], "adapters", "base_bias") in slots


def _put_bias(arrays: Mapping[ParameterPath, np.ndarray], replaced: Replaced) -> None:
    """Write a bias that stands in the place of a layer's own. It comes on top of what else there is (lora_bias)."""
    bias, base_bias = (
        rows_of(_vector(arrays, replaced.target, name), replaced.target) for name in ("bias", "base_bias")
    )
    bias += replaced.values.reshape(bias.shape)
    base_bias[...] = 0


def _vector(arrays: Mapping[ParameterPath, np.ndarray], target: WeightTarget, name: str) -> np.ndarray:
    """One layer's vector [out] of one slot, to be written to."""
    array = arrays[(*target.path[:-1], "adapters", name)]
    return (array if target.layer is None else array[target.layer])[0, 0]


def _path_of(each: LowRank, array: str) -> ParameterPath:
    return (*each.target.path[:-1], "adapters", array)


def _zeros(path: ParameterPath, shape: Any) -> np.ndarray:
    *stack, _, rows, columns = shape.shape
    return np.full((*stack, 1, rows, columns), _EMPTY.get(path[-1], 0), shape.dtype)


def _put(arrays: Mapping[ParameterPath, np.ndarray], each: LowRank, rows: Any) -> None:
    """Write the matrices of a module to their places."""
    target = each.target
    down, up = (arrays[_path_of(each, name)] for name in ("down", "up"))
    if target.layer is not None:
        down, up = down[target.layer], up[target.layer]
    most, place, columns = up.shape[1], 0, slice(None)
    if target.part is not None:
        assert isinstance(rows, Merged)
        place = [part.name for part in rows.parts].index(target.part.name) * most
        columns = slice(target.part.start, target.part.start + target.part.size)
    down[0, place : place + each.rank] = each.a
    by_block = up[0].reshape(most, target.blocks, -1)[: each.rank, :, columns]
    by_block[...] = each.b.T.reshape(by_block.shape)
    for name, values in (("bias", each.bias), ("scale", each.magnitude)):
        if values is not None:
            own = rows_of(_vector(arrays, target, name), target)
            own[...] = values.reshape(own.shape)


def _put_expert(arrays: Mapping[ParameterPath, np.ndarray], each: LowRank, rows: Any) -> None:
    """Write the matrices of one expert to their places, see `ExpertSlots`."""
    target, (down, up) = each.target, (arrays[_path_of(each, name)] for name in ("down", "up"))
    if target.layer is not None:
        down, up = down[target.layer], up[target.layer]
    assert isinstance(rows, Merged)
    assert rows.experts is not None
    assert target.part is not None
    assert target.part.expert is not None
    expert, parts = target.part.expert, [part.name for part in rows.parts]
    most = up.shape[1] // rows.experts
    first = (expert * len(parts) + parts.index(target.part.name)) * most
    down[0, first : first + each.rank] = each.a
    start = rows.parts[parts.index(target.part.name)].start
    of_expert = up[0, expert * most : expert * most + each.rank].reshape(each.rank, target.blocks, -1)
    own = of_expert[:, :, start : start + target.part.size]
    own[...] = each.b.T.reshape(own.shape)
