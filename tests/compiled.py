"""Compiled programs of tests are kept between processes and runs."""

import pytest

from jaxllm.executor.compile.executables import use_compilation_cache


@pytest.fixture(scope="session", autouse=True)
def compilation_cache() -> None:
    """JAX's persistent cache, which an engine in the same process would turn on, too.

    Compiling takes most of the time of tests of models and kernels. What compiles for devices that are not there has
    processes of its own, and no such cache.
    """
    use_compilation_cache(None)
