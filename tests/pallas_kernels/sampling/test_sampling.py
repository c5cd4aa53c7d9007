"""Every implementation chooses the same tokens, and a row's token does not depend on its neighbours."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import Mesh, PartitionSpec

from jaxllm.models.sharding import VOCAB_BLOCK
from jaxllm.pallas_kernels.sampling import Choice, Vocabulary, choose_tokens
from jaxllm.pallas_kernels.sampling.blocks import BLOCK
from jaxllm.pallas_kernels.sampling.cases import CASES, GROUP, make_inputs
from jaxllm.pallas_kernels.sampling.tpu.candidates import KEPT, STEP
from jaxllm.pallas_kernels.sampling.tpu.sampling import tpu_choose_tokens
from jaxllm.pallas_kernels.tpu_common.constants import LANES
from tests.quick import QUICK
from tests.thinned import EVERY_CASE, thinned

VOCAB = (KEPT + 1) * GROUP + 5 * BLOCK + 7
"""Groups have more logits than are kept, and the vocabulary ends inside a block."""
SEEDS = 8 if EVERY_CASE else 4
reference, xla = (jax.jit(partial(choose_tokens, implementation=name)) for name in ("reference", "xla"))


@partial(jax.jit, compiler_options=QUICK)
def interpreted(logits: Any, choice: Choice, other: Any, is_changed: Any, num_rows: Any) -> Any:
    """The kernel in Pallas's interpreter."""
    return tpu_choose_tokens(logits, choice, changed=(other, is_changed), num_rows=num_rows, interpret=True)


def on_tpu(
    logits: Any, choice: Choice, other: Any = None, is_changed: bool = False, num_rows: int = len(CASES)
) -> np.ndarray:
    """The same for all tests: it takes seconds to compile."""
    other = logits if other is None else other
    return np.asarray(interpreted(logits, choice, other, jnp.bool_(is_changed), jnp.int32(num_rows)))


@pytest.mark.parametrize("chosen", [xla, on_tpu], ids=["xla", "tpu"])
def test_implementations_agree(chosen: Any) -> None:
    for seed in range(SEEDS):
        logits, choice = make_inputs(VOCAB, seed)
        found, wanted = chosen(logits, choice), reference(logits, choice)
        wrong = [case.name for case, one, other in zip(CASES, found, wanted, strict=True) if one != other]
        assert not wrong, seed


def test_blocks_and_groups_are_what_others_take_them_for() -> None:
    assert BLOCK == VOCAB_BLOCK == LANES
    assert GROUP == STEP * LANES


def test_a_row_does_not_depend_on_its_neighbours() -> None:
    logits, choice = make_inputs(VOCAB)
    together = on_tpu(logits, choice)
    order = np.random.default_rng(1).permutation(len(CASES))
    turned = on_tpu(logits[order], jax.tree.map(lambda field: field[order], choice))
    np.testing.assert_array_equal(turned, together[order])
    # Neighbours that ask for nothing: whole stages are skipped.
    for row in (5, 11, 18):
        others = jnp.arange(len(CASES)) != row
        alone = Choice(
            temperature=jnp.where(others, 0.0, choice.temperature),
            top_k=jnp.where(others, 0, choice.top_k),
            top_p=jnp.where(others, 1.0, choice.top_p),
            min_p=choice.min_p,
            chance=choice.chance,
        )
        assert on_tpu(logits, alone)[row] == together[row]


@pytest.mark.parametrize("extreme", [np.finfo(np.float32).max, np.inf, -np.inf, np.nan])
def test_extreme_logits_still_give_a_token(extreme: float) -> None:
    logits, choice = make_inputs(VOCAB)
    logits = logits.at[:, 1::2].set(extreme)
    tokens = on_tpu(logits, choice)
    assert ((tokens >= 0) & (tokens < VOCAB)).all()
    if extreme > 1:
        assert (tokens % 2 == 1).all()


def test_other_logits_and_padding() -> None:
    logits, choice = make_inputs(VOCAB)
    wanted = on_tpu(logits, choice)
    nothing = jnp.full_like(logits, jnp.nan)
    np.testing.assert_array_equal(on_tpu(logits, choice, nothing, num_rows=9)[:9], wanted[:9])
    np.testing.assert_array_equal(on_tpu(nothing, choice, logits, is_changed=True), wanted)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("devices", "is_changed", "rows"),
    # As many rows as there are cases; and fewer than devices, a number that they do not divide.
    thinned(
        [(2, True, 5), (8, False, len(CASES))],
        [
            (2, True, len(CASES)),
            (2, False, 5),
            (2, False, len(CASES)),
            (8, True, len(CASES)),
            (8, False, 5),
            (8, True, 5),
        ],
    ),
)
def test_devices_share_the_rows(devices: int, is_changed: bool, rows: int) -> None:
    logits, choice = make_inputs(5 * GROUP)
    wanted = np.asarray(reference(logits, choice))
    mesh = Mesh(np.array(jax.devices()[:devices]), ("model",))
    split, same = PartitionSpec(None, "model"), PartitionSpec()

    def part(logits: Any, choice: Any) -> Any:
        changed = (logits, jnp.bool_(is_changed))
        first = jnp.full_like(logits, jnp.nan) if is_changed else logits
        return tpu_choose_tokens(first, choice, Vocabulary("model"), changed=changed, interpret=True)

    function = jax.shard_map(part, mesh=mesh, in_specs=(split, same), out_specs=same, check_vma=False)
    run = jax.jit(function, compiler_options=QUICK)
    found = run(logits[:rows], jax.tree.map(lambda field: field[:rows], choice))
    np.testing.assert_array_equal(found, wanted[:rows])


@pytest.mark.slow
def test_no_memory_is_read_before_it_is_written() -> None:
    logits, choice = make_inputs(VOCAB)
    params = pltpu.InterpretParams(detect_races=True, uninitialized_memory="nan")
    found = jax.jit(partial(tpu_choose_tokens, interpret=params), compiler_options=QUICK)(logits, choice)
    np.testing.assert_array_equal(found, reference(logits, choice))
