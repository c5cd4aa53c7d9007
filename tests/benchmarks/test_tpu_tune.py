"""The search for block sizes, on costs that are known; and that what was found is what the kernels take."""

from dataclasses import replace
from typing import Any

import pytest
from jax._src.pallas.mosaic import tpu_info

from benchmarks.tpu.search import neighbours, search
from jaxllm.pallas_kernels.chips import CHIPS
from jaxllm.pallas_kernels.paged_attention.tpu.blocks import Target, choose_blocks
from jaxllm.pallas_kernels.paged_attention.tpu.common import Blocks
from jaxllm.pallas_kernels.paged_attention.tpu.layout import Dims
from jaxllm.pallas_kernels.tuning import tuned_blocks

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
