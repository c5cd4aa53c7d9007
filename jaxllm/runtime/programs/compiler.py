"""The one way to XLA's compiler: libtpu, which compiles for TPUs, is used by one thread at a time."""

import threading
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import jax
from jax.errors import JaxRuntimeError

_LIBTPU = threading.Lock()
"""There is one libtpu in a process, so there is one lock: it crashes now and then when two threads compile (0.0.42)."""


def compiler_of(platform: str) -> AbstractContextManager[Any]:
    """Hold it while the compiler for `platform` works, or its runtime reads an executable.

    Tracing and lowering need it not.
    """
    return _LIBTPU if platform == "tpu" else nullcontext()


def compile_lowered(
    lowered: jax.stages.Lowered, platform: str, options: Mapping[str, Any] | None = None
) -> jax.stages.Compiled:
    """The executable for `platform`, compiled with options of XLA's. Waits for its turn where that is needed."""
    with compiler_of(platform):
        return lowered.compile(compiler_options=dict(options or {}))


def is_out_of_memory(error: JaxRuntimeError) -> bool:
    """Whether compiler or runtime say that the device's memory does not suffice."""
    return "RESOURCE_EXHAUSTED" in str(error)
