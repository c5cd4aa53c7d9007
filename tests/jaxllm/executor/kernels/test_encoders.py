"""Which implementation attends in towers, and what becomes of a kernel that is not right."""

from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import jax.numpy as jnp
import pytest

from jaxllm.config import EngineConfig
from jaxllm.errors import ConfigError
from jaxllm.executor.kernels.encoders import MM_ENCODER_ATTENTION
from jaxllm.executor.kernels.operation import Workload
from jaxllm.executor.kernels.select import select_kernel
from jaxllm.executor.kernels.self_test import verify_kernel
from jaxllm.executor.kernels.self_tests.encoders import TEST
from jaxllm.executor.resolve import resolve_config
from jaxllm.executor.resolved import ResolvedConfig
from jaxllm.models.kv_type import KVCacheType
from jaxllm.pallas_kernels.segment_attention.api import segment_attention
from jaxllm.pallas_kernels.segment_attention.tpu import tpu_segment_attention
from tests.models import small

SEEING: Any = SimpleNamespace(tower=object(), sound=None)
TOWER = Workload(None, SEEING, 16, KVCacheType("bfloat16"))


def resolved(asked: str = "auto", media_rows: int = 64) -> ResolvedConfig:
    """An engine that takes images, as on a TPU."""
    here = resolve_config(EngineConfig.from_options({"model": "demo"}))
    options = {"model": "demo", "compilation_cache_dir": "", "mm_encoder_attn_backend": asked}
    here = replace(here, config=EngineConfig.from_options(options), media_rows=media_rows)
    return here.with_kernel("mm_encoder_attn", "tpu")


def verify(before: ResolvedConfig, run: Any) -> ResolvedConfig:
    return verify_kernel(replace(TEST, run=lambda *operands: run(*operands[:-1])), before)


def test_what_a_machine_takes() -> None:
    for asked, platform, workload, wanted in (
        ("auto", "tpu", TOWER, "tpu"),
        ("xla", "tpu", TOWER, "xla"),
        ("auto", "gpu", TOWER, "triton"),
        ("auto", "cpu", TOWER, "xla"),
        ("auto", "tpu", replace(TOWER, model=small.MODEL), "xla"),
        ("auto", "gpu", replace(TOWER, dtype="float32"), "xla"),
    ):
        device = SimpleNamespace(platform=platform, compute_capability="8.0", device_kind="NVIDIA A100")
        assert select_kernel(MM_ENCODER_ATTENTION, asked, device, workload) == wanted
    old = SimpleNamespace(platform="gpu", compute_capability="7.5", device_kind="Tesla T4")
    assert select_kernel(MM_ENCODER_ATTENTION, "auto", old, TOWER) == "xla"
    small_memory = SimpleNamespace(platform="tpu", device_kind="TPU v4")
    assert select_kernel(MM_ENCODER_ATTENTION, "auto", small_memory, TOWER) == "xla"
    device = SimpleNamespace(platform="gpu", compute_capability="8.0")
    with pytest.raises(ConfigError, match="needs bfloat16 or float16, not float32"):
        select_kernel(MM_ENCODER_ATTENTION, "triton", device, replace(TOWER, dtype="float32"))


def test_the_kernel_is_right() -> None:
    before = resolved()
    assert verify(before, partial(tpu_segment_attention, scale=0.125, interpret=True)) is before


@pytest.mark.parametrize("factor", [1.1, jnp.nan])
def test_one_that_is_not_is_replaced(factor: float) -> None:
    def broken(*operands: Any) -> Any:
        return segment_attention(*operands, scale=0.125) * factor

    after = verify(resolved(), broken)
    assert after.backend("mm_encoder_attn") == "xla"
    assert "has an error of" in str(after.kernels["mm_encoder_attn"].problem)
    # Who names it gets it.
    named = resolved("tpu")
    assert verify(named, broken) is named


def test_engines_without_images_have_no_test() -> None:
    def never(*_: Any) -> Any:
        raise AssertionError

    assert verify(resolved(media_rows=0), never).backend("mm_encoder_attn") == "xla"
