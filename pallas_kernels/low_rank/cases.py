"""Cases of low-rank products, which every implementation is held to."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from jaxllm.pallas_kernels.low_rank.operands import LowRank, Outputs, TokenSlots

_ONE = Outputs((32,))


@dataclass(frozen=True)
class Case:
    """Tokens, some with adapters, and the sizes of the matrices."""

    name: str
    slots_of_tokens: tuple[int, ...]
    """-1: none."""
    in_size: int = 48
    outputs: Outputs = _ONE
    slots: int = 2
    rank: int = 8
    dtype: str = "float32"
    layers: int | None = None
    """Matrices in a stack; the last one counts. None is one alone."""


CASES: tuple[Case, ...] = (
    Case("one_token", (1,)),
    Case("none", (-1, -1, -1)),
    Case("mixed", (1, -1, 0, 0, -1, 1, 1)),
    Case("parts", (0, 1, -1, 1), outputs=Outputs((32, 16, 16))),
    Case("parts_on_two_devices", (0, 1, -1), outputs=Outputs((32, 16), blocks=2)),
    Case("many_slots", (3, 39, -1, 17, 3, 20), slots=40, rank=16),
    Case("wide", (2, 0, -1, 1), slots=3, rank=160),
    Case("stacked", (1, 0, -1), layers=3, outputs=Outputs((16, 16))),
    Case("bfloat16", tuple(index % 9 - 1 for index in range(33)), slots=8, rank=16, dtype="bfloat16"),
)
"""Every feature, with one block of slots and several."""


def make_inputs(case: Case, seed: int = 0) -> tuple[jax.Array, jax.Array, LowRank, TokenSlots]:
    """The arguments of `add_low_rank`: base, x, matrices, tokens."""
    random, kind = np.random.default_rng(seed), jnp.dtype(case.dtype)

    def draw(*shape: int) -> jax.Array:
        return jnp.asarray(random.standard_normal(shape), kind)

    stack = () if case.layers is None else (case.layers,)
    down = draw(*stack, case.slots, len(case.outputs.sizes) * case.rank, case.in_size)
    up = draw(*stack, case.slots, case.rank, case.outputs.total)
    layer = None if case.layers is None else jnp.int32(case.layers - 1)
    slots = jnp.array(case.slots_of_tokens, jnp.int32)
    count = len(slots)
    base = jnp.asarray(random.standard_normal((count, case.outputs.total)), jnp.float32)
    return (
        base,
        draw(count, case.in_size),
        LowRank(down, up, layer, case.outputs),
        TokenSlots.of(slots, case.slots, case.rank),
    )
