"""Whether the kernel that multiplies with experts is right on this machine, see `jaxllm.executor.kernels.self_test`."""

import logging
from collections.abc import Callable, Iterator
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np

from jaxllm.executor.kernels.self_test import named, unless_known
from jaxllm.executor.resolved import ResolvedConfig
from jaxllm.models.config import ModelConfig
from jaxllm.models.mlp_plan import EXPERT, ExpertsPlan
from jaxllm.pallas_kernels.grouped_matmul.cases import Case, Inputs, make_inputs
from jaxllm.pallas_kernels.grouped_matmul.quantized import choose_quantized_grouped_layout, quantized_grouped_matmul
from jaxllm.pallas_kernels.linear import Weight
from jaxllm.pallas_kernels.linear.quantized_cases import packed, quantized_like, random_matrix
from jaxllm.pallas_kernels.linear.quantized_layouts import QUANTIZED_LAYOUTS
from jaxllm.pallas_kernels.linear.weight_type import WeightType

logger = logging.getLogger(__name__)

_SIZES = (3, 0, 40, 1, 0, 300, 9, 7)
_IN, _OUT, _PADDING = 640, 384, 24
_CASES = {
    dtype: Case("self_test", _SIZES, _IN, _OUT, dtype=dtype, row_dtype=dtype, padding=_PADDING, layers=2)
    for dtype in ("bfloat16", "float32")
}
"""Groups that end within registers, within blocks and beyond them, with a depth that is padded."""

_TOLERANCE = 0.1
"""Of sums of 640 products of about 1, in any precision that a matrix unit may have."""
_QUANTIZED_TOLERANCE = 0.03
"""The same for each root of an input, where weights have few bits: rounding to bfloat16 takes a fifth of it."""

Run = Callable[[Inputs], jax.Array]
"""A product with matrices of a floating type."""

RunQuantized = Callable[[jax.Array, Weight, jax.Array], jax.Array]
"""One with matrices of few bits, of rows and the number of those in each group."""


def verify_experts(
    resolved: ResolvedConfig, run: Run | None = None, run_quantized: RunQuantized | None = None
) -> ResolvedConfig:
    """`resolved`, with XLA's products where `auto` chose a kernel that is not right here, or that reads no matrix.

    `run` and `run_quantized` are what multiplies: for tests. Raises `EngineError` for a kernel that hangs.
    """
    if resolved.config.compile.moe_backend != "auto" or resolved.experts == "xla":
        return resolved
    case = _CASES.get(resolved.dtype, _CASES["bfloat16"])
    cases = [case] if _has_plain(resolved.model) else []
    kinds = [*_kinds(resolved.model, resolved.experts)]
    if not cases and not kinds:
        return replace(resolved, experts="xla")
    chosen = run or jax.jit(lambda inputs: inputs.call(resolved.experts))
    quantized = run_quantized or jax.jit(quantized_grouped_matmul)
    kernel = f"products with experts by {resolved.experts!r}"
    key = ["experts", resolved.experts, resolved.dtype, repr(cases), repr(kinds)]

    def test() -> str | None:
        plain = next(filter(None, (_problem(case, chosen) for case in cases)), None)
        others = (_quantized_problem(kind, resolved.experts, resolved.dtype, quantized) for kind in kinds)
        return plain or next(filter(None, others), None)

    problem = unless_known(resolved, kernel, key, test, "--moe-backend")
    if problem is None:
        return resolved
    logger.warning(
        "%s failed its self-test on this %s: %s. Serving with 'xla', which is slower",
        kernel,
        resolved.device_kind,
        problem,
    )
    return replace(resolved, experts="xla", experts_problem=f"{resolved.experts}: {problem}")


def _has_plain(model: ModelConfig) -> bool:
    """Whether some experts have matrices of a floating type alone."""
    return any(
        not any(_is_of_expert(name) for name, _ in layer.weight_types)
        for layer in model.layers
        if isinstance(layer.mlp, ExpertsPlan)
    )


def _kinds(model: ModelConfig, backend: str) -> Iterator[WeightType]:
    """Each type of few bits that experts' matrices have, and the kernel takes."""
    pairs = (pair for layer in model.layers for pair in layer.weight_types)
    for kind in dict.fromkeys(kind for name, kind in pairs if _is_of_expert(name)):
        layout = choose_quantized_grouped_layout(len(_SIZES), _shape(kind), kind, backend=backend)
        if isinstance(layout, QUANTIZED_LAYOUTS[backend]):
            yield kind


def _is_of_expert(name: str) -> bool:
    return name.rpartition(".")[2].startswith(EXPERT)


def _shape(kind: WeightType) -> tuple[int, int]:
    """Of one expert's matrix: that of the case of a floating type, or deeper, with whole groups."""
    group = kind.group or _IN
    return _OUT, -(-_IN // group) * group


def _problem(case: Case, run: Run) -> str | None:
    """What is wrong beside XLA on the CPU."""
    inputs = make_inputs(case)
    try:
        found = np.asarray(run(inputs))
    except Exception as error:  # noqa: BLE001  Whatever compilers and drivers raise: the engine can do without.
        return named(error)
    cpu = jax.local_devices(backend="cpu")[0]
    wanted = np.asarray(jax.device_put(inputs, cpu).call("reference"))
    return _difference("it", found, wanted, _TOLERANCE)


def _quantized_problem(kind: WeightType, backend: str, dtype: str, run: RunQuantized) -> str | None:
    """What is wrong beside NumPy, where weights have few bits."""
    rng, groups, (out_size, in_size) = np.random.default_rng(0), len(_SIZES), _shape(kind)
    matrix = random_matrix((groups * out_size, in_size), kind, rng)
    layout = choose_quantized_grouped_layout(groups, (out_size, in_size), kind, backend=backend)
    rows = sum(_SIZES)
    x = rng.standard_normal((rows + _PADDING, in_size), np.float32).astype(jnp.dtype(dtype))
    try:
        weight = packed(layout, matrix, layers=2)
        found = np.asarray(run(jnp.asarray(x), weight, jnp.array(_SIZES, jnp.int32)), np.float64)[:rows]
    except Exception as error:  # noqa: BLE001  As above.
        return named(error)
    parts = np.split(quantized_like(x[:rows].astype(np.float32), matrix), np.cumsum(_SIZES)[:-1])
    own = matrix.dequantized().reshape(groups, out_size, in_size)
    wanted = np.concatenate([part @ one.T for part, one in zip(parts, own, strict=True)])
    return _difference(str(kind), found, wanted, _QUANTIZED_TOLERANCE * in_size**0.5)


def _difference(what: str, found: np.ndarray, wanted: np.ndarray, allowed: float) -> str | None:
    wrong = float(np.nan_to_num(np.abs(found - wanted), nan=np.inf).max())
    return f"{what} is off by {wrong:.1e}, where {allowed:.0e} is allowed" if wrong > allowed else None
