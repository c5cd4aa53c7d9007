"""How long requests may be where no length was asked for."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from jaxllm.config import EngineConfig
from jaxllm.executor import build
from jaxllm.executor.largest_step import bytes_beside_cache
from jaxllm.executor.memory.capacity import adapter_bytes, bytes_on_device, count_pages, shortened
from jaxllm.executor.resolve import resolve_config
from jaxllm.executor.resolved import ResolvedConfig
from jaxllm.models.checkpoint.checkpoint import Checkpoint
from jaxllm.models.checkpoint.find_model import find_model


def resolved_for(platform: str, **options: Any) -> ResolvedConfig:
    """The demo model, 2,048 tokens, in pages of 16."""
    return replace(resolve_config(EngineConfig.from_options(options)), platform=platform)


def test_only_what_does_not_fit_is_shortened(caplog: pytest.LogCaptureFixture) -> None:
    resolved = resolved_for("gpu")
    page = resolved.cache.page_bytes
    assert shortened(resolved, 129 * page) is resolved, "not even where free memory is rounded elsewhere"
    assert not caplog.text
    shorter = shortened(resolved, 128 * page)
    assert shorter.max_model_len == 1024
    assert count_pages(shorter, 128 * page) == 128
    assert "max_model_len is reduced to 1024, from the model's 2048" in caplog.text


def test_what_cannot_or_must_not_be_shortened() -> None:
    resolved = resolved_for("gpu", max_model_len=2048)
    assert shortened(resolved, 100 * resolved.cache.page_bytes) is resolved, "as one asks for"
    resolved = resolved_for("gpu")
    assert shortened(resolved, 64 * resolved.cache.page_bytes) is resolved, "so little is an error"


def test_lengths_do_not_follow_every_byte() -> None:
    """Executables are compiled for a length."""
    resolved = replace(resolved_for("gpu"), max_model_len=100_000)
    page = resolved.cache.page_bytes
    lengths = {shortened(resolved, 3030 * page + change).max_model_len for change in (0, 12345, 10 * page, -8 * page)}
    assert len(lengths) == 1
    assert lengths.pop() % 1024 == 0


def test_an_accelerator_counts_again_once_the_compiler_has_said_what_a_step_needs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    options = {"max_num_batched_tokens": 8, "max_num_seqs": 2, "attention_backend": "xla", "optimization_level": 0}
    options |= {"layer_stack": "scan"}
    resolved = resolved_for("gpu", **options, compilation_cache_dir=str(tmp_path))
    beside = bytes_beside_cache(resolved, None)
    stats = {"bytes_limit": (beside + 100 * resolved.cache.page_bytes) * 100 // 98 + 4096, "bytes_in_use": 0}
    device = SimpleNamespace(memory_stats=lambda: stats, device_kind="test chip", platform="gpu")
    monkeypatch.setattr(build, "local_devices_of", lambda _: (device,))
    shorter, runner, pages = build.build_runner(resolved)
    runner.close()
    assert shorter.max_model_len == 1024
    assert 1024 // 16 < pages <= 100


def test_two_numbers_of_four_bits_share_a_byte() -> None:
    shapes = {"codes": jax.ShapeDtypeStruct((3, 64), jnp.int4), "scales": jax.ShapeDtypeStruct((3, 2), jnp.bfloat16)}
    assert bytes_on_device(shapes) == 3 * 32 + 3 * 4


@pytest.mark.parametrize(("slots", "rank", "columns"), [(1, 16, 16), (9, 16, 256), (2, 64, 128)])
def test_slots_for_adapters_are_counted(slots: int, rank: int, columns: int) -> None:
    """Matrices of the inputs and the outputs of every linear layer, which have whole blocks of 128 columns if many."""
    resolved = resolved_for("gpu", enable_lora=True, max_loras=slots, max_lora_rank=rank, dtype="float32")
    shapes = [each.shape for each in Checkpoint(find_model("demo")).tensors if each.name.endswith("_proj.weight")]
    assert len(shapes) % 7 == 0
    assert adapter_bytes(resolved) == 4 * columns * sum(map(sum, shapes))
    assert adapter_bytes(resolved_for("gpu")) == 0
