"""Whether the kernel that multiplies with quantised matrices is right on this machine, see `runtime.self_test`."""

import logging
from collections.abc import Callable, Iterator
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np

from jaxllm.executor.kernels.self_test import named, unless_known
from jaxllm.executor.resolved import ResolvedConfig
from jaxllm.models.config import ModelConfig
from jaxllm.models.mlp_plan import EXPERT
from jaxllm.pallas_kernels.linear import linear
from jaxllm.pallas_kernels.linear.quantized_cases import QuantizedCase, QuantizedInputs, make_inputs, packed
from jaxllm.pallas_kernels.linear.quantized_layouts import QUANTIZED_LAYOUTS

logger = logging.getLogger(__name__)

_ROWS = (5, 300)
"""A decode, and a prompt: scales are multiplied elsewhere."""
_IN, _OUT = 512, 512
"""Of a matrix, at least."""
_TOLERANCE = 0.03
"""Of products whose factors are about 1, for each root of an input: rounding to bfloat16 takes a fifth of it."""

Run = Callable[[QuantizedInputs, str, str], jax.Array]


def verify_products(resolved: ResolvedConfig, run: Run | None = None) -> ResolvedConfig:
    """`resolved`, with XLA's products where `auto` chose a kernel that is not right here.

    `run` is what multiplies: for tests. Raises `EngineError` for a kernel that hangs.
    """
    if resolved.config.compile.linear_backend != "auto" or resolved.products == "xla":
        return resolved
    cases = [*_cases(resolved.model, resolved.products)]
    if not cases:
        return replace(resolved, products="xla")
    kernel = f"products with quantised matrices by {resolved.products!r}"
    key = ["products", resolved.products, resolved.dtype, [repr(case) for case in cases]]

    def test() -> str | None:
        problems = (_problem(case, resolved.products, resolved.dtype, run or _multiply) for case in cases)
        return next(filter(None, problems), None)

    problem = unless_known(resolved, kernel, key, test, "--linear-backend")
    if problem is None:
        return resolved
    logger.warning(
        "%s failed its self-test on this %s: %s. Serving with 'xla', which is slower",
        kernel,
        resolved.device_kind,
        problem,
    )
    return replace(resolved, products="xla", products_problem=f"{resolved.products}: {problem}")


def _cases(model: ModelConfig, backend: str) -> Iterator[QuantizedCase]:
    """Products with each type of matrix that linear layers of the model have, and the kernel takes."""
    types = [*model.weight_types, *(pair for layer in model.layers for pair in layer.weight_types)]
    for kind in dict.fromkeys(kind for name, kind in types if _is_linear(name)):
        group = kind.group or _IN
        in_size = -(-_IN // group) * group
        if QUANTIZED_LAYOUTS[backend].reads((_OUT, in_size), kind):
            yield from (QuantizedCase("self_test", kind, rows, in_size, _OUT, layers=2) for rows in _ROWS)


def _is_linear(name: str) -> bool:
    """Whether a matrix is one of a linear layer: experts have a kernel of their own, embeddings none."""
    last = name.rpartition(".")[2]
    return last not in ("embedding", "table") and not last.startswith(EXPERT)


def _multiply(inputs: QuantizedInputs, backend: str, dtype: str) -> jax.Array:
    """The product by a backend, of activations of a type."""
    case = inputs.case
    layout = QUANTIZED_LAYOUTS[backend]((case.out_size, case.in_size), case.kind)
    call = jax.jit(linear, static_argnames="platform")
    return call(jnp.asarray(inputs.x, dtype), packed(layout, inputs.matrix, case.layers), platform=backend)


def _problem(case: QuantizedCase, backend: str, dtype: str, run: Run) -> str | None:
    """What is wrong beside NumPy."""
    inputs = make_inputs(case)
    inputs = replace(inputs, x=inputs.x.astype(jnp.dtype(dtype)).astype(np.float32))
    try:
        found = np.asarray(run(inputs, backend, dtype), np.float64)
    except Exception as error:  # noqa: BLE001  Whatever compilers and drivers raise: the engine can do without.
        return named(error)
    wrong, most = float(np.nan_to_num(np.abs(found - inputs.expected()), nan=np.inf).max()), case.in_size**0.5
    if wrong <= _TOLERANCE * most:
        return None
    return f"{case.kind} is off by {wrong:.1e}, where {_TOLERANCE * most:.0e} is allowed"
