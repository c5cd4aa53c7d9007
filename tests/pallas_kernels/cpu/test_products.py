"""Products by the kernel for CPUs against numpy in float64."""

import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxllm.pallas_kernels.cpu import products
from jaxllm.pallas_kernels.cpu.matmul import BLOCK, DEPTH

product = jax.jit(products.matmul)


def operands(rows: int, depth: int, columns: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(rows + depth + columns)
    return rng.standard_normal((rows, depth), np.float32), rng.standard_normal((columns, depth), np.float32)


@pytest.mark.parametrize(
    ("rows", "depth", "columns"),
    [
        (1, 16, 1),
        (2, 32, 3),
        (3, 48, BLOCK + 1),
        (5, 64, BLOCK - 1),
        (7, DEPTH, 2 * BLOCK + 2),
        (8, DEPTH + 16, 7),
        (9, 3 * DEPTH + 32, 50),
        (64, 96, 100),
        (131, 80, 49),
    ],
)
def test_matches_numpy(rows: int, depth: int, columns: int) -> None:
    x, weight = operands(rows, depth, columns)
    wanted = x.astype(np.float64) @ weight.T.astype(np.float64)
    np.testing.assert_allclose(product(x, weight), wanted, rtol=0, atol=3e-6 * depth**0.5)


@settings(max_examples=25)
@given(rows=st.integers(1, 40), used=st.integers(0, 40), columns=st.integers(1, 120))
def test_a_row_depends_on_nothing_but_itself(rows: int, used: int, columns: int) -> None:
    """The same bits alone, among others, and in front of padding; which is zero."""
    x, weight = operands(40, 64, columns)
    used = min(rows, used)
    alone = np.concatenate([product(x[row : row + 1], weight) for row in range(used)] or [np.zeros((0, columns))])
    together = np.asarray(product(x[:rows], weight, jnp.int32(used)))
    np.testing.assert_array_equal(together[:used], alone)
    assert not together[used:].any()


def test_several_threads_call_at_once() -> None:
    x, weight = operands(24, 1024, 300)
    wanted, compiled = np.asarray(product(x, weight)), product.lower(x, weight).compile()
    wrong: list[int] = []

    def run(thread: int) -> None:
        wrong.extend(thread for _ in range(50) if not np.array_equal(compiled(x, weight), wanted))

    threads = [threading.Thread(target=run, args=(thread,)) for thread in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_what_it_cannot_do() -> None:
    x = jnp.zeros((2, 32), jnp.float32)
    assert products.fits(x, jnp.zeros((5, 32), jnp.float32))
    assert not products.fits(x.astype(jnp.bfloat16), jnp.zeros((5, 32), jnp.bfloat16))
    assert not products.fits(x[:, :20], jnp.zeros((5, 20), jnp.float32))
