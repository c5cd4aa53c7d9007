"""The self-test of the kernel that multiplies with quantised matrices, with each type that the model has."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np

from jaxllm.executor.kernels.self_test import SelfTest
from jaxllm.executor.resolved import ResolvedConfig
from jaxllm.models.mlp_plan import EXPERT
from jaxllm.pallas_kernels.linear import linear
from jaxllm.pallas_kernels.linear.quantized_cases import QuantizedCase, QuantizedInputs, make_inputs, pack_matrix
from jaxllm.pallas_kernels.linear.quantized_layouts import QUANTIZED_LAYOUTS

_ROWS = (5, 300)
"""A decode, and a prompt: scales are multiplied elsewhere."""
_IN, _OUT = 512, 512
"""Minimum inputs and outputs of a matrix."""
_TOLERANCE = 0.03
"""Tolerance for factors of about 1, times the root of the inputs: rounding to bfloat16 takes a fifth of it."""


def _cases(resolved: ResolvedConfig) -> Sequence[QuantizedCase]:
    """Products with each type of matrix that linear layers of the model have, and the kernel takes."""
    model, layout, cases = resolved.model, QUANTIZED_LAYOUTS[resolved.backend("linear")], list[QuantizedCase]()
    types = [*model.weight_types, *(pair for layer in model.layers for pair in layer.weight_types)]
    for kind in dict.fromkeys(kind for name, kind in types if _is_linear(name)):
        group = kind.group or _IN
        in_size = -(-_IN // group) * group
        if layout.reads((_OUT, in_size), kind):
            cases += [QuantizedCase("self_test", kind, rows, in_size, _OUT, layers=2) for rows in _ROWS]
    return cases


def _is_linear(name: str) -> bool:
    """Whether a matrix is one of a linear layer: experts have a kernel of their own, embeddings none."""
    last = name.rpartition(".")[2]
    return last not in ("embedding", "table") and not last.startswith(EXPERT)


def _multiply(inputs: QuantizedInputs, backend: str, dtype: str) -> jax.Array:
    """The product by a backend, of activations of a type."""
    case = inputs.case
    layout = QUANTIZED_LAYOUTS[backend]((case.out_size, case.in_size), case.kind)
    call = jax.jit(linear, static_argnames="platform")
    return call(jnp.asarray(inputs.x, dtype), pack_matrix(layout, inputs.matrix, case.layers), platform=backend)


def _find_problem(case: QuantizedCase, resolved: ResolvedConfig, run: Callable[..., jax.Array]) -> str | None:
    """The difference from NumPy in words, None if it is small."""
    inputs, dtype = make_inputs(case), resolved.dtype
    inputs = replace(inputs, x=inputs.x.astype(jnp.dtype(dtype)).astype(np.float32))
    found = np.asarray(run(inputs, resolved.backend("linear"), dtype), np.float64)
    wrong, most = float(np.nan_to_num(np.abs(found - inputs.expected()), nan=np.inf).max()), case.in_size**0.5
    if wrong <= _TOLERANCE * most:
        return None
    return f"{case.kind} has an error of {wrong:.1e}, and the limit is {_TOLERANCE * most:.0e}"


TEST = SelfTest(
    "linear",
    title="quantized matrix products by",
    kernels=("tpu",),
    cases=_cases,
    find_problem=_find_problem,
    run=_multiply,
)
