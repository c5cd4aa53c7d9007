"""The kernels of CPUs for quantised matrices, beyond what every implementation must do."""

from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxllm.pallas_kernels.cpu_common.processor import Processor
from jaxllm.pallas_kernels.cpu_common.targets import Target
from jaxllm.pallas_kernels.linear import Weight
from jaxllm.pallas_kernels.linear.cpu.quantized import call
from jaxllm.pallas_kernels.linear.cpu.quantized.form import Form, form_of
from jaxllm.pallas_kernels.linear.cpu.quantized.layout import PackedFours, QuantizedPacked
from jaxllm.pallas_kernels.linear.fused import NOTHING, Fused, Norm
from jaxllm.pallas_kernels.linear.quantized import QuantizedRowMajor
from jaxllm.pallas_kernels.linear.quantized_cases import NF4, pack_matrix, quantize_like, random_matrix
from jaxllm.pallas_kernels.linear.weight_type import FP4, INT4, UINT4, Activations, QuantizedMatrix, Values, WeightType
from tests.thinned import thinned

INT8 = WeightType(Values.INT8)
W8A8 = WeightType(Values.INT8, activations=Activations.PER_TOKEN)
CODES = WeightType(Values.CODES, group=32, code=INT4, scales="bfloat16")
W4A8 = replace(CODES, activations=Activations.PER_TOKEN)
KINDS = {
    "int8": INT8,
    "int8 x int8": W8A8,
    "int4": CODES,
    "int4 x int8": W4A8,
    "fp4": WeightType(Values.CODES, group=32, code=FP4),
    "uint4": WeightType(Values.CODES, group=64, code=UINT4, scales="float16", has_offsets=True),
    "nf4": WeightType(Values.CODES, group=32, code=NF4),
    "e4m3": WeightType(Values.FLOAT8_E4M3),
}
VNNI, AVX2, ARM = Processor(True, True), Processor(True, False), Processor(False, False)

product = jax.jit(lambda x, weight, rows=None, fused=NOTHING: weight.layout.multiply(x, weight, rows, fused))


def operands(kind: WeightType, out_size: int, in_size: int, rows: int) -> tuple[np.ndarray, QuantizedMatrix]:
    rng = np.random.default_rng(out_size)
    return rng.standard_normal((rows, in_size), np.float32), random_matrix((out_size, in_size), kind, rng)


def weight_of(matrix: QuantizedMatrix) -> Weight:
    return pack_matrix(QuantizedPacked(matrix.shape, matrix.kind), matrix)


