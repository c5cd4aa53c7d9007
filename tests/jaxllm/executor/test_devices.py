"""Options of parallelism: what they mean together, and one precise error for each mistake."""

import json
import logging
from pathlib import Path
from typing import Any, cast

import jax
import pytest

from jaxllm.config import EngineConfig, ParallelOptions
from jaxllm.errors import ConfigError
from jaxllm.executor.compile.buckets import Bucket
from jaxllm.executor.compile.generation import generation_programs
from jaxllm.executor.devices import local_devices, tensor_parallel_size
from jaxllm.executor.resolve import resolve_config
from jaxllm.planning.target import find_target
from tests.jaxllm.planning.llama import write_model


@pytest.mark.parametrize(
    ("options", "size"),
    [
        ({}, None),
        ({"tensor_parallel_size": "auto"}, None),
        ({"tensor_parallel_size": "auto", "mesh": "model=2"}, 2),
        ({"tensor_parallel_size": 4}, 4),
        ({"mesh": "model=2"}, 2),
        ({"mesh": "data=1, model=8"}, 8),
        ({"mesh": "model=2", "tensor_parallel_size": 2}, 2),
        ({"mesh": "data=1"}, 1),
        ({"mesh": "data=2,model=4"}, 4),
        ({"mesh": "data=2", "tensor_parallel_size": 4}, 4),
    ],
)
def test_sizes(options: dict[str, Any], size: int | None) -> None:
    assert tensor_parallel_size(ParallelOptions(**options)) == size


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mesh": "modle=2"}, "unknown axis 'modle'.*data, model"),
        ({"mesh": "model"}, "expected axis names and sizes"),
        ({"mesh": "model=0"}, "expected axis names and sizes"),
        ({"mesh": "model=2", "tensor_parallel_size": 4}, "contradicts"),
        ({"tensor_parallel_size": 0}, "at least 1"),
        ({"tensor_parallel_size": "many"}, "tensor_parallel_size='many': expected int or 'auto'"),
    ],
)
def test_contradictions(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        tensor_parallel_size(ParallelOptions(**options))


def test_a_size_that_does_not_divide_names_those_that_do() -> None:
    with pytest.raises(ConfigError, match=r"8 query heads, 4 KV heads, 384 .*; sizes that work: 1, 2, 4, 8$"):
        resolve_config(EngineConfig.from_options({"tensor_parallel_size": 3}))


def test_more_devices_than_there_are() -> None:
    count = len(jax.local_devices()) + 1
    with pytest.raises(ConfigError, match=f"tensor_parallel_size={count}: there .*device_count={count} before"):
        local_devices(EngineConfig(), count)


def test_a_plan_for_several_devices() -> None:
    resolved = resolve_config(EngineConfig.from_options({"tensor_parallel_size": 8}))
    assert (resolved.num_devices, resolved.page_size) == (8, 16)
    # Each device has one of 8 KV heads, which are four heads twice.
    assert resolved.cache.array(3)[3] == 8
    assert resolved.vocab_size % (8 * 128) == 0


def test_for_absent_devices_one_thread_compiles() -> None:
    config = EngineConfig.from_options({"compile_workers": 4})
    assert resolve_config(config).config.compile.compile_workers == 4
    # Two crash the compiler for TPUs that are not there, one time in ten.
    assert resolve_config(config, jax.devices()).config.compile.compile_workers == 1


@pytest.mark.parametrize(
    ("checkpoint", "dtype"), [("bfloat16", "bfloat16"), ("float16", "float32"), ("float32", "float32")]
)
def test_cpus_keep_bfloat16(tmp_path: Path, checkpoint: str, dtype: str) -> None:
    """It takes half of the memory and of its traffic; in float16 they are slow."""
    model = write_model(tmp_path, torch_dtype=checkpoint)
    resolved = resolve_config(EngineConfig.from_options({"model": model}))
    assert (resolved.dtype, resolved.kv_dtype) == (dtype, dtype)
    asked = resolve_config(EngineConfig.from_options({"model": model, "dtype": "float32"}))
    assert asked.dtype == "float32"


def test_recurrent_layers_on_cpus_are_float32(tmp_path: Path) -> None:
    sizes = {"hidden_size": 64, "num_hidden_layers": 1, "num_heads": 4, "head_dim": 32, "state_size": 16, "n_groups": 1}
    kind = {"architectures": ["Mamba2ForCausalLM"], "model_type": "mamba2", "torch_dtype": "bfloat16"}
    (tmp_path / "config.json").write_text(json.dumps({**kind, **sizes, "vocab_size": 128, "expand": 2}))
    assert resolve_config(EngineConfig.from_options({"model": str(tmp_path)})).dtype == "float32"


def one_tpu() -> jax.Device:
    """A chip that is not there."""
    pytest.importorskip("libtpu")
    return cast(jax.Device, find_target("v6e", "1x1", 1).devices[0])


def test_tpus_do_not_compute_in_float16(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = write_model(tmp_path, torch_dtype="float16")
    device = one_tpu()
    with caplog.at_level(logging.WARNING):
        assert resolve_config(EngineConfig.from_options({"model": model}), [device]).dtype == "bfloat16"
    assert "bfloat16 instead of the checkpoint's float16" in caplog.text
    with pytest.raises(ConfigError, match="dtype='float16': not supported on TPUs; use bfloat16"):
        resolve_config(EngineConfig.from_options({"model": model, "dtype": "half"}), [device])


@pytest.mark.parametrize(("dtype", "precision"), [("float32", "HIGHEST"), ("bfloat16", "DEFAULT")])
def test_float32_on_accelerators_is_multiplied_as_such(tmp_path: Path, dtype: str, precision: str) -> None:
    """By default they round the factors to bfloat16 (TPU) or to 10 bits (GPU)."""
    model = write_model(tmp_path, num_hidden_layers=1, max_position_embeddings=128)
    device = one_tpu()
    options = {"model": model, "dtype": dtype, "attention_backend": "xla"}
    resolved = resolve_config(EngineConfig.from_options(options), [device])
    text = generation_programs(resolved, 8).step(Bucket(8, 8)).lower().as_text()
    products = [line for line in text.splitlines() if "dot_general" in line]
    assert products
    assert all(precision in line or (precision == "DEFAULT" and "precision" not in line) for line in products)
    on_cpu = resolve_config(EngineConfig.from_options({"model": model, "dtype": "float32"}))
    assert on_cpu.matmul_precision is None, "there it is the default"
