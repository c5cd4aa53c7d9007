"""The convolution is torch's, however its rows are cut into chunks."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from jaxllm.pallas_kernels.causal_convolution.api import causal_convolution

CHANNELS = 5
CHUNKS = ([[7, 1, 0, 4]], [[1, 1, 0, 1], [2, 0, 0, 1], [4, 0, 0, 2]], [[3, 0, 0, 0], [0, 1, 0, 3], [4, 0, 0, 1]])
"""Tokens of each of four rows, in one step or several."""


def expected(rows: list[np.ndarray], weight: np.ndarray, bias: np.ndarray | None) -> list[np.ndarray]:
    """Torch's convolution of rows [T, D]."""
    reach = weight.shape[1] - 1
    options: Any = {"bias": None if bias is None else torch.tensor(bias), "groups": CHANNELS, "padding": reach}
    return [
        torch.nn.functional.conv1d(torch.tensor(row.T)[None], torch.tensor(weight)[:, None], **options)[0]
        .numpy()
        .T[: len(row)]
        if len(row)
        else row
        for row in rows
    ]


@pytest.mark.parametrize(("width", "has_bias"), [(2, False), (4, True)])
@pytest.mark.parametrize(
    ("implementation", "chunks"),
    [("xla", CHUNKS[0]), ("xla", CHUNKS[1]), ("xla", CHUNKS[2]), ("reference", CHUNKS[2])],
    ids=["whole", "decodes", "uneven", "reference"],
)
def test_chunks(implementation: str, chunks: list[list[int]], width: int, has_bias: bool) -> None:
    random = np.random.default_rng(width)
    lengths = np.sum(chunks, axis=0)
    rows = [random.normal(size=(length, CHANNELS)).astype(np.float32) for length in lengths]
    weight = random.normal(size=(CHANNELS, width)).astype(np.float32)
    bias = random.normal(size=CHANNELS).astype(np.float32) if has_bias else None
    states = jnp.zeros((len(rows), width - 1, CHANNELS))
    done, found = np.zeros(len(rows), np.int64), [[np.zeros((0, CHANNELS), np.float32)] for _ in rows]
    convolve: Any = partial(causal_convolution, implementation=implementation)
    convolve = convolve if implementation == "reference" else jax.jit(convolve)
    for counts in chunks:
        parts = [row[begin : begin + count] for row, begin, count in zip(rows, done, counts, strict=True)]
        # Padding after the last row is anything but zero.
        x = jnp.asarray(np.concatenate([*parts, np.full((3, CHANNELS), 100.0, np.float32)]))
        starts = jnp.asarray(np.concatenate([[0], np.cumsum(counts)]), jnp.int32)
        out, states = convolve(x, states, jnp.asarray(weight), None if bias is None else jnp.asarray(bias), starts)
        assert np.isfinite(np.asarray(out)).all()
        for number, part in enumerate(np.split(np.asarray(out), np.cumsum(counts))[:-1]):
            found[number].append(part)
        done += counts
    for parts, wanted in zip(found, expected(rows, weight, bias), strict=True):
        np.testing.assert_allclose(np.concatenate(parts), wanted, atol=1e-5)
    for row, state in zip(rows, np.asarray(states), strict=True):
        before = np.concatenate([np.zeros((width - 1, CHANNELS), np.float32), row])
        np.testing.assert_array_equal(state, before[len(row) :])


def test_nothing_depends_on_values() -> None:
    """One program serves all batches of a shape, and types are kept."""
    shapes = [(8, 4), (2, 2, 4), (4, 3)]
    arrays = [jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in shapes]
    starts = jax.ShapeDtypeStruct((3,), jnp.int32)
    convolve = jax.jit(lambda x, states, weight, starts: causal_convolution(x, states, weight, None, starts))
    out, after = convolve.eval_shape(*arrays, starts)
    assert (out.shape, out.dtype, after.shape, after.dtype) == ((8, 4), jnp.bfloat16, (2, 2, 4), jnp.bfloat16)
