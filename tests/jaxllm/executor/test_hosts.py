"""A slice of several hosts, by the environment of its machines."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import jax
import pytest

from jaxllm.errors import ConfigError
from jaxllm.executor.hosts import check_one_host
from tests.conftest import RunPython


@pytest.fixture(autouse=True)
def any_platform() -> Iterator[None]:
    before = jax.config.values["jax_platforms"]
    jax.config.update("jax_platforms", None)
    yield
    jax.config.update("jax_platforms", before)


@pytest.fixture
def four_chips(tmp_path: Path) -> Path:
    (tmp_path / "vfio").mkdir()
    for name in ("0", "1", "2", "3", "vfio"):
        (tmp_path / "vfio" / name).touch()
    return tmp_path


def test_several_hosts(four_chips: Path) -> None:
    with pytest.raises(ConfigError, match=r"one of the 4 hosts in TPU_WORKER_HOSTNAMES.*TPU_PROCESS_BOUNDS=1,1,1"):
        check_one_host({"TPU_WORKER_HOSTNAMES": "a,b,c,d", "TPU_WORKER_ID": "1"}, four_chips)
    with pytest.raises(ConfigError, match="TPU_TOPOLOGY=4x4 has 16 chips, but this host has 4"):
        check_one_host({"TPU_TOPOLOGY": "4x4"}, four_chips)


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"TPU_WORKER_HOSTNAMES": "localhost"},
        {"TPU_WORKER_HOSTNAMES": "localhost", "TPU_TOPOLOGY": "4x4"},
        {"TPU_TOPOLOGY": "2x2"},
        {"TPU_TOPOLOGY": "odd"},
        {"TPU_WORKER_HOSTNAMES": "a,b", "TPU_PROCESS_BOUNDS": "1,1,1"},
    ],
    ids=str,
)
def test_one_host(four_chips: Path, environment: dict[str, str]) -> None:
    check_one_host(environment, four_chips)


def test_without_chips_or_on_another_platform_nobody_is_waited_for(four_chips: Path, tmp_path: Path) -> None:
    slice_of_two = {"TPU_WORKER_HOSTNAMES": "a,b"}
    check_one_host(slice_of_two, tmp_path / "none")
    jax.config.update("jax_platforms", "cpu")
    check_one_host(slice_of_two, four_chips)


def test_an_engine_ends_before_jax_looks_for_devices(run_python: RunPython, four_chips: Path) -> None:
    code = f"""
import jax
from functools import partial
from pathlib import Path
from jaxllm.config import EngineConfig
from jaxllm.executor import backend
from jaxllm.executor.resolve import resolve_config
jax.config.update("jax_platforms", None)
jax.local_devices = lambda: __import__("time").sleep(600)
backend.check_one_host = partial(backend.check_one_host, devices=Path({str(four_chips)!r}))
resolve_config(EngineConfig.from_options({{}}))
"""
    done: subprocess.CompletedProcess[str] = run_python("-c", code, env={"TPU_WORKER_HOSTNAMES": "a,b"})
    assert done.returncode == 1
    assert "ConfigError: this is one of the 2 hosts" in done.stderr
