"""Places for windows of sound: as many as requests, as options say, or as memory holds."""

from pathlib import Path

import pytest

from jaxllm.config import EngineConfig
from jaxllm.executor.memory.capacity import count_pages, window_bytes, with_slots
from jaxllm.executor.resolve import resolve_config
from jaxllm.executor.resolved import ResolvedConfig
from tests.e2e.sound.hearing import save_small_model

PAGE_BYTES = 3 * 2 * 64 * 4 * 16
"""Keys and values of three layers, for 16 tokens."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("hearing")
    save_small_model(found)
    return found


def resolved(folder: Path, **options: object) -> ResolvedConfig:
    """A configuration for requests of 4 pages each, as many as 64."""
    given = {"model": str(folder), "max_model_len": 64, "max_num_seqs": 64, "max_num_batched_tokens": 64, **options}
    return resolve_config(EngineConfig.from_options(given))


def test_a_window_is_whole_pages(folder: Path) -> None:
    assert window_bytes(resolved(folder)) == 3 * PAGE_BYTES


@pytest.mark.parametrize(
    ("free", "options", "windows"),
    [
        (10_000 * PAGE_BYTES, {}, 64),
        (7 * 20 * PAGE_BYTES, {}, 16),
        (7 * 20 * PAGE_BYTES, {"sound_windows": 3}, 3),
        (0, {"kv_cache_memory_bytes": 7 * 9 * PAGE_BYTES}, 8),
        (0, {"num_gpu_blocks_override": 9}, 64),
        (0, {}, 1),
    ],
)
def test_number_of_windows(folder: Path, free: int, options: dict[str, object], windows: int) -> None:
    assert with_slots(resolved(folder, **options), free).sound_windows == windows


def test_the_rest_is_for_pages(folder: Path) -> None:
    free = 7 * 20 * PAGE_BYTES
    sized = with_slots(resolved(folder), free)
    assert count_pages(sized, free) == 7 * 20 - 3 * 16
