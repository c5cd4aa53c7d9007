"""The static speed model: reading the compiler's dumps, running the scalar side, and what is computed from it."""

import json
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.tpu.bundles import Bundle, Operation, Predicate, Program, parse_program, read_program
from benchmarks.tpu.cases import CASES
from benchmarks.tpu.compile import MODULE, other_cycles, run_child
from benchmarks.tpu.operands import as_words, known_operands
from benchmarks.tpu.report import KernelFigures, loops, measure, measure_kernel, memory_of, table
from benchmarks.tpu.scalar import UnsupportedOperationError, arithmetic, operand_address, operand_place, wrap
from benchmarks.tpu.simulate import Memory, simulate
from jaxllm.pallas_kernels.chips import CHIPS, Chip
from tests.thinned import thinned

DUMPS = Path(__file__).parent / "dumps"
CHUNK_BYTES = 64 * 128 * 4
"""The bytes that one trip of `tiny_copy` reads, and writes; see tiny_tpu_kernel.py."""


@pytest.fixture(scope="module")
def copy() -> Program:
    """`tiny_copy`, compiled for v6e by libtpu 0.0.42.1: a loop that reads a chunk and writes it elsewhere."""
    return read_program(DUMPS / "v6e", "tiny_copy", "v6e")


def test_the_dump_is_read(copy: Program) -> None:
    assert len(copy.bundles) == 57
    assert dict(zip(copy.units, copy.capacity, strict=True))["VALU"] == 4
    dmas = [op for bundle in copy.bundles for op in bundle.operations if op.name.startswith("dma.")]
    assert [op.name for op in dmas] == ["dma.hbm_to_vmem", "dma.done.wait", "dma.vmem_to_hbm", "dma.done.wait"]
    assert {op.args[1] for op in dmas} == {str(CHUNK_BYTES // 32)}
    assert max(bundle.depth for bundle in copy.bundles) == 1


@pytest.mark.parametrize("count", [0, 1, 7])
def test_a_loop_runs_as_often_as_its_argument_says(copy: Program, count: int) -> None:
    _loop_runs(copy, Memory(1000.0, 900), count)


@pytest.mark.parametrize("chip", ["v4", "tpu7x"])
@pytest.mark.parametrize("count", [0, 1, 7])
def test_branches_and_granules_of_other_chips(chip: str, count: int) -> None:
    """Compiled as above. v4: one bundle follows a branch, DMAs count in pieces of 512 bytes; TPU7x: six follow."""
    _loop_runs(read_program(DUMPS / chip, "tiny_copy", chip), memory_of(CHIPS[chip]), count)


def _loop_runs(copy: Program, memory: Memory, count: int) -> None:
    run = simulate(copy, [[count], None], memory)
    assert run.bytes_read == run.bytes_written == count * CHUNK_BYTES
    assert run.dmas == 2 * count
    found = loops(copy, run)
    if count > 1:
        assert [(loop.depth, loop.entries, loop.trips) for loop in found] == [(1, 1, count)]
        assert found[0].bundles == count * (found[0].last - found[0].first + 1)


def test_time_is_bundles_and_waits(copy: Program) -> None:
    memory = Memory(CHUNK_BYTES / 100, 900)  # 100 cycles for a chunk
    one, two = (simulate(copy, [[count], None], memory) for count in (1, 2))
    executed = [sum(run.visits) for run in (one, two)]
    # Each trip waits for its read and its write in turn: 100 cycles and the latency, less the bundle that waits.
    assert two.stalled - one.stalled == pytest.approx(2 * (1000 - 1), abs=2)
    assert two.cycles - one.cycles == pytest.approx(executed[1] - executed[0] + two.stalled - one.stalled)


def test_what_is_not_known_is_an_error(copy: Program) -> None:
    with pytest.raises(UnsupportedOperationError, match="operand 0 is not known"):
        simulate(copy, [None, None], Memory(1000.0, 900))


def test_the_two_dumps_must_fit(copy: Program) -> None:
    bundles, units = (next(DUMPS.glob(f"v6e/*-{kind}*")).read_text() for kind in ("packed-bundles", "pre-delay"))
    assert parse_program(bundles, units, copy.delay_slots) == copy
    with pytest.raises(ValueError, match="57 bundles, but the utilization of 56"):
        parse_program(bundles, units.rstrip().rpartition("\n")[0], copy.delay_slots)


def test_a_kernel_without_dump_is_an_error() -> None:
    with pytest.raises(FileNotFoundError, match="no_such"):
        read_program(DUMPS / "v6e", "no_such", "v6e")


@pytest.mark.parametrize(
    ("name", "args", "value"),
    [
        ("sadd.s32", ("4294967295", "3"), 2),
        ("ssub.s32", ("0", "7"), -7),
        ("smul.u32", ("65536", "65536"), 0),
        ("smulhi.u32", ("3435973837", "100"), 80),
        ("sand.u32", ("4294967295", "12"), 12),
        ("sshll.u32", ("3", "4"), 48),
        ("sshrl.u32", ("4294967295", "28"), 15),
        ("sshra.s32", ("4294967280", "2"), -4),
        ("smin.u32", ("4294967295", "5"), 5),
        ("smin.s32", ("4294967295", "5"), -1),
        ("scmp.lt.s32.totalorder", ("4294967295", "0"), 1),
        ("scmp.lt.u32.totalorder", ("4294967295", "0"), 0),
        ("scalar_select", ("p3", "4", "5"), 5),
        ("pnand", ("p3", "p3"), 1),
        ("pneg", ("p3",), 1),
    ],
)
def test_scalar_arithmetic(name: str, args: tuple[str, ...], value: int) -> None:
    function = arithmetic(name, args)
    assert function is not None
    assert function([0] * 64) == value


def test_addresses_survive_arithmetic() -> None:
    for index in (0, 3, 17):
        assert operand_place(wrap(operand_address(index) << 4) + 16) == (index, 16)
        assert operand_place(operand_address(index)) == (index, 0)
    assert operand_place(12345) == (None, 12345)


def test_all_operations_of_a_bundle_read_before_any_writes() -> None:
    swap = (Operation("smov", "s1", ("s2",)), Operation("smov", "s2", ("s1",)))
    store = (Operation("sst", "", ("#1", "s1")), Operation("sst", "", ("#2", "s2")))
    check = Operation("scmp.eq.s32.totalorder", "p0", ("s1", "6"))
    jump = Operation("sbr.rel", "", (), Predicate(0, negated=False), target=8)
    first = (Operation("smov", "s1", ("5",)), Operation("smov", "s2", ("6",)))
    lines = [first, swap, (*store, check), (jump,), (), (), (), (), ()]
    bundles = tuple(Bundle(0, operations, 0, (0,), 0) for operations in lines)
    run = simulate(Program(bundles, ("SALU",), (2,), 4), [], Memory(1.0, 0))
    # The branch is taken if s1 got what s2 was; it goes to where its four delay slots end, so that all runs once.
    assert run.visits[:9] == [1] * 9
    assert run.taken == {(3, 8): 1}


def test_divisions_give_their_results_in_order() -> None:
    """As in dumps: the quotient is popped first, and only the comment says which results there are."""
    text = """
     0   :  { %1 = sdivrem.u32 70, 8 /* kDivAndRem */ }
   0x1   :  { %s2_s1 = spop.drf %1  ;;  %3 = sdivrem.u32 33, 10 /* kRem */ }
   0x2   :  { %s4_s2 = spop.drf %1 }
   0x3   :  { %s5_s3 = spop.drf %3 }
   0x4   :  { %s6_s4 = sadd.s32 %s2_s1, %s4_s2 }
   0x5   :  { %s7_s4 = sadd.s32 %s6_s4, %s5_s3 }
   0x6   :  { %p8_p0 = scmp.eq.s32.totalorder %s7_s4, 17 }
   0x7   :  { %9 = sbr.rel (%p8_p0) target bundleno = 12 (0xc), region = 5 }
   0x8   :  {}
   0x9   :  {}
   0xa   :  {}
   0xb   :  {}
   0xc   :  {} /* Start region 5 */
"""
    program = parse_program(text, "MXU\n1\n" + "0\n" * 13, 4)
    assert simulate(program, [], Memory(1.0, 0)).taken == {(7, 12): 1}


def test_operands_are_known_where_they_follow_from_arguments() -> None:
    from jax.experimental import pallas as pl

    def kernel(lengths: jax.Array, data: jax.Array) -> jax.Array:
        def body(*refs: object) -> None:
            return None

        shape = jax.ShapeDtypeStruct((8, 128), jnp.float32)
        call = pl.pallas_call(body, out_shape=shape, name="inner", interpret=False)
        return jax.jit(lambda a, b: call(jnp.cumsum(a), b * 2))(lengths, data)

    jaxpr = jax.make_jaxpr(kernel)(np.zeros(3, np.int32), jax.ShapeDtypeStruct((8, 128), jnp.float32))
    ((name, operands),) = known_operands(jaxpr, [np.array([1, 2, 3], np.int32), None])
    assert name == "inner"
    assert [as_words(operand) for operand in operands] == [[1, 3, 6], None]


def test_words_of_floats_are_their_bits() -> None:
    assert as_words(np.array([1.0], np.float32)) == [0x3F800000]


def test_rows_of_words_lie_128_apart() -> None:
    words = as_words(np.array([[[1, 2]], [[3, 4]]], np.int32))
    assert words is not None
    assert (words[:2], words[128:130], len(words)) == ([1, 2], [3, 4], 256)
    # A DMA of the second row brings that row and nothing else.
    operand = Operation("inlined_call_operand.hbm", "s0", ("0", "hbm"))
    lines: list[tuple[Operation, ...]] = [
        (operand,),
        (Operation("scalar_lea.hbm", "s1", ("s0", "16")),),
        (Operation("dma.hbm_to_smem", "", ("s1", "16", "#7", "#8")),),
        (Operation("dma.done.wait", "", ("#8", "16")),),
        (Operation("sld", "s2", ("#7",)), Operation("sld", "s3", ("#7+1",)), Operation("sld", "s4", ("#7+128",))),
        (Operation("sadd.s32", "s5", ("s2", "s3")),),
        (Operation("sadd.s32", "s5", ("s5", "s4")),),
        (Operation("scmp.eq.s32.totalorder", "p0", ("s5", "7")),),
        (Operation("sbr.rel", "", (), Predicate(0, negated=False), target=10),),
        (),
    ]
    bundles = tuple(Bundle(0, operations, 0, (0,), 0) for operations in lines)
    run = simulate(Program(bundles, ("SALU",), (2,), 1), [words], Memory(1.0, 0))
    assert run.taken == {(8, 10): 1}


def test_estimates_of_other_operations() -> None:
    text = (
        '%f (p: f32[]) -> f32[] {\n  %in = f32[] x(), backend_config={"estimated_cycles":"9"}\n}\n'
        '\nENTRY %main {\n  %copy.1 = f32[8] copy(%a), backend_config={"estimated_cycles":"120"}\n'
        '  ROOT %out = f32[8] add(%copy.1, %a), backend_config={"estimated_cycles":"7"}\n}\n'
    )
    assert other_cycles(text) == {"copy.1": 120, "out": 7}


def test_least_bytes_and_operations_of_a_case() -> None:
    decode = CASES["llama-3-8b/decode-64x1024/page64"]
    per_token = 2 * 8 * 128 * 2
    assert decode.least_bytes() == 64 * (1023 * per_token + 2 * per_token + 2 * 32 * 128 * 2)
    assert decode.flops() == 64 * 1024 * 4 * 32 * 128
    assert decode.is_decode
    prefill = CASES["llama-3-8b/prefill-1x2048/page64"]
    assert prefill.flops() == 2048 * 2049 // 2 * 4 * 32 * 128
    assert not prefill.is_decode


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_cases_are_well_formed(case: object) -> None:
    from benchmarks.tpu.cases import Case

    assert isinstance(case, Case)
    news = [new for new, _ in case.rows]
    assert news == sorted(news, key=lambda new: new != 1), "rows with one token come first"
    assert all(0 < new <= length for new, length in case.rows)
    pages = case.page_table()
    assert len(np.unique(pages)) == pages.size
    assert pages.min() > 0


def test_figures_of_a_case(copy: Program) -> None:
    chip, case = CHIPS["v6e"], CASES["llama-3-8b/decode-64x1024/page64"]
    module = {
        "kernels": [{"name": "tiny_copy", "operands": [[5], None]}],
        "other_cycles": {"copy": 1750},
        "choices": "none",
    }
    figures = measure(chip, "jaxllm", case, DUMPS / "v6e", module)
    assert figures.outside == pytest.approx(1.0)
    assert figures.bytes_over_least == pytest.approx(10 * CHUNK_BYTES / case.least_bytes())
    seconds = figures.microseconds / 1e6
    assert figures.bandwidth_share == pytest.approx(case.least_bytes() / seconds / chip.hbm_bandwidth)
    assert figures.flops_share == pytest.approx(case.flops() / seconds / chip.bf16_flops)
    assert figures.bottleneck.startswith("DMA")
    assert case.name in table([figures])
    assert json.loads(json.dumps(figures.as_dict()))["kernels"][0]["trips"] == 5


def test_a_kernel_is_no_faster_than_its_matrix_units() -> None:
    chip = CHIPS["v6e"]
    busy = tuple(Bundle(0, (), 0, (2,), 32) for _ in range(10))
    figures = measure_kernel(Program(busy, ("MXU",), (2,), 4), "k", [], chip)
    # 32 rows per bundle, where the two units take two rows each per cycle.
    assert figures.cycles == figures.matrix == 10 * 32 / 4


@pytest.mark.slow
@pytest.mark.parametrize("chip_name", thinned(["v5p", "v6e"], ["v4", "v5e", "tpu7x"]))
def test_a_real_compilation_agrees_with_arithmetic(chip_name: str, tmp_path: Path) -> None:
    """Known trips, bytes and matrix rows of two small kernels, on a chip of two cores and one of one."""
    chip = CHIPS[chip_name]
    run_child([sys.executable, "-m", "tests.benchmarks.tiny_tpu_kernel", chip_name, str(tmp_path)], tmp_path, 300)
    module = json.loads((tmp_path / MODULE).read_text())
    found = {}
    for part in module["kernels"]:
        program = read_program(tmp_path, part["name"], chip_name)
        found[part["name"]] = measure_kernel(program, part["name"], part["operands"], chip)
    _check_copy(found["tiny_copy"], chip)
    product = found["tiny_product"]
    # One core does all: the peak of the device is that of all its cores.
    ideal = 2 * 1024**3 / (chip.bf16_flops / chip.cores) * chip.clock_hz
    assert product.matrix == pytest.approx(ideal, rel=0.01)
    assert 0.99 * ideal <= product.cycles - product.stalled < 2 * ideal
    assert product.bytes_read + product.bytes_written == 1024**2 * (2 + 2 + 4)


def _check_copy(figures: KernelFigures, chip: Chip) -> None:
    assert figures.bytes_read == figures.bytes_written == 5 * CHUNK_BYTES
    assert figures.trips == 5
    assert figures.stalled >= 2 * 5 * memory_of(chip).latency
