"""The self-test of the kernel that multiplies with experts, with each type of matrix that the model's experts have."""

from collections.abc import Callable, Iterator, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from jaxllm.executor.kernels.self_test import SelfTest
from jaxllm.executor.resolved import ResolvedConfig
from jaxllm.models.config import ModelConfig
from jaxllm.models.mlp_plan import EXPERT, ExpertsPlan
from jaxllm.pallas_kernels.grouped_matmul.cases import Case, make_inputs
from jaxllm.pallas_kernels.grouped_matmul.quantized import quantized_grouped_matmul
from jaxllm.pallas_kernels.linear.quantized_cases import pack_matrix, quantize_like, random_matrix
from jaxllm.pallas_kernels.linear.quantized_layouts import QUANTIZED_LAYOUTS, choose_quantized_layout
from jaxllm.pallas_kernels.linear.weight_type import WeightType

_SIZES = (3, 0, 40, 1, 0, 300, 9, 7)
_IN, _OUT, _PADDING = 640, 384, 24
_CASES = {
    dtype: Case("self_test", _SIZES, _IN, _OUT, dtype=dtype, row_dtype=dtype, padding=_PADDING, layers=2)
    for dtype in ("bfloat16", "float32")
}
"""Groups that end within registers, within blocks and beyond them, with a depth that is padded."""

_TOLERANCE = 0.1
"""Tolerance of sums of 640 products of about 1, in any precision that a matrix unit may have."""
_QUANTIZED_TOLERANCE = 0.03
"""Tolerance times the root of the number of inputs, for quantized weights: rounding to bfloat16 takes a fifth of it."""


def _cases(resolved: ResolvedConfig) -> Sequence[Case | WeightType]:
    """Matrices of the floating type where experts have such, and each quantised type that the kernel takes."""
    case = _CASES.get(resolved.dtype, _CASES["bfloat16"])
    types = _quantized_types(resolved.model, resolved.backend("moe"))
    return [*([case] if _has_plain(resolved.model) else []), *types]


def _has_plain(model: ModelConfig) -> bool:
    """Whether some experts have matrices of a floating type alone."""
    return any(
        not any(_is_of_expert(name) for name, _ in layer.weight_types)
        for layer in model.layers
        if isinstance(layer.mlp, ExpertsPlan)
    )


def _quantized_types(model: ModelConfig, backend: str) -> Iterator[WeightType]:
    """Each quantised type that experts' matrices have, and the kernel takes."""
    pairs = (pair for layer in model.layers for pair in layer.weight_types)
    for kind in dict.fromkeys(kind for name, kind in pairs if _is_of_expert(name)):
        layout = choose_quantized_layout(_shape(kind), kind, groups=len(_SIZES), backend=backend)
        if isinstance(layout, QUANTIZED_LAYOUTS[backend]):
            yield kind


def _is_of_expert(name: str) -> bool:
    return name.rpartition(".")[2].startswith(EXPERT)


def _shape(kind: WeightType) -> tuple[int, int]:
    """Shape of one expert's matrix: that of the case of a floating type, or deeper, with whole groups."""
    group = kind.group or _IN
    return _OUT, -(-_IN // group) * group


def _multiply(case: Case | WeightType, backend: str, *inputs: object) -> jax.Array:
    """The product of a case by a backend."""
    if isinstance(case, WeightType):
        return jax.jit(quantized_grouped_matmul)(*inputs)
    return jax.jit(lambda inputs: inputs.call(backend))(*inputs)


def _find_problem(case: Case | WeightType, resolved: ResolvedConfig, run: Callable[..., jax.Array]) -> str | None:
    if isinstance(case, WeightType):
        return _quantized_problem(case, resolved.backend("moe"), resolved.dtype, run)
    inputs = make_inputs(case)
    found = np.asarray(run(case, resolved.backend("moe"), inputs))
    cpu = jax.local_devices(backend="cpu")[0]
    wanted = np.asarray(jax.device_put(inputs, cpu).call("reference"))
    return _difference("it", found, wanted, _TOLERANCE)


def _quantized_problem(kind: WeightType, backend: str, dtype: str, run: Callable[..., jax.Array]) -> str | None:
    """The difference from NumPy in words, None if it is small; for quantised weights."""
    rng, groups, (out_size, in_size) = np.random.default_rng(0), len(_SIZES), _shape(kind)
    matrix = random_matrix((groups * out_size, in_size), kind, rng)
    layout = choose_quantized_layout((out_size, in_size), kind, groups=groups, backend=backend)
    rows = sum(_SIZES)
    x = rng.standard_normal((rows + _PADDING, in_size), np.float32).astype(jnp.dtype(dtype))
    weight = pack_matrix(layout, matrix, layers=2)
    found = np.asarray(run(kind, backend, jnp.asarray(x), weight, jnp.array(_SIZES, jnp.int32)), np.float64)[:rows]
    parts = np.split(quantize_like(x[:rows].astype(np.float32), matrix), np.cumsum(_SIZES)[:-1])
    own = matrix.dequantized().reshape(groups, out_size, in_size)
    wanted = np.concatenate([part @ one.T for part, one in zip(parts, own, strict=True)])
    return _difference(str(kind), found, wanted, _QUANTIZED_TOLERANCE * in_size**0.5)


def _difference(what: str, found: np.ndarray, wanted: np.ndarray, allowed: float) -> str | None:
    wrong = float(np.nan_to_num(np.abs(found - wanted), nan=np.inf).max())
    return f"{what} has an error of {wrong:.1e}, and the limit is {allowed:.0e}" if wrong > allowed else None


TEST = SelfTest(
    "moe",
    title="expert matrix products by",
    kernels=("tpu",),
    cases=_cases,
    find_problem=_find_problem,
    run=_multiply,
)
