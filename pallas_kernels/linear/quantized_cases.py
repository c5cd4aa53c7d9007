"""Cases of products with quantized matrices, which every implementation is held to, and how exact each must be."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np

from jaxllm.pallas_kernels.linear.api import linear
from jaxllm.pallas_kernels.linear.fused import Fused, Norm
from jaxllm.pallas_kernels.linear.quantized import QuantizedLayout
from jaxllm.pallas_kernels.linear.quantized_layouts import QUANTIZED_LAYOUTS
from jaxllm.pallas_kernels.linear.weight import Weight
from jaxllm.pallas_kernels.linear.weight_type import (
    FP4,
    INT4,
    UINT4,
    Activations,
    QuantizedMatrix,
    Values,
    WeightType,
)

NF4 = (
    *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635),
    *(-0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725),
    *(0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
)
"""Quantiles of the normal distribution (arXiv 2305.14314, appendix E)."""


@dataclass(frozen=True)
class QuantizedCase:
    """One product: rows of activations, the type of the matrix, and what is fused with it."""

    name: str
    kind: WeightType
    rows: int = 3
    in_size: int = 64
    out_size: int = 32
    padding: int = 0
    """Rows after those that count."""
    norm: bool = False
    gated: bool = False
    residual: bool = False
    layers: int | None = None
    """Matrices in a stack; the last one counts. None is one alone."""


INT8_ROWS = WeightType(Values.INT8)
_W8A8 = WeightType(Values.INT8, activations=Activations.PER_TOKEN)
_W4A8 = WeightType(Values.CODES, group=128, code=INT4, activations=Activations.PER_TOKEN)
_GPTQ = WeightType(Values.CODES, group=16, has_offsets=True, code=UINT4, is_reordered=True, scales="float16")

CASES: tuple[QuantizedCase, ...] = (
    QuantizedCase("int8", INT8_ROWS),
    QuantizedCase("int8_one_row", INT8_ROWS, 1),
    QuantizedCase("int8_odd_sizes", INT8_ROWS, 7, 48, 50, padding=2),
    QuantizedCase("int8_many_rows", INT8_ROWS, 130, 64, 33),
    QuantizedCase("int8_deep", INT8_ROWS, 5, 1040, 20),
    QuantizedCase("int8_norm", INT8_ROWS, 21, 48, 32, norm=True, padding=3),
    QuantizedCase("int8_gated", INT8_ROWS, 19, 32, 16, gated=True),
    QuantizedCase("int8_residual", INT8_ROWS, 3, 32, 20, residual=True),
    QuantizedCase("int8_layer", INT8_ROWS, 4, 32, 32, norm=True, residual=True, layers=3),
    QuantizedCase("int8_groups", WeightType(Values.INT8, group=32)),
    QuantizedCase("int8_offsets", WeightType(Values.INT8, has_offsets=True)),
    QuantizedCase("int8_small_groups_offsets", WeightType(Values.INT8, group=16, has_offsets=True, scales="float16")),
    QuantizedCase("int8_order", WeightType(Values.INT8, group=16, is_reordered=True)),
    QuantizedCase("e4m3", WeightType(Values.FLOAT8_E4M3, scales="bfloat16")),
    QuantizedCase("e5m2", WeightType(Values.FLOAT8_E5M2), 9),
    QuantizedCase("e4m3_groups", WeightType(Values.FLOAT8_E4M3, group=128), 5, 256),
    QuantizedCase("int4", WeightType(Values.CODES, code=INT4)),
    QuantizedCase("int4_groups", WeightType(Values.CODES, group=32, code=INT4, scales="bfloat16"), 1, 160, 48),
    QuantizedCase("int4_many_rows", WeightType(Values.CODES, group=128, code=INT4), 70, 320, 48, padding=3),
    QuantizedCase("int4_fused", WeightType(Values.CODES, group=16, code=INT4), 9, 32, 32, norm=True, residual=True),
    QuantizedCase("int4_gated", WeightType(Values.CODES, group=16, code=INT4), 9, 32, 48, gated=True),
    QuantizedCase("uint4_offsets", WeightType(Values.CODES, group=32, has_offsets=True, code=UINT4)),
    QuantizedCase("uint4_order", _GPTQ, 6),
    QuantizedCase("uint4_order_layer", _GPTQ, 6, layers=2),
    QuantizedCase("last_group_is_short", WeightType(Values.CODES, group=32, has_offsets=True, code=UINT4), 4, 80, 16),
    QuantizedCase("odd_inputs", WeightType(Values.CODES, code=INT4), 4, 27, 5),
    QuantizedCase("mxfp4", WeightType(Values.CODES, group=32, code=FP4)),
    QuantizedCase("nvfp4", WeightType(Values.CODES, group=16, code=FP4), 5),
    QuantizedCase("nf4", WeightType(Values.CODES, group=64, code=NF4), 5, 128),
    QuantizedCase("int8_per_token", _W8A8, 5),
    QuantizedCase("int8_per_token_many_rows", _W8A8, 130, 512, 40, padding=2),
    QuantizedCase("int8_per_token_fused", _W8A8, 5, 32, 32, norm=True, residual=True, layers=2),
    QuantizedCase("int8_static", WeightType(Values.INT8, activations=Activations.STATIC), 5),
    QuantizedCase(
        "int8_per_token_offsets", WeightType(Values.INT8, has_offsets=True, activations=Activations.PER_TOKEN), 5
    ),
    QuantizedCase("int8_per_token_groups", WeightType(Values.INT8, group=32, activations=Activations.PER_TOKEN), 5),
    QuantizedCase("int4_per_token", _W4A8, 5, 320, 48),
    QuantizedCase("int4_per_token_many_rows", _W4A8, 130, 320, 56, padding=2, residual=True),
    QuantizedCase("int4_per_token_fused", _W4A8, 9, 32, 32, norm=True, residual=True, layers=2),
    QuantizedCase("int4_per_token_outputs", WeightType(Values.CODES, code=INT4, activations=Activations.PER_TOKEN), 3),
    QuantizedCase("e4m3_per_token", WeightType(Values.FLOAT8_E4M3, activations=Activations.PER_TOKEN), 5),
    QuantizedCase("e4m3_static", WeightType(Values.FLOAT8_E4M3, activations=Activations.STATIC), 5),
    QuantizedCase("e5m2_per_token", WeightType(Values.FLOAT8_E5M2, activations=Activations.PER_TOKEN), 5),
)
"""Every type and every feature, at sizes that are and are not whole blocks."""


@dataclass(frozen=True)
class QuantizedInputs:
    """The arrays of a case. `matrix` is the one that counts."""

    case: QuantizedCase
    x: np.ndarray
    matrix: QuantizedMatrix
    fused: Fused

    def call(self, implementation: str) -> jax.Array:
        """`linear` with the weight as that implementation reads it: float32 [rows, out], without padding."""
        case = self.case
        layout = QUANTIZED_LAYOUTS[implementation]((case.out_size, case.in_size), case.kind)
        assert layout.reads((case.out_size, case.in_size), case.kind)
        weight = pack_matrix(layout, self.matrix, case.layers)
        call = jax.jit(linear)
        return call(jnp.asarray(self.x), weight, jnp.int32(case.rows), self.fused)[: case.rows]

    def expected(self) -> np.ndarray:
        """The product [rows, out] in float64, of activations as their type says."""
        case, fused = self.case, self.fused
        x = np.asarray(fused.prepare(jnp.asarray(self.x)))
        out = quantize_like(x, self.matrix) @ self.matrix.dequantized().T
        return (out if fused.residual is None else out + np.asarray(fused.residual, np.float64))[: case.rows]


def quantize_like(x: np.ndarray, matrix: QuantizedMatrix) -> np.ndarray:
    """Rows float32 [T, in] as what they are multiplied as, float64."""
    kind = matrix.kind
    if kind.activations == Activations.AS_THEY_ARE:
        return x.astype(np.float64)
    is_integer, largest = kind.row_type == np.int8, np.float32(_largest(kind))
    scale = np.abs(x).max(axis=1, keepdims=True) / largest if matrix.input_scale is None else matrix.input_scale
    scaled = x / scale
    near = np.clip(np.round(scaled), -128, 127) if is_integer else np.clip(scaled, -largest, largest)
    return near.astype(kind.row_type).astype(np.float64) * np.float64(scale)


def _largest(kind: WeightType) -> float:
    """Largest value of rounded activations."""
    return 127.0 if kind.row_type == np.int8 else float(ml_dtypes.finfo(kind.row_type).max)


def random_matrix(shape: tuple[int, int], kind: WeightType, rng: np.random.Generator) -> QuantizedMatrix:
    """Any numbers of a type, about 1 in all."""
    values = kind.values_shape(shape)
    if kind.values in (Values.INT8, Values.CODES):
        numbers = rng.integers(0, 256, values, dtype=np.uint8).view(kind.array_type)
    else:
        numbers = rng.standard_normal(values).astype(kind.array_type)
    spread = 64.0 if kind.values == Values.INT8 else 1.0 if kind.code is None else float(np.std(kind.code))
    scales = np.asarray(rng.uniform(0.5, 1.5, kind.scales_shape(shape)) / spread, jnp.dtype(kind.scales))
    offsets = rng.standard_normal(scales.shape).astype(scales.dtype) if kind.has_offsets else None
    order = rng.permutation(shape[1]).astype(np.int32) if kind.is_reordered else None
    # The largest of a few thousand normal numbers is about 4; some are cut off.
    input_scale = None
    if kind.activations == Activations.STATIC:
        input_scale = np.asarray(3 / _largest(kind), np.float32)
    return QuantizedMatrix(shape, kind, numbers, scales, offsets, order, input_scale)


def pack_matrix(layout: QuantizedLayout, matrix: QuantizedMatrix, layers: int | None = None) -> Weight:
    """A matrix as its layout has it: alone, or the last of a stack whose other ones are zeros."""
    arrays = {}
    for name, (own, dtype) in layout.arrays().items():
        array = np.zeros((layers or 1, *own.array_shape), dtype)
        own.pack_into(array[-1], np.asarray(getattr(matrix, name)).reshape(own.shape))
        arrays["array" if name == "values" else name] = jnp.asarray(array[0] if layers is None else array)
    return Weight(layout, layer=None if layers is None else layers - 1, **arrays)


def make_inputs(case: QuantizedCase) -> QuantizedInputs:
    """Random arrays."""
    rng = np.random.default_rng(0)
    matrix = random_matrix((case.out_size, case.in_size), case.kind, rng)

    def normal(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape, np.float32)

    tokens = case.rows + case.padding
    norm = Norm(jnp.asarray(normal(case.in_size)), 1e-5) if case.norm else None
    residual = jnp.asarray(normal(tokens, case.out_size)) if case.residual else None
    fused = Fused(norm, case.gated, residual)
    return QuantizedInputs(case, normal(tokens, case.in_size * (1 + case.gated)), matrix, fused)


def tolerance(inputs: QuantizedInputs) -> float:
    """Largest absolute error of a result: 1e-5 of the products' root sum of squares, whose factors are about 1."""
    return 4e-5 * inputs.case.in_size**0.5
