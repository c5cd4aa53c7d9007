"""Every implementation of low-rank products gives the reference's, and a token's depends on nothing but itself."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxllm.pallas_kernels.cpu_common.processor import host_processor
from jaxllm.pallas_kernels.low_rank.api import IMPLEMENTATIONS, add_low_rank, can_add
from jaxllm.pallas_kernels.low_rank.cases import CASES, Case, make_inputs
from jaxllm.pallas_kernels.low_rank.operands import LowRank, TokenSlots, whole_blocks
from tests.thinned import drawn

EXACT = {"float32": 1e-4, "bfloat16": 0.1}
IS_NARROW = host_processor().multiplies_bfloat16
OTHERS = [name for name in IMPLEMENTATIONS if name != "reference" and (IS_NARROW or name != "cpu_narrow")]

run = jax.jit(add_low_rank, static_argnames="implementation")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("implementation", OTHERS)
def test_equals_the_reference(implementation: str, case: Case) -> None:
    inputs = make_inputs(case)
    if implementation.startswith("cpu") and not can_add(case.in_size, case.outputs, case.dtype):
        with pytest.raises(NotImplementedError, match="use 'xla'"):
            run(*inputs, implementation=implementation)
        return
    found, wanted = (run(*inputs, implementation=name) for name in (implementation, "reference"))
    assert found.dtype == jnp.float32
    np.testing.assert_allclose(found, wanted, atol=EXACT[case.dtype] * case.rank**0.5, rtol=0)
    without = np.array(case.slots_of_tokens) < 0
    np.testing.assert_array_equal(np.asarray(found)[without], np.asarray(inputs[0])[without])


@pytest.mark.parametrize(
    ("implementation", "count", "rank", "dtype"),
    drawn(OTHERS, [1, 3, 16], [8, 16, 64], ["float32", "bfloat16"], share=3),
)
def test_bits_depend_on_neither_slot_nor_neighbours(implementation: str, count: int, rank: int, dtype: str) -> None:
    slots, random = whole_blocks(12, rank), np.random.default_rng(count)
    case = Case("", (0,) * count, slots=slots, rank=rank, dtype=dtype)
    base, x, matrices, _ = make_inputs(case)
    wanted = None
    for slot in (0, 5, 11):
        # The same adapter in another slot, with other adapters around it, and other tokens that have those.
        order = random.permutation(slots)
        place = int(np.flatnonzero(order == slot)[0])
        order[[place, slot]] = order[[slot, place]]
        down, up = (array[jnp.asarray(order)].at[slot].set(array[0]) for array in (matrices.down, matrices.up))
        own = LowRank(down, up, None, matrices.outputs)
        others = random.integers(-1, slots, 5).astype(np.int32)
        tokens = np.concatenate([np.full(count, slot, np.int32), others])
        more = jnp.concatenate([x, jnp.asarray(random.standard_normal((5, x.shape[1])), x.dtype)])
        with_base = jnp.concatenate([base, jnp.zeros((5, base.shape[1]), base.dtype)])
        mixed = run(
            with_base, more, own, TokenSlots.of(jnp.asarray(tokens), slots, rank), implementation=implementation
        )
        alone = run(
            base, x, own, TokenSlots.of(jnp.asarray(tokens[:count]), slots, rank), implementation=implementation
        )
        wanted = alone if wanted is None else wanted
        np.testing.assert_array_equal(alone, wanted)
        np.testing.assert_array_equal(mixed[:count], wanted)


@pytest.mark.parametrize("implementation", OTHERS)
def test_an_adapter_of_zeros_keeps_the_bits_of_the_base(implementation: str) -> None:
    base, x, matrices, tokens = make_inputs(replace(CASES[2], dtype="bfloat16"))
    zeros = replace(matrices, up=jnp.zeros_like(matrices.up))
    narrow = base.astype(jnp.bfloat16)
    for each in (base, narrow):
        np.testing.assert_array_equal(run(each, x, zeros, tokens, implementation=implementation), each)
