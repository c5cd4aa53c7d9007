import logging
import threading

import jax
import numpy as np
import pytest

from jaxllm.errors import EngineError
from jaxllm.executor.compile.compilations import CompilationWatch


def compile_something(constant: float) -> None:
    jax.jit(lambda x: x * constant)(np.float32(1))


def test_strict() -> None:
    watch = CompilationWatch(strict=True)
    with pytest.raises(EngineError, match="compilation after warm-up for 8 tokens"), watch.watching("8 tokens"):
        compile_something(1.25)
    assert watch.count == 1
    watch.close()


def test_otherwise_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    watch = CompilationWatch(strict=False)
    with caplog.at_level(logging.WARNING), watch.watching("8 tokens"):
        compile_something(2.25)
    assert watch.count == 1
    assert "8 tokens" in caplog.text
    watch.close()


def test_only_the_watched_block_on_its_own_thread() -> None:
    watch = CompilationWatch(strict=True)
    compile_something(3.25)
    with watch.watching("8 tokens"):
        other = threading.Thread(target=compile_something, args=(4.25,))
        other.start()
        other.join()
    assert watch.count == 0
    watch.close()
