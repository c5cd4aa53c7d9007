"""`benchmarks/gpu_attention.py` and `scripts/gpu_compile.py` compute the right figures; these need no GPU."""

from types import SimpleNamespace

import pytest

from benchmarks import gpu_attention
from jaxllm.pallas_kernels.paged_attention.cases import CASES, Case, minimum_bytes
from scripts.gpu_compile import parse_kernel


def test_without_a_gpu_it_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu_attention.main([]) == 2
    assert capsys.readouterr().err == "gpu_attention: no GPU here; JAX runs on cpu\n"


def test_operations_are_those_of_visible_keys() -> None:
    case = Case("", ((1, 9), (3, 2)), num_heads=2, head_size=64)
    assert gpu_attention.attention_flops(case) == 4 * 2 * 64 * (10 + 3 + 4 + 5)
    windowed = Case("", ((1, 9), (3, 2)), num_heads=2, head_size=64, window=4)
    assert gpu_attention.attention_flops(windowed) == 4 * 2 * 64 * (4 + 3 + 4 + 4)


@pytest.mark.parametrize(
    ("capability", "kernels"),
    [("9.0", ("gpu", "triton")), ("8.9", ("triton",)), ("10.0", ("triton",)), ("7.5", ()), ("gfx942", ())],
)
def test_each_gpu_has_its_kernels(capability: str, kernels: tuple[str, ...]) -> None:
    device = SimpleNamespace(compute_capability=capability, device_kind="a GPU")
    assert gpu_attention.kernels_of(device) == kernels


def test_errors_are_found() -> None:
    case = gpu_attention.on_gpu(CASES[0])
    assert 0 < gpu_attention.largest_error(case, "xla") < 3e-2
    assert gpu_attention.check_all([case], "xla") == []


def test_timing_goes_through_the_layers() -> None:
    assert gpu_attention.time_paged(Case("", ((1, 9), (3, 2))), "xla") > 0


def test_table_divides_what_must_be_done_by_the_time() -> None:
    decode = Case("decode", ((1, 1023),) * 8, dtype="bfloat16")
    prefill = Case("prefill", ((256, 0),), dtype="bfloat16")
    machine = gpu_attention.Machine(bandwidth=1e12, flops=1e14)
    seconds = 2 * minimum_bytes(decode) / 1e12
    rows = [
        gpu_attention.Row(decode, {"gpu": seconds, "cudnn": "rows differ"}),
        gpu_attention.Row(prefill, {"gpu": 4 * gpu_attention.attention_flops(prefill) / 1e14, "cudnn": 1.0}),
    ]
    lines = gpu_attention.table(rows, machine).splitlines()
    assert lines[0] == "| case | bound | gpu ms | gpu share | cudnn ms | cudnn share |"
    assert lines[2] == f"| decode | memory | {seconds * 1e3:.3f} | 50% | - | rows differ |"
    assert lines[3].startswith("| prefill | matrix | ")
    assert "| 25% | 1000.000 | 0% |" in lines[3]


@pytest.mark.parametrize("rows", [((1, 9), (3, 2)), ((8, 4),)], ids=["mixed", "chunk"])
def test_cudnn_is_not_asked_for_what_it_cannot(rows: tuple[tuple[int, int], ...]) -> None:
    row = gpu_attention.measure(Case("", rows), ())
    assert row.seconds == {"cudnn": {2: "rows differ", 1: "a causal mask begins at the first key"}[len(rows)]}


PTXAS = """ptxas info    : Compiling entry function 'k' for 'sm_90a'
    8 bytes stack frame, 4 bytes spill stores, 8 bytes spill loads
ptxas info    : Used 168 registers, used 16 barriers, 1 bytes smem
"""


def test_report_of_ptxas() -> None:
    kernel = parse_kernel("k", PTXAS, "a\nb\n")
    assert (kernel.registers, kernel.spill_bytes, kernel.ptx_lines) == (168, 12, 2)
    with pytest.raises(ValueError, match="no registers of k"):
        parse_kernel("k", "ptxas info : nothing", "")
