"""Products by the kernel for CPUs against numpy in float64."""

import threading

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxllm.pallas_kernels.cpu_common.processor import host_processor
from jaxllm.pallas_kernels.linear import Fused, Norm, can_pack
from jaxllm.pallas_kernels.linear.cpu import BLOCK
from jaxllm.pallas_kernels.linear.cpu.form import Form
from jaxllm.pallas_kernels.linear.cpu.matmul import CHUNK
from jaxllm.pallas_kernels.linear.cpu.packed import matmul, packed_layout
from jaxllm.pallas_kernels.linear.cpu.strip import BLOCKS, DEPTH

product = jax.jit(matmul, static_argnames=("form", "out_dtype"))
NATIVE = Form("bfloat16", is_native=True)
ON_THIS_PROCESSOR = pytest.mark.skipif(
    not host_processor().multiplies_bfloat16, reason="the processor has no AVX512-BF16"
)


def operands(rows: int, depth: int, columns: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(rows + depth + columns)
    return rng.standard_normal((rows, depth), np.float32), rng.standard_normal((columns, depth), np.float32)


def packed(matrix: np.ndarray, multiplies_pairs: bool = False) -> np.ndarray:
    layout = packed_layout(matrix.shape, matrix.dtype.name, multiplies_pairs=multiplies_pairs)
    found = np.empty(layout.array_shape, matrix.dtype)
    layout.pack_into(found, matrix)
    np.testing.assert_array_equal(layout.pack(jnp.asarray(matrix)), found)
    return found


@settings(max_examples=25)
@given(layers=st.integers(1, 3), rows=st.integers(1, 40), columns=st.integers(1, 20))
def test_where_an_element_of_a_matrix_lies(layers: int, rows: int, columns: int) -> None:
    matrices = np.arange(layers * rows * columns, dtype=np.float32).reshape(layers, rows, columns)
    found = np.stack([packed(matrix) for matrix in matrices])
    row, column = rows - 1, columns // 2
    np.testing.assert_array_equal(found[:, row // BLOCK, column, row % BLOCK], matrices[:, row, column])
    np.testing.assert_array_equal(found.swapaxes(2, 3).reshape(layers, -1, columns)[:, :rows], matrices)


@pytest.mark.parametrize("shape", [(5, 8), (32, 6), (37, 64)])
def test_where_an_element_of_a_pair_lies(shape: tuple[int, int]) -> None:
    """Of a matrix whose rows lie side by side, and of one whose columns do."""
    matrix = (np.arange(shape[0] * shape[1], dtype=np.uint16) + 0x3F80).view(ml_dtypes.bfloat16).reshape(shape)
    found = packed(matrix, True).view(np.uint16)
    for row, column in ((0, 0), (shape[0] - 1, 3), (shape[0] // 2, shape[1] - 1)):
        where = row // BLOCK, column // 2, row % BLOCK * 2 + column % 2
        assert found[where] == matrix.view(np.uint16)[row, column]
    np.testing.assert_array_equal(packed(np.asfortranarray(matrix), True).view(np.uint16), found)


@pytest.mark.parametrize(
    ("rows", "depth", "columns"),
    [
        (1, 16, 1),
        (2, 32, 3),
        (3, 48, BLOCKS * BLOCK + 1),
        (5, 64, BLOCKS * BLOCK - 1),
        (7, DEPTH, 2 * BLOCKS * BLOCK + 2),
        (8, DEPTH + 16, 7),
        (9, 3 * DEPTH + 32, 50),
        (64, 96, 100),
        (CHUNK + 3, 80, 49),
    ],
)
def test_matches_numpy(rows: int, depth: int, columns: int) -> None:
    x, weight = operands(rows, depth, columns)
    wanted = x.astype(np.float64) @ weight.T.astype(np.float64)
    found = np.asarray(product(x, packed(weight)))
    np.testing.assert_allclose(found[:, :columns], wanted, rtol=0, atol=6e-6 * depth**0.5)
    assert not found[:, columns:].any()


def test_weights_of_bfloat16_are_read_exactly() -> None:
    x, weight = operands(11, 64, 48)
    narrow = weight.astype(ml_dtypes.bfloat16)
    exact = product(x, packed(narrow.astype(np.float32)))
    np.testing.assert_array_equal(product(x, packed(narrow)), exact)


def test_a_layer_of_several() -> None:
    x, weight = operands(4, 32, 96)
    stacked = np.stack([packed(each) for each in weight.reshape(3, 32, 32)])
    for layer in range(3):
        alone = product(x, stacked[layer])
        np.testing.assert_array_equal(product(x, stacked, None, jnp.int32(layer)), alone)


def test_rows_are_normalised_first() -> None:
    x, weight = operands(21, 48, 32)
    scale = np.linspace(0.5, 2, 48, dtype=np.float32)
    wide = x.astype(np.float64)
    normed = wide / np.sqrt((wide**2).mean(axis=1, keepdims=True) + 0.01) * scale
    found = product(x, packed(weight), fused=Fused(Norm(jnp.asarray(scale), 0.01)))
    np.testing.assert_allclose(found, normed @ weight.T.astype(np.float64), rtol=0, atol=3e-5)


def test_rows_are_gated_first() -> None:
    x, weight = operands(19, 64, 16)
    x *= 20  # to where exp() ends
    gate, up = np.split(x.astype(np.float64), 2, axis=1)
    gated = gate / (1 + np.exp(-gate)) * up
    found = product(x, packed(weight[:, :32]), fused=Fused(is_gated=True))
    np.testing.assert_allclose(found, gated @ weight[:, :32].T.astype(np.float64), rtol=1e-5, atol=1e-2)


def test_what_is_added() -> None:
    x, weight = operands(10, DEPTH + 64, 64)
    plus = np.random.default_rng(0).standard_normal((10, 64), np.float32)
    alone = product(x, packed(weight), jnp.int32(9))
    together = np.asarray(product(x, packed(weight), jnp.int32(9), fused=Fused(residual=jnp.asarray(plus))))
    np.testing.assert_array_equal(together[:9], (np.asarray(alone) + plus)[:9])
    assert not together[9].any()


FORMS = [Form("float32"), Form("bfloat16"), pytest.param(NATIVE, marks=ON_THIS_PROCESSOR)]


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
@settings(max_examples=25)
@given(rows=st.integers(1, 40), used=st.integers(0, 40), columns=st.integers(1, 120), is_normed=st.booleans())
def test_a_row_depends_on_nothing_but_itself(form: Form, rows: int, used: int, columns: int, is_normed: bool) -> None:
    """The same bits alone, among others, and in front of padding; which is zero."""
    x, matrix = operands(40, 64, columns)
    weight = packed(matrix.astype(form.dtype), form.is_native)
    fused = Fused(Norm(jnp.ones(64, jnp.float32), 1e-5) if is_normed else None)
    used = min(rows, used)
    alone = [product(x[row : row + 1], weight, fused=fused, form=form) for row in range(used)]
    together = np.asarray(product(x[:rows], weight, jnp.int32(used), fused=fused, form=form))
    np.testing.assert_array_equal(together[:used], np.concatenate(alone or [together[:0]]))
    assert not together[used:].any()


@ON_THIS_PROCESSOR
@pytest.mark.parametrize("rows", [1, 3, 13, CHUNK + 9])
@pytest.mark.parametrize("depth", [16, DEPTH, 2 * DEPTH + 48])
def test_pairs_of_bfloat16(rows: int, depth: int) -> None:
    """As exact as float32; a result of bfloat16 is that of float32, rounded once, with what is added."""
    x, matrix = (array.astype(ml_dtypes.bfloat16) for array in operands(rows, depth, 2 * BLOCKS * BLOCK + BLOCK))
    plus = np.random.default_rng(0).standard_normal((rows, len(matrix)), np.float32).astype(ml_dtypes.bfloat16)
    weight, fused = packed(matrix, True), Fused(residual=jnp.asarray(plus))
    wide = np.asarray(product(x, weight, form=NATIVE))
    wanted = x.astype(np.float64) @ matrix.T.astype(np.float64)
    np.testing.assert_allclose(wide, wanted, rtol=0, atol=6e-6 * depth**0.5)
    rounded = product(x, weight, fused=fused, form=NATIVE, out_dtype=jnp.bfloat16)
    np.testing.assert_array_equal(rounded, (wide + plus.astype(np.float32)).astype(ml_dtypes.bfloat16))


@ON_THIS_PROCESSOR
def test_numbers_that_are_not_finite_stay_in_their_row() -> None:
    x, matrix = (array.astype(ml_dtypes.bfloat16) for array in operands(11, 64, 48))
    clean = np.asarray(product(x, packed(matrix, True), form=NATIVE))
    x[4, 7], x[9, 0] = np.nan, np.inf
    found = np.asarray(product(x, packed(matrix, True), form=NATIVE, out_dtype=jnp.bfloat16)).astype(np.float32)
    assert np.isnan(found[4]).all()
    assert np.isinf(found[9]).all()
    others = [row for row in range(11) if row not in (4, 9)]
    np.testing.assert_array_equal(found[others], clean[others].astype(ml_dtypes.bfloat16).astype(np.float32))


def test_several_threads_call_at_once() -> None:
    x, matrix = operands(24, 1024, 300)
    weight, fused = packed(matrix), Fused(Norm(jnp.ones(1024, jnp.float32), 1e-5))
    wanted, compiled = np.asarray(product(x, weight, fused=fused)), product.lower(x, weight, fused=fused).compile()
    wrong: list[int] = []

    def run(thread: int) -> None:
        wrong.extend(thread for _ in range(50) if not np.array_equal(compiled(x, weight, fused=fused), wanted))

    threads = [threading.Thread(target=run, args=(thread,)) for thread in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_what_it_can_do() -> None:
    assert can_pack(32, "float32")
    assert can_pack(16, "bfloat16")
    assert not can_pack(20, "float32")
    assert not can_pack(32, "float16")
