"""Low-rank products of rows in groups, against NumPy; a row's bits depend on nothing but itself and its adapter."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxllm.pallas_kernels.low_rank import GroupedLowRank, RowBlocks, add_grouped_low_rank

SLOTS, EXPERTS, RANK, IN, SIZES = 3, 4, 8, 48, (16, 32)
RANDOM = np.random.default_rng(0)
DOWN = RANDOM.standard_normal((SLOTS, EXPERTS, len(SIZES) * RANK, IN), np.float32)
UP = RANDOM.standard_normal((SLOTS, EXPERTS, RANK, sum(SIZES)), np.float32)
ROWS = RANDOM.standard_normal((70, IN), np.float32)
BASE = RANDOM.standard_normal((70, sum(SIZES)), np.float32)
PLATFORMS = ("cpu", "gpu")


def add(
    rows: np.ndarray,
    base: np.ndarray,
    slots: np.ndarray,
    experts: np.ndarray,
    platform: str,
    order: tuple[int, ...] = (0, 1, 2),
    dtype: str = "float32",
) -> np.ndarray:
    """Of rows in any order; slot s of the matrices is put to `order[s]`, in the second of two layers."""
    places = np.lexsort((np.array(order)[slots], experts))
    down, up = (
        jnp.stack([jnp.ones(array.shape), jnp.asarray(array[np.argsort(order)])]).astype(dtype) for array in (DOWN, UP)
    )

    def function(
        down: jax.Array, up: jax.Array, base: jax.Array, x: jax.Array, slots: jax.Array, experts: jax.Array
    ) -> jax.Array:
        down, up = (each.reshape(2, SLOTS, -1, each.shape[-1]) for each in (down, up))
        blocks = RowBlocks.of(slots, experts, EXPERTS, platform)
        return add_grouped_low_rank(base, x, GroupedLowRank(down, up, jnp.int32(1), RANK, SIZES), blocks, platform)

    which = (np.where(slots < 0, -1, np.array(order)[slots])[places].astype(np.int32), experts[places].astype(np.int32))
    given = (jnp.asarray(each[places], dtype) for each in (base, rows))
    found = np.empty(base.shape, np.float32)
    found[places] = np.asarray(jax.jit(function)(down, up, *given, *map(jnp.asarray, which)), np.float32)
    return found


def expected(slots: np.ndarray, experts: np.ndarray) -> np.ndarray:
    out = BASE.astype(np.float64)
    for row, (slot, expert) in enumerate(zip(slots, experts, strict=True)):
        if slot < 0 or expert >= EXPERTS:
            continue
        hidden = (DOWN[slot, expert].astype(np.float64) @ ROWS[row]).reshape(len(SIZES), RANK)
        parts = np.split(UP[slot, expert].astype(np.float64), np.cumsum(SIZES)[:-1], axis=1)
        out[row] += np.concatenate([own @ part for own, part in zip(hidden, parts, strict=True)])
    return out


def choices(seed: int) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    return random.integers(-1, SLOTS, len(ROWS)), random.integers(0, EXPERTS + 1, len(ROWS))


@pytest.mark.parametrize("platform", PLATFORMS)
def test_products(platform: str) -> None:
    slots, experts = choices(1)
    for which in ((slots, experts), (np.ones_like(slots), np.full_like(experts, 2))):
        found = add(ROWS, BASE, *which, platform)
        np.testing.assert_allclose(found, expected(*which), atol=1e-4)
    half = add(ROWS, BASE, slots, experts, platform, dtype="bfloat16")
    np.testing.assert_allclose(half, expected(slots, experts), atol=1.5, rtol=0.02)


@pytest.mark.parametrize("platform", PLATFORMS)
def test_a_row_depends_on_no_other_and_on_no_slot(platform: str) -> None:
    slots, experts = choices(2)
    whole = add(ROWS, BASE, slots, experts, platform)
    np.testing.assert_array_equal(add(ROWS, BASE, slots, experts, platform, order=(2, 0, 1)), whole)
    for some in (slice(0, 1), slice(5, 12), slice(30, 63)):
        alone = add(ROWS[some], BASE[some], slots[some], experts[some], platform)
        np.testing.assert_array_equal(alone, whole[some])
    none = (slots < 0) | (experts >= EXPERTS)
    np.testing.assert_array_equal(whole[none], BASE[none])
    np.testing.assert_array_equal(add(ROWS, BASE, np.full_like(slots, -1), experts, platform), BASE)
