"""The TPU kernel in Pallas's interpreter: DMAs, semaphores, uninitialised memory as NaN, and a detector of races."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src.pallas.mosaic.interpret import interpret_pallas_call
from jax.experimental.pallas import tpu as pltpu

from jaxllm.pallas_kernels.latent_attention import LatentOptions
from jaxllm.pallas_kernels.latent_attention.cases import CASES, LAYER, Case, Inputs, make_inputs
from jaxllm.pallas_kernels.latent_attention.tpu.attention import BACKEND, tpu_latent_attention
from jaxllm.pallas_kernels.latent_attention.tpu.sizes import Blocks
from tests.pallas_kernels.latent_attention.oracle import cached_inputs, check
from tests.quick import QUICK
from tests.thinned import thinned

DECODE, PREFILL = Blocks(keys=256, chunk=128, slots=4), Blocks(keys=256, chunk=128, slots=2, queries=16)
"""Small, so that small cases have several blocks."""
FAST = ("mixed", "short")
FEW = (*FAST, "five_heads", "deepseek_bfloat16")
OTHERS = ("page_128", "shared_prefix", "one_decode", "empty_rows")


def interpret(inputs: Inputs) -> tuple[jax.Array, jax.Array]:
    """Result and canonical cache of a case; fails where a race was found."""
    arrays = inputs.q_latent, inputs.q_rope, inputs.latent, inputs.k_rope

    def run(inputs: Inputs) -> tuple[jax.Array, jax.Array]:
        out, cache = tpu_latent_attention(
            *arrays,
            BACKEND.from_canonical(inputs.kv_cache, inputs.case.sizes),
            jnp.int32(LAYER),
            inputs.prepared("tpu"),
            LatentOptions(inputs.case.scale, sinks=inputs.sinks, window=inputs.case.window),
            decode_blocks=replace(DECODE, queries=inputs.case.most_short),
            prefill_blocks=PREFILL,
            interpret=pltpu.InterpretParams(detect_races=True, uninitialized_memory="nan"),
        )
        return out, BACKEND.to_canonical(cache, inputs.case.sizes)

    out, cache = jax.block_until_ready(jax.jit(run, compiler_options=QUICK)(inputs))
    assert interpret_pallas_call.races is not None
    assert not interpret_pallas_call.races.races_found
    return out, cache


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=case.name, marks=[] if case.name in FAST else pytest.mark.slow)
        for case in CASES
        if case.name in thinned(FEW, OTHERS)
    ],
)
def test_matches_numpy(case: Case) -> None:
    check(case, *interpret(cached_inputs(case)))


_ROWS = ((1, 5), (1, 300), (1, 0), (3, 600), (70, 255))


@pytest.mark.parametrize(
    "case",
    [
        Case("windowed", _ROWS, num_heads=5, window=70, sinks=True, padding_tokens=3, padding_rows=2),
        pytest.param(Case("drafts", _ROWS, window=270, dtype="bfloat16", most_short=4), marks=pytest.mark.slow),
    ],
    ids=lambda case: case.name,
)
def test_windows_and_sinks(case: Case) -> None:
    """Blocks of keys before the window are left out, and so are pages of the first one that is not."""
    check(case, *interpret(cached_inputs(case)))


@pytest.mark.slow
def test_a_decode_gives_what_a_chunk_gives() -> None:
    """The last token of a prompt, in a chunk of three and alone after the others."""
    case = Case("cut", ((3, 300),), dtype="bfloat16", page_size=64)
    whole = make_inputs(case)
    out, cache = interpret(whole)
    last = make_inputs(replace(case, rows=((1, 302),)))
    names = ("q_latent", "q_rope", "latent", "k_rope")
    arrays = {name: getattr(whole, name)[2:] for name in names}
    alone, _ = interpret(
        replace(last, **arrays, kv_cache=cache, batch=replace(last.batch, page_table=whole.batch.page_table))
    )
    np.testing.assert_array_equal(np.asarray(alone[0]), np.asarray(out[2]))


def test_pages_that_are_not_whole_tiles_are_refused() -> None:
    with pytest.raises(ValueError, match="a multiple of 16"):
        make_inputs(Case("odd", ((1, 5),), page_size=8)).call("tpu")
