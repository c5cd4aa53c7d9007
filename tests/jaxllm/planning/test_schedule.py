"""The time of a compiled program, from a text like libtpu's, on a made-up chip of 1,000 cycles a second."""

from dataclasses import replace

import pytest

from jaxllm.pallas_kernels.chips import CHIPS
from jaxllm.planning.hlo import bytes_of, parse
from jaxllm.planning.links import HOP_SECONDS, Network
from jaxllm.planning.schedule import START_SECONDS, Choices, ProgramCost, program_cost

CHIP = replace(CHIPS["v6e"], clock_hz=1000.0, hbm_bandwidth=1e6, link_bandwidth=1e6)
LINE: list[tuple[int, ...]] = [(0, 0), (1, 0), (2, 0), (3, 0)]
SQUARE: list[tuple[int, ...]] = [(0, 0), (1, 0), (1, 1), (0, 1)]

PAIRS = "{{0,1},{1,2},{2,3},{3,0}}"
PROGRAM = """HloModule step, is_scheduled=true

%all-reduce-scatter.1 (input: bf16[8,500]) -> bf16[2,500] {
  %sum = bf16[8,500]{1,0} all-reduce(%input), to_apply=%add
}

%body (p: (u32[], bf16[8,500])) -> (u32[], bf16[8,500]) {
  %p = (u32[], bf16[8,500]{1,0:T(8,128)(2,1)S(1)}) parameter(0)
  %two = u32[]{:T(128)} constant(2)
  %at = u32[] get-tuple-element(%p), index=0
  %x = bf16[8,500]{1,0} get-tuple-element(%p), index=1
  %next = u32[] add(%at, %two)
  %start = (bf16[8,500]{1,0}, bf16[8,500]{1,0}) collective-permute-start(%x), source_target_pairs=PAIRS
  %f = bf16[8,500]{1,0} add(%x), metadata={op_name="step/dot"}, backend_config={"estimated_cycles":"10"}
  %done = bf16[8,500]{1,0} collective-permute-done(%start)
  ROOT %t = (u32[], bf16[8,500]{1,0}) tuple(%next, %done)
}

%condition (p.1: (u32[], bf16[8,500])) -> pred[] {
  %p.1 = (u32[], bf16[8,500]{1,0}) parameter(0)
  %four = u32[]{:T(128)} constant(4)
  %at.1 = u32[] get-tuple-element(%p.1), index=0
  ROOT %less = pred[] compare(%at.1, %four), direction=LT
}

%rare (q: f32[]) -> f32[] {
  %slow = f32[] copy(%q), backend_config={"estimated_cycles":"1000"}
}

%usual (r: f32[]) -> f32[] {
  %quick = f32[] copy(%r), backend_config={"estimated_cycles":"3"}
}

ENTRY %main (x: bf16[8,500]) -> bf16[2,500] {
  %x.1 = bf16[8,500]{1,0} parameter(0)
  %prefetch = (f32[1000]{0:S(1)}, f32[1000]{0}, u32[]{:S(2)}) copy-start(%w)
  %sum.1 = bf16[8,500]{1,0} all-reduce(%x.1), to_apply=%add
  %fetched = f32[1000]{0:S(1)} copy-done(%prefetch)
  %loop = (u32[], bf16[8,500]{1,0}) while(%t.1), condition=%condition, body=%body
  %c.1 = f32[] conditional(%i, %q, %r), branch_computations={%usual, %rare}
  ROOT %part = bf16[2,500]{1,0} fusion(%x.1), kind=kCustom, calls=%all-reduce-scatter.1
}
"""


def cost(positions: list[tuple[int, ...]], choices: Choices = Choices()) -> ProgramCost:  # noqa: B008
    return program_cost(parse(PROGRAM.replace("PAIRS", PAIRS)), Network(CHIP, positions), choices)


def test_operations_follow_loops_and_branches() -> None:
    # Two trips by two: the counter's step is read off the body.
    assert cost(SQUARE).computing == pytest.approx((2 * 10 + 3) / 1000)
    assert cost(SQUARE, Choices(branch=lambda _: 1)).computing == pytest.approx((2 * 10 + 1000) / 1000)


