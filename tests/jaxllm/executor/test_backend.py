"""JAX's backend: in processes of their own, because it starts once."""

import re
from types import SimpleNamespace
from typing import Any

import jax
import pytest

from jaxllm.config import EngineConfig
from jaxllm.errors import ConfigError
from jaxllm.executor import backend
from jaxllm.executor.device_holders import device_files
from tests.conftest import RunPython

START = """
import os, sys, logging
logging.basicConfig(format="%(levelname)s %(message)s", stream=sys.stdout)
from jaxllm.config import EngineConfig
from jaxllm.errors import ConfigError
from jaxllm.executor import backend
import jax
local_devices, shares = jax.local_devices, []

def recorded():
    shares.append(os.environ.get("XLA_PYTHON_CLIENT_MEM_FRACTION"))
    return local_devices()

jax.local_devices = recorded
{before}
try:
    devices = backend.start_backend(EngineConfig.from_options({options}))
    print("started", devices[0].platform, shares[-1])
except ConfigError as error:
    print("error", error)
"""


def start(run_python: RunPython, before: str = "", env: dict[str, str] | None = None, **options: Any) -> str:
    environment = {"JAX_PLATFORMS": "", "JAX_NUM_CPU_DEVICES": "1", **(env or {})}
    result = run_python("-c", START.format(before=before, options=options), env=environment)
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


def test_the_platform_asked_for(run_python: RunPython) -> None:
    assert start(run_python, device="cpu") == "started cpu 0.9"


@pytest.mark.parametrize("device", ["tpu", "gpu"])
def test_a_platform_that_is_not_there(run_python: RunPython, device: str) -> None:
    if device_files():
        pytest.skip("there is an accelerator")
    # An environment that says otherwise does not count.
    found = start(run_python, device=device, env={"JAX_PLATFORMS": "cpu"})
    assert re.search(f"error device='{device}': JAX (failed to start|has already started on CPU)", found)
    assert f"no visible {device.upper()}" in found
    assert "JAX_PLATFORMS" not in found


def test_another_platform_can_be_tried_afterwards(run_python: RunPython) -> None:
    before = """
try:
    backend.start_backend(EngineConfig.from_options({"device": "tpu"}))
except ConfigError:
    print("failed")
"""
    if device_files():
        pytest.skip("there is an accelerator")
    assert start(run_python, before, device="cpu") == "failed\nstarted cpu 0.9"


def test_an_accelerator_that_jax_does_not_use(run_python: RunPython) -> None:
    """A busy TPU: JAX says nothing, and takes the CPU."""
    here = 'backend.device_files = lambda: ["/dev/accel0"]'
    found = start(run_python, here)
    assert (
        "WARNING this machine has an accelerator (/dev/accel0), but JAX runs on the CPU; unless it is installed: pip"
        in found
    )
    assert "--device tpu makes JAX report why" in found
    assert start(run_python, here, device="cpu") == "started cpu 0.9", "silences this warning"
    assert start(run_python, here, env={"JAX_PLATFORMS": "cpu"}) == "started cpu 0.9", "and this"


def test_who_holds_it_is_named(run_python: RunPython) -> None:
    before = """
from types import SimpleNamespace
backend.device_files = lambda: ["/dev/vfio/0"]
backend.holders = lambda files: [SimpleNamespace(pid=17, user="ann", command="train.py")]
"""
    assert "process 17 (ann: train.py) has it open: end it first" in start(run_python, before)


def test_the_share_of_gpu_memory(run_python: RunPython) -> None:
    """JAX reads it from the environment when it starts."""
    share = "XLA_PYTHON_CLIENT_MEM_FRACTION"
    assert start(run_python, gpu_memory_utilization=0.5) == "started cpu 0.5"
    assert start(run_python, env={share: "0.3"}) == "started cpu 0.3", "the user's own wins"
    assert start(run_python, env={"XLA_CLIENT_MEM_FRACTION": "0.3"}) == "started cpu None", "JAX refuses both"
    before = f"backend.start_backend(EngineConfig()); print(os.environ.get({share!r}))"
    assert start(run_python, before).startswith("None\n"), "engines in processes of their own have other options"


def test_where_a_gpu_s_share_comes_from(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    jax.devices()
    stats = {"bytes_limit": 60 * 2**30}
    device = SimpleNamespace(platform="gpu", device_kind="NVIDIA H100", memory_stats=lambda: stats)
    monkeypatch.setattr(jax, "local_devices", lambda: [device])
    backend.start_backend(EngineConfig())
    assert "JAX has already started with 60.0 GiB of GPU memory, which the engine uses" in caplog.text
    caplog.clear()
    monkeypatch.setenv(backend.MEMORY_FRACTION, "0.4")
    backend.start_backend(EngineConfig())
    assert (
        "JAX allocates 0.4 of GPU memory, as set in the environment; gpu_memory_utilization=0.9 has no" in caplog.text
    )


def test_jax_has_started_on_another_platform() -> None:
    jax.devices()
    with pytest.raises(
        ConfigError, match="device='gpu': JAX has already started on CPU; create the engine before using JAX"
    ):
        backend.start_backend(EngineConfig.from_options({"device": "gpu"}))


@pytest.mark.parametrize(("value", "hints"), [(None, False), ("true", False), ("false", True), ("0", True)])
def test_a_pool_that_grows_is_named(value: str | None, *, hints: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """On an H100 a cache of 23 GiB found no room though about 24 were free."""
    monkeypatch.delenv(backend.PREALLOCATE, raising=False)
    if value is not None:
        monkeypatch.setenv(backend.PREALLOCATE, value)
    assert (backend.PREALLOCATE in backend.growth_hint()) is hints
