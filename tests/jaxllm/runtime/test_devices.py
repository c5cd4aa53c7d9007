"""Options of parallelism: what they mean together, and one precise error for each mistake."""

from typing import Any

import jax
import pytest

from jaxllm.config import EngineConfig, ParallelOptions
from jaxllm.errors import ConfigError
from jaxllm.runtime.devices import local_devices, tensor_parallel_size
from jaxllm.runtime.resolved import resolve_config


@pytest.mark.parametrize(
    ("options", "size"),
    [
        ({}, 1),
        ({"tensor_parallel_size": 4}, 4),
        ({"mesh": "model=2"}, 2),
        ({"mesh": "data=1, model=8"}, 8),
        ({"mesh": "model=2", "tensor_parallel_size": 2}, 2),
        ({"mesh": "data=1"}, 1),
    ],
)
def test_sizes(options: dict[str, Any], size: int) -> None:
    assert tensor_parallel_size(ParallelOptions(**options)) == size


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mesh": "data=2,model=2"}, "mesh: data=2: one engine has one copy"),
        ({"mesh": "modle=2"}, "unknown axis 'modle'.*data, model"),
        ({"mesh": "model"}, "expected names and numbers"),
        ({"mesh": "model=0"}, "expected names and numbers"),
        ({"mesh": "model=2", "tensor_parallel_size": 4}, "contradicts"),
        ({"tensor_parallel_size": 0}, "at least 1"),
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
        local_devices(count)


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
