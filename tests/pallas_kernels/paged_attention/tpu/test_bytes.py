"""Bytes that the DMAs of the TPU kernels move, counted in the interpreter: at most 1.1 times the fewest possible."""

from dataclasses import replace
from typing import Any

import pytest
from jax._src.pallas.mosaic.interpret import interpret_pallas_call

from jaxllm.pallas_kernels.paged_attention.cases import Case, minimum_bytes
from jaxllm.pallas_kernels.paged_attention.tpu.canonical import dims_of
from tests.pallas_kernels.paged_attention.oracle import cached_inputs, check
from tests.pallas_kernels.paged_attention.tpu.interpreter import DECODE, PREFILL, interpret
from tests.thinned import thinned

_HEADS: dict[str, Any] = {"num_heads": 4, "num_kv_heads": 2, "head_size": 128, "dtype": "bfloat16"}
_NARROW = _HEADS | {"num_heads": 8, "num_kv_heads": 4, "head_size": 64}

CASES = thinned(
    (
        Case("decode_window", ((1, 700), (1, 400)), window=128, **_HEADS),
        Case("prefill", ((128, 0), (60, 400)), **_HEADS),
    ),
    (
        Case("decode", ((1, 700), (1, 95), (1, 400)), **_HEADS),
        Case("decode_64", ((1, 700), (1, 95), (1, 400)), **_NARROW),
    ),
)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_moves_few_bytes(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    waited = []
    wait = interpret_pallas_call.dma_wait

    def counting(token: Any, device: Any, core: Any, sem: Any, size: Any, *args: Any, **kwargs: Any) -> Any:
        waited.append(int(size))
        return wait(token, device, core, sem, size, *args, **kwargs)

    monkeypatch.setattr(interpret_pallas_call, "dma_wait", counting)
    check(case, *interpret(cached_inputs(case), monkeypatch, DECODE, replace(PREFILL, queries=128)))
    # Every DMA is waited for. A decode's token goes from HBM to HBM: it is read as well as written.
    decodes = sum(new == 1 for new, _ in case.rows)
    moved = sum(waited) + decodes * dims_of(case).token_bytes
    assert 0.8 * minimum_bytes(case) < moved <= 1.1 * minimum_bytes(case)
