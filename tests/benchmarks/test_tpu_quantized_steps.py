"""Whole decode steps of a quantised Llama-3-8B for TPUs that are not there: memory, and bytes that are moved."""

import pytest

from benchmarks.tpu.moved import moved_bytes
from benchmarks.tpu_quantized_steps import run_child, shares
from jaxllm.planning.hlo import parse
from tests.thinned import thinned

PROGRAM = """
HloModule step

%slicing (stack: s8[4,1024], index: s32[]) -> s8[1,1024] {
  %stack = s8[4,1024]{1,0} parameter(0)
  %index = s32[] parameter(1)
  ROOT %slice = s8[1,1024]{1,0} dynamic-slice(%stack, %index), dynamic_slice_sizes={1,1024}
}

%body (carried: (s32[], s8[4,1024])) -> (s32[], s8[4,1024]) {
  %carried = (s32[], s8[4,1024]) parameter(0)
  %count = s32[] get-tuple-element(%carried), index=0
  %one = s32[] constant(1)
  %next = s32[]{:S(1)} add(%count, %one)
  %matrices = s8[4,1024]{1,0} get-tuple-element(%carried), index=1
  %layer = s8[1,1024]{1,0:S(1)} fusion(%matrices, %count), kind=kLoop, calls=%slicing
  ROOT %out = (s32[], s8[4,1024]) tuple(%next, %matrices)
}

%condition (carried: (s32[], s8[4,1024])) -> pred[] {
  %carried = (s32[], s8[4,1024]) parameter(0)
  %count = s32[] get-tuple-element(%carried), index=0
  %limit = s32[] constant(4)
  ROOT %less = pred[] compare(%count, %limit), direction=LT
}

ENTRY %main (x: bf16[8,64], values: s4[4,2,64,256], scales: f32[4,2,1,256]) -> bf16[8,512] {
  %x = bf16[8,64]{1,0} parameter(0)
  %values = s4[4,2,64,256]{3,2,1,0} parameter(1)
  %scales = f32[4,2,1,256]{3,2,1,0:S(1)} parameter(2)
  %loop = (s32[], s8[4,1024]) while(%start), condition=%condition, body=%body
  ROOT %product = bf16[8,512]{1,0} custom-call(%x, %values, %scales), metadata={op_name="jit(f)/product/pallas_call"}
}
"""


def test_what_a_program_moves() -> None:
    """Four slices of a stack, each into vector memory, with their index; and of four matrices one, with rows around."""
    found = moved_bytes(parse(PROGRAM), 4)
    assert found["fusion"] == 4 * (1024 + 4)
    assert found["kernel product"] == 8 * 64 * 2 + 2 * 64 * 256 // 2 + 8 * 512 * 2


OTHERS = [
    *((chip, weights, "auto") for chip in ("v6e", "v5e", "tpu7x") for weights in ("int8", "int4", "fp8")),
    ("v6e", "int8", "fp8"),
    ("v6e", "int8", "int8"),
    ("v5e", "int8", "fp8"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("chip", "weights", "cache"), thinned([("v6e", "int4", "fp8")], OTHERS))
def test_a_step_reads_what_it_must(chip: str, weights: str, cache: str) -> None:
    pytest.importorskip("libtpu", reason="libtpu is not installed: pip install 'jax[tpu]' (no TPU needed)")
    found = run_child(chip, weights, cache, 1500)
    temporaries, moved = shares(found)
    assert temporaries < 0.05, found
    assert 1 <= moved < 1.1, found
    assert found["aliased"] >= found["cache_pages"], "the cache is not copied"
