"""Arrays of zeros whose memory comes when it is written."""

import mmap
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxllm.pallas_kernels.cpu_common.zeros import zeros

LARGE = 64 << 20


def _resident() -> int:
    """Bytes of memory that this process holds."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * mmap.PAGESIZE


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
@pytest.mark.parametrize("shape", [(), (0, 3), (1,), (7, 3), (1025,), (3, 5, 1367), (2, 1 << 20)], ids=str)
def test_all_are_zero_even_where_memory_was_in_use(shape: tuple[int, ...], dtype: str) -> None:
    make = jax.jit(lambda: zeros(shape, jnp.dtype(dtype)))
    for _ in range(3):
        found = make()
        assert found.shape == shape
        assert found.dtype == dtype
        np.testing.assert_array_equal(np.asarray(found), np.zeros(shape, dtype))
        # What comes next may get this memory.
        found.delete()
        jnp.full(shape, 1, dtype).block_until_ready().delete()


def test_memory_is_taken_when_it_is_written() -> None:
    make = jax.jit(lambda: zeros((LARGE,), jnp.dtype("int8")))
    write = jax.jit(lambda array: array + 1, donate_argnums=0)
    before = _resident()
    array = make().block_until_ready()
    taken = _resident() - before
    array = write(array).block_until_ready()
    assert taken < LARGE // 4
    assert _resident() - before > LARGE * 3 // 4
    assert (np.asarray(array) == 1).all()