@given(layers=st.integers(1, 3), rows=st.integers(1, 40), fours=st.integers(1, 9))
@settings(max_examples=3, deadline=None)
def test_where_a_byte_lies(layers: int, rows: int, fours: int) -> None:
    tensors = np.random.default_rng(0).integers(-128, 128, (layers, rows, 4 * fours)).astype(np.int8)
    layout = PackedFours(tensors.shape[1:])
    found = np.ones((layers, *layout.array_shape), np.int8)
    for array, tensor in zip(found, tensors, strict=True):
        layout.pack_into(array, tensor)
    np.testing.assert_array_equal(layout.pack(jnp.asarray(tensors)), found)
    row, column = rows - 1, 2 * fours
    np.testing.assert_array_equal(
        found[:, row // 16, column // 4, 4 * (row % 16) + column % 4], tensors[:, row, column]
    )
    np.testing.assert_array_equal(layout.taken(jnp.asarray(found[0]), jnp.arange(rows)), tensors[0])


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("depth", [96, 8192])
def test_within_1e5_of_the_exact_product(kind: WeightType, depth: int) -> None:
    """Relative to the lengths of a row and of the weights of an output, even if one number is far beyond the others."""
    x, matrix = operands(replace(kind, activations=Activations.AS_THEY_ARE), 50, depth, 7)
    x[3, 5] = 1000.0
    exact = matrix.dequantized()
    lengths = np.linalg.norm(x.astype(np.float64), axis=1)[:, None] * np.linalg.norm(exact, axis=1)
    error = np.abs(np.asarray(product(x, weight_of(matrix))) - x.astype(np.float64) @ exact.T) / lengths
    assert error.max() < 1e-6


@pytest.mark.parametrize("kind", [INT8, CODES], ids=["int8", "int4"])
def test_activations_of_bfloat16_have_two_digits(kind: WeightType) -> None:
    """Errors are a hundredth of what bfloat16 rounds a sum by, even if one number is far beyond the others."""
    layout = QuantizedPacked((48, 8192), kind)
    # Without products of bytes, a processor multiplies in float32.
    assert layout.form.reading("bfloat16") == (replace(layout.form, digits=2) if layout.form.digits else layout.form)
    assert layout.form.reading("float32") == layout.form
    x, matrix = operands(kind, 48, 8192, 5)
    x[3, 5] = 300.0
    narrow = jnp.asarray(x, jnp.bfloat16)
    x = np.asarray(narrow, np.float64)
    exact = matrix.dequantized()
    lengths = np.linalg.norm(x, axis=1)[:, None] * np.linalg.norm(exact, axis=1)
    found = np.asarray(product(narrow, weight_of(matrix)))
    assert (np.abs(found - x @ exact.T) / lengths).max() < 2**-9 / 64
    alone = np.asarray(product(narrow[3:4], weight_of(matrix)))
    np.testing.assert_array_equal(alone, found[3:4])


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_a_row_depends_on_nothing_but_itself(kind: WeightType) -> None:
    """The same bits alone, among others, and in front of padding; which is zero."""
    x, matrix = operands(kind, 100, 64, 150)
    weight = weight_of(matrix)
    for fused in (Fused(), Fused(Norm(jnp.ones(64, jnp.float32), 1e-5))):
        alone = np.concatenate([product(x[row : row + 1], weight, None, fused) for row in (0, 3, 17, 66, 148)])
        together = np.asarray(product(x, weight, jnp.int32(149), fused))
        np.testing.assert_array_equal(together[[0, 3, 17, 66, 148]], alone)
        assert not together[149:].any()
    np.testing.assert_array_equal(product(x[:7], weight), product(x, weight)[:7])


@pytest.mark.parametrize("kind", [CODES, W4A8], ids=["int4", "int4 x int8"])
def test_one_row_of_a_depth_that_ends_within_a_group(kind: WeightType) -> None:
    """Beyond the weights that are widened at once; the last group is short."""
    x, matrix = operands(kind, 50, 4096 + 48, 9)
    weight = weight_of(matrix)
    together = np.asarray(product(x, weight))
    np.testing.assert_array_equal(product(x[:1], weight), together[:1])
    exact = quantize_like(x, matrix) @ matrix.dequantized().T
    np.testing.assert_allclose(together, exact, rtol=0, atol=4e-5 * x.shape[1] ** 0.5)


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_what_is_no_number_stays_in_its_row(kind: WeightType) -> None:
    x, matrix = operands(kind, 32, 64, 4)
    wanted = np.asarray(product(x, weight_of(matrix)))
    x[1, 7], x[2] = np.nan, 0
    found = np.asarray(product(x, weight_of(matrix)))
    assert np.isnan(found[1]).all()
    assert not found[2].any()
    np.testing.assert_array_equal(found[[0, 3]], wanted[[0, 3]])
    # Nor is it lost where XLA rounds activations.
    found = np.asarray(product(x, pack_matrix(QuantizedRowMajor(matrix.shape, kind), matrix)))
    assert np.isnan(found[1]).all()
    assert not found[2].any()


def test_int8_times_int8_is_what_xla_makes_of_it() -> None:
    x, matrix = operands(W8A8, 48, 512, 20)
    wanted = product(x, pack_matrix(QuantizedRowMajor(matrix.shape, W8A8), matrix))
    np.testing.assert_allclose(product(x, weight_of(matrix)), wanted, rtol=3e-7, atol=1e-9)


def test_groups_of_rows_have_matrices_of_their_own() -> None:
    sizes = np.array([0, 5, 70, 0, 1])
    x, matrix = operands(CODES, 5 * 32, 64, 80)
    weight = pack_matrix(QuantizedPacked(matrix.shape, CODES), matrix, 2)
    layout = weight.layout
    assert isinstance(layout, QuantizedPacked)
    found = np.asarray(jax.jit(layout.grouped)(x, weight, jnp.asarray(sizes)))
    own = matrix.dequantized().reshape(5, 32, 64)[np.repeat(np.arange(5), sizes)]
    np.testing.assert_allclose(found[:76], np.einsum("ti,toi->to", x[:76], own), rtol=0, atol=3e-4)
    assert not found[76:].any()


@pytest.mark.slow
@pytest.mark.parametrize(
    "form",
    thinned([Form(Values.CODES, 3)], [Form(Values.INT8, 1), Form(Values.CODES, 1)]),
    ids=lambda form: form.name,
)
def test_processors_without_products_of_bytes_find_the_same(
    form: Form, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    kind = {"quantized_int8_1": W8A8, "quantized_codes_1": W4A8, "quantized_codes_3": CODES}[form.name]
    x, matrix = operands(kind, 48, 128, 20)
    weight = weight_of(matrix)
    assert isinstance(weight.layout, QuantizedPacked)
    if weight.layout.form != form:
        pytest.skip("this processor is one of them, and multiplies these in float32")
    wanted = product(x, weight)
    # One row and few have tiles of their own.
    target = call.quantized_target(form)
    monkeypatch.setattr("jaxllm.pallas_kernels.cpu_common.integers.HAS_DOT", False)
    code = target.build()
    other = Target(f"{target.name}_without_dot", lambda: code, Path(__file__).parent)
    monkeypatch.setattr(call, "quantized_target", lambda form: other)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    multiply = jax.jit(lambda x: weight.layout.multiply(x, weight))
    # Whole tiles, one of a single row, and one of a few.
    for rows in (20, 1, 3):
        np.testing.assert_array_equal(multiply(x[:rows]), wanted[:rows])


def test_which_kernel_a_matrix_gets() -> None:
    nf4, e4m3 = WeightType(Values.CODES, code=NF4), WeightType(Values.FLOAT8_E4M3)
    assert form_of(INT8, VNNI) == Form(Values.INT8, 3)
    assert form_of(INT8, AVX2) == form_of(INT8, ARM) == Form(Values.INT8, 0)
    assert form_of(W8A8, VNNI) == form_of(W8A8, AVX2) == Form(Values.INT8, 1)
    assert form_of(W8A8, ARM) is form_of(W4A8, ARM) is None
    assert form_of(W4A8, VNNI) == form_of(W4A8, AVX2) == Form(Values.CODES, 1)
    for code in (INT4, FP4):
        assert form_of(WeightType(Values.CODES, code=code), VNNI) == Form(Values.CODES, 3, is_looked_up=code == FP4)
    assert form_of(nf4, VNNI) == form_of(nf4, AVX2) == Form(Values.CODES, 0)
    assert form_of(e4m3, VNNI) == form_of(e4m3, ARM) == Form(Values.FLOAT8_E4M3, 0)
    assert form_of(replace(e4m3, activations=Activations.PER_TOKEN), VNNI) is None
    assert not QuantizedPacked.reads((16, 40), INT8)
    assert not QuantizedPacked.reads((16, 64), replace(INT8, group=8))
