"""The search for block sizes, on costs that are known; and that what was found is what the kernels take."""

from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import pytest
from jax._src.pallas.mosaic import tpu_info

from benchmarks.tpu.cases import decode_case
from benchmarks.tpu.search import neighbours, search
from benchmarks.tpu.timed import Timer
from benchmarks.tpu.worker import Worker
from jaxllm.pallas_kernels.chips import CHIPS
from jaxllm.pallas_kernels.measured import measured_blocks
from jaxllm.pallas_kernels.paged_attention.tpu.blocks import choose_blocks
from jaxllm.pallas_kernels.paged_attention.tpu.common import Blocks
from jaxllm.pallas_kernels.paged_attention.tpu.layout import Dims
from jaxllm.pallas_kernels.tpu_common.target import Target
from jaxllm.pallas_kernels.tuning import tuned_blocks
from tests.conftest import RunPython

START = Blocks(keys=512, chunk=512, slots=4)


def test_a_search_finds_the_only_valley() -> None:
    best, cost = search("decode", START, 64, lambda blocks: abs(blocks.keys - 2048) + abs(blocks.slots - 2) + 1, 20)
    assert (best, cost) == (replace(START, keys=2048, slots=2), 1)


def test_a_search_stays_where_it_is_level() -> None:
    # A thousandth better is not better.
    best, _ = search("decode", START, 64, lambda blocks: 1000 - (blocks != START), 20)
    assert best == START


def test_a_search_asks_no_more_than_it_may_and_nothing_twice() -> None:
    asked: list[Blocks] = []

    def cost(blocks: Blocks) -> float:
        asked.append(blocks)
        return 1 / blocks.keys

    search("prefill", replace(START, queries=64), 64, cost, 4)
    assert len(asked) == len(set(asked)) == 4


def test_what_does_not_compile_is_passed_over() -> None:
    best, _ = search("decode", START, 64, lambda blocks: 1 / blocks.keys if blocks.keys <= 1024 else None, 20)
    assert best.keys == 1024
    with pytest.raises(RuntimeError, match="does not compile"):
        search("decode", START, 64, lambda _: None, 20)


def test_sizes_are_whole_chunks_and_pages() -> None:
    assert list(neighbours(START, "keys", 64, larger=False)) == []
    assert list(neighbours(START, "chunk", 64, larger=True)) == []
    assert list(neighbours(START, "chunk", 64, larger=False)) == [replace(START, chunk=256)]
    assert list(neighbours(replace(START, slots=8), "slots", 64, larger=True)) == []


@pytest.mark.parametrize("chip", [chip.name for chip in CHIPS.values() if tuned_blocks("paged_attention", chip.name)])
def test_kernels_take_what_was_tuned(chip: str) -> None:
    version = tpu_info.chip_version_from_device_kind(CHIPS[chip].device_kind)
    assert version is not None
    vmem = tpu_info.get_tpu_info_for_chip(version, CHIPS[chip].cores).vmem_capacity_bytes
    for key, blocks in tuned_blocks("paged_attention", chip).items():
        fields: dict[str, Any] = dict(key)
        kernel = fields.pop("kernel")
        assert choose_blocks(kernel, Dims(**fields), 4096, Target(chip, vmem)) == Blocks(**blocks)


def test_blocks_with_another_result_do_not_count() -> None:
    timer, case = Timer(), decode_case("qwen3-0.6b", 2, 256, 64)
    timer._compare(case, jnp.ones((2, 16, 128)))
    timer._compare(case, jnp.full((2, 16, 128), 1.01))
    for wrong in (1.1, jnp.nan):
        with pytest.raises(ValueError, match="the result is off by"):
            timer._compare(case, jnp.ones((2, 16, 128)).at[1, 2, 3].set(wrong))


def test_times_are_taken_on_the_device_that_is_here() -> None:
    with closing(Worker(None)) as worker:
        assert worker.device_kind() == "cpu"


@pytest.mark.slow
def test_measured_blocks_are_kept(run_python: RunPython, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of it, in Pallas's interpreter: measure, write, read."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    flags = ("--measure", "--model", "llama-3-70b-tp8", "--page-size", "64", "--tries", "1")
    result = run_python("-m", "benchmarks.tpu_tune", *flags)
    assert result.returncode == 0, result.stderr
    found = measured_blocks("paged_attention", "cpu")
    assert {dict(key)["kernel"] for key in found} == {"decode", "prefill"}
    for key, blocks in found.items():
        fields: dict[str, Any] = dict(key)
        kernel = fields.pop("kernel")
        target = Target("v6e", 128 << 20, "cpu")
        assert choose_blocks(kernel, Dims(**fields), 64, target) == Blocks(**blocks)
