"""Compiled programs of tests are kept between processes and runs."""

import pytest

from jaxllm.config import EngineConfig
from jaxllm.executor.compile.executables import use_compilation_cache
from jaxllm.executor.kernels.native import begin_kernels
from jaxllm.executor.resolve import resolve_config


@pytest.fixture(scope="session", autouse=True)
def compilation_cache() -> None:
    """JAX's persistent cache, which an engine in the same process would turn on, too.

    Compiling takes most of the time of tests of models and kernels. What compiles for devices that are not there has
    processes of its own, and no such cache.
    """
    use_compilation_cache(None)


@pytest.fixture(scope="session", autouse=True)
def native_kernels() -> None:
    """Kernels for CPUs from the cache: engines without one find them in the process, in place of compiling them."""
    options = {"enable_lora": True, "lora_dtype": "float32"}
    begin_kernels(resolve_config(EngineConfig.from_options(options)), use_compilation_cache(None))()
