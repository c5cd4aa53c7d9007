"""The kernel for CPUs: it adds in place, prepares rows, and a token's bits depend on nothing but itself."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxllm.pallas_kernels.cpu_common.processor import host_processor
from jaxllm.pallas_kernels.linear import NOTHING, Fused
from jaxllm.pallas_kernels.linear.fused import Norm
from jaxllm.pallas_kernels.low_rank.api import add_low_rank
from jaxllm.pallas_kernels.low_rank.cases import Case, make_inputs
from jaxllm.pallas_kernels.low_rank.operands import LowRank, Outputs, TokenSlots

run = jax.jit(add_low_rank, static_argnames="implementation")

PARTS = Outputs((80, 16, 16))
TOKENS = 40


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("kind", ["norm", "gate"])
def test_prepares_rows_as_the_product_does(kind: str, dtype: str) -> None:
    base, x, matrices, tokens = make_inputs(Case("", (1, -1, 0, 0, 1, 1, 1), dtype=dtype, outputs=PARTS))
    x = x.astype(jnp.float32)
    if kind == "norm":
        fused = Fused(Norm(jnp.linspace(0.5, 2, x.shape[1], dtype=jnp.float32), 1e-5))
    else:
        fused, x = Fused(is_gated=True), jnp.concatenate([x, x[:, ::-1]], axis=1)
    found, wanted = (run(base, x, matrices, tokens, fused, implementation=name) for name in ("cpu", "reference"))
    np.testing.assert_allclose(found, wanted, atol=1e-3 if kind == "norm" else 5e-3, rtol=1e-5)
    np.testing.assert_array_equal(found[1], base[1])


@settings(max_examples=30, deadline=None)
@given(
    slots=st.lists(st.integers(-1, 4), min_size=1, max_size=TOKENS),
    used=st.integers(0, 20),
    dtype=st.sampled_from(["float32", "bfloat16"]),
    seed=st.integers(0, 2**16),
)
def test_bits_of_a_token_are_those_it_has_alone(slots: list[int], used: int, dtype: str, seed: int) -> None:
    """In any company and any slot, and in slots of a larger rank than the adapter's own."""
    random = np.random.default_rng(seed)
    # Shapes stay, so that there are two compilations.
    padded = [*slots, *[-1] * (TOKENS - len(slots))]
    base, x, matrices, tokens = make_inputs(Case("", tuple(padded), slots=5, rank=20, dtype=dtype, outputs=PARTS), seed)
    is_left = np.tile(np.arange(20) >= used, len(PARTS.sizes))
    down = jnp.where(is_left[None, :, None], 0, matrices.down)
    mixed = run(base, x, replace(matrices, down=down), tokens, implementation="cpu")
    row = int(random.integers(len(slots)))
    alone, place = np.full(TOKENS, -1, np.int32), int(random.integers(5))
    alone[row] = place if slots[row] >= 0 else -1
    order = np.arange(5)
    order[place] = max(slots[row], 0)
    moved = LowRank(down[order], matrices.up[order], None, PARTS)
    own = run(base, x, moved, TokenSlots.of(jnp.asarray(alone), 5, 20), implementation="cpu")
    np.testing.assert_array_equal(np.asarray(mixed[row]).view(np.int32), np.asarray(own[row]).view(np.int32))
    without = np.array(padded) < 0
    np.testing.assert_array_equal(np.asarray(mixed)[without], np.asarray(base)[without])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_bits_depend_on_neither_the_number_of_rows_nor_the_width_of_slots(dtype: str) -> None:
    base, x, matrices, _ = make_inputs(Case("", (0,) * 33, slots=2, rank=16, dtype=dtype, outputs=PARTS))
    wide = []
    for array, axis, parts in ((matrices.down, 1, len(PARTS.sizes)), (matrices.up, 1, 1)):
        each = jnp.split(array, parts, axis=axis)
        wide.append(jnp.concatenate([jnp.pad(one, ((0, 0), (0, 24), (0, 0))) for one in each], axis=axis))
    wanted = run(base, x, matrices, TokenSlots.of(jnp.zeros(33, jnp.int32), 2, 16), implementation="cpu")
    for count in (1, 2, 3, 4, 9, 33):
        tokens = TokenSlots.of(jnp.zeros(count, jnp.int32), 2, 40)
        found = run(base[:count], x[:count], LowRank(wide[0], wide[1], None, PARTS), tokens, implementation="cpu")
        np.testing.assert_array_equal(found, wanted[:count])


@pytest.mark.skipif(not host_processor().multiplies_bfloat16, reason="this processor does not round to bfloat16")
@pytest.mark.parametrize("kind", ["plain", "norm", "gate"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_narrow_base_takes_the_rounded_sum(dtype: str, kind: str) -> None:
    """Whatever is read or written as bfloat16 has the bits of the other kernel, rounded once at the end."""
    base, x, matrices, tokens = make_inputs(
        Case("", (1, -1, 0, 0, 1, 1, 1), layers=2, dtype=dtype, outputs=PARTS, rank=20)
    )
    base, x = base.astype(jnp.bfloat16), x.astype(jnp.bfloat16)
    fused = NOTHING
    if kind == "norm":
        fused = Fused(Norm(jnp.linspace(0.5, 2, x.shape[1], dtype=jnp.float32), 1e-5))
    elif kind == "gate":
        fused, x = Fused(is_gated=True), jnp.concatenate([x, x[:, ::-1]], axis=1)
    wide = run(base.astype(jnp.float32), x.astype(jnp.float32), matrices, tokens, fused, implementation="cpu")
    to_wide = run(base.astype(jnp.float32), x, matrices, tokens, fused, implementation="cpu_narrow")
    to_narrow = run(base, x, matrices, tokens, fused, implementation="cpu_narrow")
    assert to_narrow.dtype == jnp.bfloat16
    np.testing.assert_array_equal(to_wide, wide)
    np.testing.assert_array_equal(to_narrow, wide.astype(jnp.bfloat16))


@pytest.mark.parametrize("implementation", ["cpu", "cpu_narrow"] if host_processor().multiplies_bfloat16 else ["cpu"])
def test_adds_in_place(implementation: str) -> None:
    """XLA copies no base that nothing else reads: a step without adapters moves no bytes for them."""
    base, x, matrices, tokens = make_inputs(Case("", (0, 1, -1), dtype="bfloat16"))
    kind = "f32"
    if implementation == "cpu_narrow":
        base, kind = base.astype(jnp.bfloat16), "bf16"
    donated = jax.jit(lambda base, *rest: add_low_rank(base, *rest, implementation=implementation), donate_argnums=0)
    text = donated.lower(base, x, matrices, tokens).compile().as_text()
    assert text is not None
    assert "custom-call" in text
    assert not [line for line in text.splitlines() if " copy(" in line and f"{kind}[{base.shape[0]}," in line]
