"""The measurement of compiled steps recognises what every layer repeats, and what is narrow."""

from tests.jaxllm.executor.measure_tpu_step import narrow, repeated

PROGRAM = """HloModule step

%region.body (loop: (s32[], f32[8], f32[8])) -> (s32[], f32[8], f32[8]) {
  %loop = (s32[], f32[8]{0:T(8,128)}, f32[8]) parameter(0)
  %index = s32[] get-tuple-element(%loop), index=0
  %hidden = f32[8]{0:T(8,128)} get-tuple-element(%loop), index=1
  %positions = f32[8] get-tuple-element(%loop), index=2
  %one = s32[] constant(1)
  %next = s32[] add(%index, %one)
  %cosines = f32[8] fusion(%positions, %one), kind=kLoop, calls=%a, metadata={op_name="jit(step)/while/body/cos"}
  %halves = (f32[4], f32[4]) fusion(%cosines), kind=kLoop, calls=%b
  %turned = f32[8] fusion(%hidden, %cosines), kind=kLoop, calls=%c
  %slice = f32[8] dynamic-slice(%positions, %next), dynamic_slice_sizes={8}
  %attended = f32[8] custom-call(%turned, %slice), custom_call_target="tpu_custom_call"
  ROOT %out = (s32[], f32[8], f32[8]) tuple(%next, %attended, %positions)
}

ENTRY %main (x: f32[8]) -> f32[8] {
  ROOT %x = f32[8] parameter(0)
}
"""


def test_only_what_no_layer_changes_is_repeated() -> None:
    assert [line.split(" ")[0] for line in repeated(PROGRAM)] == ["%cosines", "%halves"]


TILES = """HloModule step

%region.body (loop: bf16[64,32,128]) -> bf16[64,32,128] {
  %loop = bf16[64,32,128]{2,1,0:T(8,128)(2,1)} parameter(0), metadata={op_name="jit(step)/while/body"}
  %whole = bf16[64,32,128]{2,1,0:T(8,128)(2,1)S(1)} fusion(%loop), kind=kLoop, calls=%a
  %pairs = bf16[64,8,2,2,128]{4,3,2,1,0:T(2,128)(2,1)S(1)} fusion(%whole), kind=kLoop, calls=%b
  %words = (f32[64]{0:T(64)}, u32[64,8,1,128]{3,2,1,0:T(1,128)}) fusion(%whole), kind=kLoop, calls=%c
  %weight = f32[1,4096]{1,0:T(1,128)S(1)} fusion(%loop), kind=kLoop, calls=%d
  %named = bf16[64,8,2,2,128]{4,3,2,1,0:T(2,128)(2,1)} bitcast(%whole)
  ROOT %out = bf16[64,8,2,2,128]{4,3,2,1,0:T(2,128)(2,1)} custom-call(%named), custom_call_target="tpu_custom_call"
}
"""


def test_only_large_results_in_tiles_of_one_or_two_rows_are_narrow() -> None:
    assert [line.split(" ")[0] for line in narrow(TILES, 64 * 1024)] == ["%pairs", "%words"]
