import math
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import jax
import pytest

from jaxllm.config import CacheOptions
from jaxllm.errors import CapacityError
from jaxllm.executor.memory.memory import CacheShape, cpu_free_bytes, device_free_bytes, plan_pages, steady
from jaxllm.kv.groups import CacheGroups
from jaxllm.models.checkpoint.model_config import read_config
from jaxllm.models.kv_shape import CacheLayout
from jaxllm.models.kv_type import KVCacheType
from jaxllm.models.options import ForwardOptions

SHAPE = CacheShape(num_layers=2, page_size=16, num_kv_heads=4, head_size=8, dtype="float32")


def pages(free_bytes: int = 10**9, max_model_len: int = 64, max_num_seqs: int = 4, **options: Any) -> int:
    return plan_pages(
        SHAPE,
        CacheOptions(**options),
        CacheGroups(),
        max_model_len=max_model_len,
        max_num_seqs=max_num_seqs,
        free_bytes=free_bytes,
    )


def test_page_bytes() -> None:
    assert SHAPE.page_bytes == 2 * 16 * 2 * 4 * 8 * 4
    assert SHAPE.array(5) == (2, 5, 2, 4, 16, 8)


@pytest.mark.parametrize(
    ("dtype", "scale_bytes", "bytes_of_head"), [("bfloat16", 0, 256), ("float8_e4m3fn", 0, 128), ("int8", 4, 132)]
)
@pytest.mark.parametrize("implementation", ["reference", "xla", "cpu"])
def test_page_bytes_of_narrow_types(dtype: str, scale_bytes: int, bytes_of_head: int, implementation: str) -> None:
    """Half of bfloat16's, and what scales take."""
    shape = CacheShape(2, 16, 4, 128, dtype, implementation, scale_bytes=scale_bytes)
    assert shape.page_bytes == 2 * 16 * 2 * 4 * bytes_of_head


def test_no_more_than_the_requests_can_use() -> None:
    assert pages() == 1 + 4 * 4


def test_what_memory_allows() -> None:
    assert pages(free_bytes=7 * SHAPE.page_bytes + 5) == 7
    assert pages(kv_cache_memory_bytes=6 * SHAPE.page_bytes) == 6
    assert pages(num_gpu_blocks_override=1000) == 1000


def test_the_error_says_how_many_tokens_fit_and_what_to_change() -> None:
    with pytest.raises(CapacityError) as caught:
        pages(free_bytes=4 * SHAPE.page_bytes)
    message = str(caught.value)
    assert "max_model_len=64 does not fit" in message
    assert "hold only 48 tokens" in message
    assert "lower max_model_len to 48" in message
    assert f"raise kv_cache_memory_bytes to {5 * SHAPE.page_bytes}" in message
    assert pages(kv_cache_memory_bytes=5 * SHAPE.page_bytes) == 5, "the advice is right"
    assert pages(free_bytes=4 * SHAPE.page_bytes, max_model_len=48) == 4, "and so is the other"


def test_cpu_takes_a_share_of_free_memory() -> None:
    assert 0 < cpu_free_bytes(0.5) < cpu_free_bytes(1.0)


def test_what_memory_is_free_by_chance_decides_little() -> None:
    assert [steady(size, "cpu") for size in (0, 5, 7, 8, 9, 10, 15, 16, 19, 5_500_000_000)] == [
        0, 5, 7, 8, 8, 10, 14, 16, 16, 5 * 2**30,
    ]  # fmt: skip


def test_accelerators_give_little_away() -> None:
    sizes = [40 << 30, 41 << 30, (43 << 30) + 12345, 63, 64, 65]
    assert [steady(size, "gpu") for size in sizes] == [40 << 30, 41 << 30, 43 << 30, 63, 64, 64]
    for size in range(1, 5000):
        assert size * 31 / 32 <= steady(size, "tpu") <= size


def device(limit: int, used: int, platform: str = "tpu") -> jax.Device:
    stats = {"bytes_limit": limit, "bytes_in_use": used}
    return cast(jax.Device, SimpleNamespace(memory_stats=lambda: stats, device_kind="test chip", platform=platform))


def test_accelerators_keep_room_for_temporaries() -> None:
    assert device_free_bytes([device(1000, 200), device(1000, 300)], 0.9, 100) == 500
    with pytest.raises(CapacityError, match=r"test chip.*max_num_batched_tokens"):
        device_free_bytes([device(1000, 800)], 0.9, 100)


def test_the_share_of_a_gpu_is_taken_once() -> None:
    """JAX has taken it already, and reports what it took: less a little that stays free."""
    assert device_free_bytes([device(1000, 200, "gpu")], 0.5, 100) == 980 - 200 - 100


@pytest.mark.parametrize("implementation", ["xla", "cpu"])
def test_pages_of_heads_of_two_sizes_with_scales(tmp_path: Path, implementation: str) -> None:
    """Gemma 4's heads of 256 and 512 fit together in a page as they do without scales, in 65/128 of the memory."""
    shutil.copy(
        Path(__file__).parents[4] / "benchmarks" / "published" / "gemma-4-31B-it.json", tmp_path / "config.json"
    )
    model = read_config(tmp_path)
    options = ForwardOptions(attention=implementation)
    narrow = replace(options, kv_cache=KVCacheType("int8", "dynamic"))
    plans, numbers = [], []
    for each in (options, narrow):
        layout = CacheLayout.of(model, each, "bfloat16")
        plans.append(layout.plan(model, by_window=True))
        numbers.append(math.prod(layout.array(model, layers=plans[-1].depth, pages=4, page_size=16)))
    assert plans[0] == plans[1]
    assert numbers[1] / numbers[0] == 65 / 64
