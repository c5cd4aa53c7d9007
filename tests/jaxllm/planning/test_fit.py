"""Open options are settled before weights are loaded: here for absent TPUs, and for made-up memory."""

import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import jax
import pytest

from jaxllm.config import EngineConfig
from jaxllm.errors import CapacityError, ConfigError
from jaxllm.executor.resolve import resolve_config
from jaxllm.executor.resolved import ResolvedConfig
from jaxllm.planning.fit import check_weights, fit, fit_here
from jaxllm.planning.target import TargetDevices, find_target
from tests.jaxllm.planning.llama import GPT_OSS_120B, LLAMA_3_8B_WEIGHTS, write_model

GIB = 2**30
LLAMA_3_1 = {"max_position_embeddings": 131072}


def fitted(target: TargetDevices, model: str, **options: Any) -> ResolvedConfig:
    return fit(resolve_config(EngineConfig.from_options({"model": model, **options}), target.devices), target)


@pytest.fixture(scope="module")
def absent() -> dict[str, TargetDevices]:
    """Hosts of one and of eight chips."""
    pytest.importorskip("libtpu")
    return {f"{chip}-{size}": find_target(chip, None, size) for chip in ("v5e", "v6e") for size in (1, 8)}


def test_requests_are_as_long_as_a_chip_holds(
    absent: dict[str, TargetDevices], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Llama 3.1 8B on one v6e: its 131,072 tokens take 16 GiB alongside 15 GiB of weights; 256 requests take 0.3."""
    model = write_model(tmp_path, **LLAMA_3_1)
    found = fitted(absent["v6e-1"], model)
    assert 100_000 < found.max_model_len < 131_072
    assert found.max_model_len % 1024 == 0
    assert (
        f"max_model_len is reduced to {found.max_model_len}, from the model's 131072, to fit the KV cache"
        in caplog.text
    )
    with pytest.raises(CapacityError, match=r"max_model_len=131072 does not fit.*would fit: --max-model-len 1\d{5}"):
        fitted(absent["v6e-1"], model, max_model_len=131_072)
    assert fitted(absent["v6e-1"], model, max_model_len=65_536).max_model_len == 65_536


def test_as_few_chips_as_hold_a_longest_request(absent: dict[str, TargetDevices], tmp_path: Path) -> None:
    model = write_model(tmp_path, **LLAMA_3_1)
    assert fitted(absent["v6e-8"], model).num_devices == 2
    assert fitted(absent["v6e-8"], model).max_model_len == 131_072
    assert fitted(absent["v6e-8"], model, max_model_len=8192).num_devices == 1
    # The weights alone do not fit one v5e.
    assert fitted(absent["v5e-8"], model).num_devices == 4
    assert fitted(absent["v5e-8"], model, max_model_len=8192).num_devices == 2
    assert fitted(absent["v5e-8"], model, tensor_parallel_size=8).num_devices == 8, "as one asks for"


def test_where_all_chips_hold_no_longest_request_it_is_shorter(
    absent: dict[str, TargetDevices], tmp_path: Path
) -> None:
    model = write_model(tmp_path, max_position_embeddings=2**21)
    found = fitted(absent["v5e-8"], model)
    assert found.num_devices == 8
    assert 131_072 < found.max_model_len < 2**21


def test_what_does_not_fit_says_what_would(absent: dict[str, TargetDevices], tmp_path: Path) -> None:
    model = write_model(tmp_path, **LLAMA_3_1)
    message = (
        r"weights and state need 15\.0 GiB on each device, but only 14\.4 GiB are usable; this would fit: "
        r".*parallel-size 4"
    )
    with pytest.raises(CapacityError, match=message):
        fitted(absent["v5e-8"], model, tensor_parallel_size=1)
    with pytest.raises(CapacityError, match="would fit: --tensor-parallel-size 4 --topology 2x2"):
        fitted(absent["v5e-1"], model)
    with pytest.raises(CapacityError, match="would fit: --dtype bfloat16"):
        fitted(absent["v6e-1"], write_model(tmp_path / "short"), dtype="float32")


def test_fewer_bits_where_16_do_not_fit(absent: dict[str, TargetDevices], tmp_path: Path) -> None:
    """int8 where that fits, else int4; a checkpoint that is quantised already stays as it is."""
    with pytest.raises(CapacityError, match="would fit: --quantization int8, or --tensor-parallel-size 2"):
        fitted(absent["v5e-1"], write_model(tmp_path / "8b"))
    large = write_model(tmp_path / "17b", num_hidden_layers=72)
    with pytest.raises(CapacityError, match="would fit: --quantization int4, or --tensor-parallel-size"):
        fitted(absent["v5e-1"], large)
    assert fitted(absent["v5e-1"], large, quantization="int4").num_devices == 1
    with pytest.raises(CapacityError, match="would fit: --tensor-parallel-size 2"):
        fitted(absent["v5e-1"], large, quantization="int8")


def test_experts_whose_groups_devices_cannot_share(absent: dict[str, TargetDevices], tmp_path: Path) -> None:
    """The inputs of an expert's last product are 90 groups of 32, in which eight devices have no whole number."""
    model = write_model(tmp_path, **GPT_OSS_120B)
    with pytest.raises(ConfigError, match=r"groups of 32 of 2880 inputs; sizes.*: 1, 2; or give --enable-expert-par"):
        fitted(absent["v6e-8"], model, tensor_parallel_size=8)
    advice = "would fit: --tensor-parallel-size 4 --enable-expert-parallel"
    with pytest.raises(CapacityError, match=advice):
        fitted(absent["v6e-8"], model)
    with pytest.raises(CapacityError, match=f"{advice} --topology 2x2"):
        fitted(absent["v6e-1"], model)
    assert fitted(absent["v6e-8"], model, enable_expert_parallel=True).num_devices == 4


def here(monkeypatch: pytest.MonkeyPatch, platform: str, count: int, limit: int, used: int = 0) -> list[jax.Device]:
    """Accelerators as JAX would show them; `jax.local_devices` returns them."""
    stats = {"bytes_limit": limit, "bytes_in_use": used}
    kind = "NVIDIA A100" if platform == "gpu" else "TPU v6 lite"
    device = cast(
        jax.Device,
        SimpleNamespace(platform=platform, device_kind=kind, memory_stats=lambda: stats, compute_capability="8.0"),
    )
    devices = [device] * count
    monkeypatch.setattr(jax, "local_devices", lambda: devices)
    return devices


def test_gpus_that_are_here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """JAX's limit on a GPU is the engine's share already."""
    config = EngineConfig.from_options({"model": write_model(tmp_path, **LLAMA_3_1)})
    here(monkeypatch, "gpu", 1, 36 * GIB)
    assert fit_here(resolve_config(config)).max_model_len == 131_072
    here(monkeypatch, "gpu", 1, 36 * GIB, used=8 * GIB)
    assert fit_here(resolve_config(config)).max_model_len < 131_072, "something else is in it"
    here(monkeypatch, "gpu", 1, 14 * GIB)
    with pytest.raises(
        CapacityError, match=r"15\.0 GiB on each .* 13\.7 .*would fit: 4 such devices \(this machine has 1\)"
    ):
        fit_here(resolve_config(config))
    with caplog.at_level(logging.INFO):
        here(monkeypatch, "gpu", 4, 36 * GIB)
        fit_here(resolve_config(config))
    assert caplog.text.count("3 of 4 devices are unused") == 1
    assert "hide them from this process with CUDA_VISIBLE_DEVICES" in caplog.text


def test_a_device_that_does_not_tell_its_memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    devices = here(monkeypatch, "gpu", 1, 0)
    monkeypatch.setattr(devices[0], "memory_stats", lambda: None)
    config = EngineConfig.from_options({"model": write_model(tmp_path, **LLAMA_3_1)})
    assert fit_here(resolve_config(config)).max_model_len == 131_072


def test_weights_of_a_pooling_model(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Which has no KV cache, and one device."""
    here(monkeypatch, "gpu", 2, 20 * GIB)
    config = EngineConfig.from_options({"model": write_model(tmp_path), "dtype": "float32"})
    resolved = resolve_config(config)
    check_weights(resolved, LLAMA_3_8B_WEIGHTS)
    with pytest.raises(
        CapacityError, match=r"need 29\.9 GiB on each device, but only 19\.6 .*would fit: --dtype bfloat16"
    ):
        check_weights(resolved, 2 * LLAMA_3_8B_WEIGHTS)
