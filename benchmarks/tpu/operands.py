"""Operands of a Pallas kernel: the values of those that can be known without a device."""

from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal


def known_operands(jaxpr: ClosedJaxpr, values: Sequence[Any]) -> list[tuple[str, list[Any]]]:
    """The Pallas calls of `jaxpr` in order, as (name, operands).

    `values` has a NumPy array for each known argument and None for the rest. An operand is a NumPy array where it
    follows from those (also through arithmetic outside the kernel), else None. Nothing else is computed.
    """
    found: list[tuple[str, list[Any]]] = []
    _evaluate(jaxpr.jaxpr, jaxpr.consts, values, found)
    return found


def _evaluate(
    jaxpr: Jaxpr, consts: Sequence[Any], values: Sequence[Any], found: list[tuple[str, list[Any]]]
) -> list[Any]:
    known: dict[Any, Any] = dict(zip(jaxpr.constvars, consts, strict=True))
    known.update(zip(jaxpr.invars, values, strict=True))
    for equation in jaxpr.eqns:
        inputs = [atom.val if isinstance(atom, Literal) else known.get(atom) for atom in equation.invars]
        outputs: Sequence[Any] = [None] * len(equation.outvars)
        inner = next(_inner(equation.params), None)
        if equation.primitive.name == "pallas_call":
            found.append((_name(equation.params), inputs))
        elif inner is not None and len(inner.jaxpr.invars) == len(inputs) and len(inner.jaxpr.outvars) == len(outputs):
            outputs = _evaluate(inner.jaxpr, inner.consts, inputs, found)
        elif all(value is not None for value in inputs):
            result = equation.primitive.bind(*inputs, **equation.params)
            outputs = result if equation.primitive.multiple_results else [result]
        known.update(zip(equation.outvars, outputs, strict=True))
    return [atom.val if isinstance(atom, Literal) else known.get(atom) for atom in jaxpr.outvars]


def _inner(params: dict[str, Any]) -> Iterator[ClosedJaxpr]:
    for name in ("jaxpr", "call_jaxpr"):
        if isinstance(params.get(name), ClosedJaxpr):
            yield params[name]


def _name(params: dict[str, Any]) -> str:
    info = params.get("name") or params.get("name_and_src_info")
    return str(getattr(info, "name", info))


def as_words(value: Any) -> list[int] | None:
    """The 32-bit words of a known operand, as they lie in memory; None for an operand that is not known.

    Rows of arrays of more than one dimension begin at multiples of 128 words.
    """
    if value is None:
        return None
    array = np.asarray(jax.device_get(value))
    if array.ndim > 1:
        array = np.pad(array, [(0, 0)] * (array.ndim - 1) + [(0, -array.shape[-1] % 128)])
    if np.issubdtype(array.dtype, np.floating):
        array = array.astype(np.float32).view(np.int32)
    return [int(word) for word in array.astype(np.int32).reshape(-1)]
