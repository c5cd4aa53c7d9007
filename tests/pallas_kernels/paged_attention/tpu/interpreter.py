"""The TPU kernels in Pallas's interpreter: DMAs, semaphores, uninitialised memory as NaN, and a detector of races."""

from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax._src.pallas.mosaic.interpret import interpret_pallas_call
from jax.experimental.pallas import tpu as pltpu

from jaxllm.pallas_kernels.paged_attention.backend import Backend
from jaxllm.pallas_kernels.paged_attention.cases import Case, Inputs
from jaxllm.pallas_kernels.paged_attention.inputs import LAYER
from jaxllm.pallas_kernels.paged_attention.tpu import attention
from jaxllm.pallas_kernels.paged_attention.tpu.blocks import whole_queries
from jaxllm.pallas_kernels.paged_attention.tpu.canonical import dims_of, from_canonical, to_canonical
from jaxllm.pallas_kernels.paged_attention.tpu.common import Blocks
from jaxllm.pallas_kernels.tpu_common.batch import tpu_prepare
from tests.quick import QUICK

DECODE, PREFILL = Blocks(keys=256, chunk=128, slots=6), Blocks(keys=256, chunk=128, slots=2, queries=32)
"""Small, so that small cases have several blocks."""


def interpret(
    inputs: Inputs,
    monkeypatch: pytest.MonkeyPatch,
    decode: Blocks = DECODE,
    prefill: Blocks = PREFILL,
) -> tuple[jax.Array, jax.Array]:
    """Result and canonical cache of a case; fails where a race was found."""
    function = partial(attention.tpu_paged_attention, **interpreted(inputs.case, decode, prefill))
    monkeypatch.setattr(attention, "BACKEND", Backend(function, supports_spans=True))

    def run(inputs: Inputs, layer: jax.Array) -> tuple[jax.Array, jax.Array]:
        packed = replace(
            inputs,
            kv_cache=from_canonical(inputs.kv_cache, inputs.case),
            batch=tpu_prepare(inputs.step, inputs.case.most_short),
            case=replace(inputs.case, chunk=0, most_short=1),
        )
        out, cache = packed.call("tpu", layer)
        return out, to_canonical(cache, inputs.case)

    out, cache = jax.jit(run, compiler_options=QUICK)(inputs, jnp.int32(LAYER))
    check_races(out)
    return out, cache


def interpreted(case: Case, decode: Blocks = DECODE, prefill: Blocks = PREFILL) -> dict[str, Any]:
    """Arguments of the kernels for a case."""
    prefill = replace(prefill, queries=whole_queries(prefill.queries, dims_of(case)))
    return {
        "decode_blocks": replace(decode, keys=max(decode.keys, case.page_size)),
        "prefill_blocks": replace(prefill, keys=max(prefill.keys, case.page_size)),
        "interpret": pltpu.InterpretParams(detect_races=True, uninitialized_memory="nan"),
    }


def check_races(out: jax.Array) -> None:
    """Fail if a race was found in the run that gives `out`."""
    jax.block_until_ready(out)
    assert interpret_pallas_call.races is not None
    assert not interpret_pallas_call.races.races_found