def test_a_kernel_that_moves_bytes_takes_their_time() -> None:
    text = """ENTRY %main (x: bf16[8,500]) -> bf16[8,5,100] {
  %x = bf16[8,500]{1,0} parameter(0)
  %other.1 = bf16[8,500]{1,0} custom-call(%x), operand_layout_constraints={bf16[8,500]{1,0}}
  ROOT %rotate_and_pack.4 = bf16[8,5,100]{2,1,0} custom-call(%other.1), operand_layout_constraints={bf16[8,500]{1,0}}
}
"""
    found = program_cost(parse(text), Network(CHIP, LINE))
    assert found.computing == pytest.approx(2 * 8000 / 1e6 + START_SECONDS)


def test_a_sum_is_a_scatter_and_a_gather() -> None:
    found = {each.kind: each for each in cost(SQUARE).collectives}
    assert [(found[kind].size, found[kind].times) for kind in ("all-reduce", "reduce-scatter")] == [(8000, 1)] * 2
    # Of 8,000 bytes 3/4 over two links, twice for a sum.
    assert found["all-reduce"].seconds == pytest.approx(2 * 0.003)
    assert found["reduce-scatter"].seconds == pytest.approx(0.003)


@pytest.mark.parametrize(
    ("groups", "devices"),
    [
        ("{{0,1},{2,3}}", 2),
        ("[2,2]<=[4]", 2),
        ("mesh['data'=2,'model'=2] {'model'}", 2),
        ("mesh['data'=2,'model'=2] {'data','model'}", 4),
        ("mesh['model'=4] {'model':(1)2}", 2),
        ("mesh['data'=2,'model'=2], device_ids=([4]) {'data'}", 2),
    ],
)
def test_devices_of_a_group(groups: str, devices: int) -> None:
    text = PROGRAM.replace("PAIRS", PAIRS).replace(
        "all-reduce(%x.1), ", f"all-reduce(%x.1), channel_id=1, replica_groups={groups}, "
    )
    found = {each.kind: each for each in program_cost(parse(text), Network(CHIP, SQUARE), Choices()).collectives}
    assert found["all-reduce"].devices == devices


def test_a_permute_runs_beside_what_stands_between() -> None:
    found = cost(SQUARE)
    sent = next(each for each in found.collectives if each.asynchronous)
    assert (sent.kind, sent.size, sent.times) == ("collective-permute", 8000, 2)
    # 8 ms on the way, and 10 ms of computing: nothing to wait for.
    assert found.exposed == pytest.approx(2 * 0.003 + 0.003)
    assert found.seconds == pytest.approx(found.computing + found.exposed + found.copying)


def test_devices_in_a_line_share_links_on_the_way_back() -> None:
    found, around = cost(LINE), cost(SQUARE)
    # From the last to the first are three hops, over links that nothing else takes in that direction.
    assert found.exposed == pytest.approx(around.exposed)
    network = Network(CHIP, LINE)
    assert network.permute(0, 8000, [(0, 2), (1, 3)]) == pytest.approx(0.016 + 2 * HOP_SECONDS), "a link for both"
    assert network.permute(0, 8000, [(0, 1)]) == pytest.approx(0.016 + 0.008 + HOP_SECONDS), "one after the other"
    assert network.permute(0, 8000, [(1, 0)]) == pytest.approx(0.008 + HOP_SECONDS), "the other direction is free"


def test_copies_between_memories_run_beside_collectives() -> None:
    # 4,000 bytes take 4 ms; the sum hides all of it.
    assert cost(SQUARE).copying == 0


def test_bytes_of_shapes() -> None:
    assert bytes_of("(bf16[2,3]{1,0:T(8,128)(2,1)S(1)}, pred[4], f32[], u32[]{:S(2)}, f8e4m3fn[5])") == [12, 4, 4, 4, 5]
