"""The one way to XLA's compiler: libtpu, which compiles for TPUs, is used by one thread at a time."""

import logging
import threading
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import jax
from jax.errors import JaxRuntimeError

logger = logging.getLogger(__name__)

LARGE_LAYOUT = "xla_tpu_control_large_2nd_minor_layout_for_x16"
"""Whether weights of 16 bits come in tiles of 16 rows, see docs/decisions/031-weights-on-tpu7x.md."""

_DISPENSABLE = frozenset({LARGE_LAYOUT})
"""Options without which programs are only slower: a compiler that does not know one compiles without it."""

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
    asked = dict(options or {})
    with compiler_of(platform):
        try:
            return lowered.compile(compiler_options=asked)
        except JaxRuntimeError as error:
            unknown = {name for name in _DISPENSABLE & asked.keys() if name in str(error)}
            if not unknown:
                raise
            logger.warning(
                "this compiler does not support the option %s: programs may be slower", ", ".join(sorted(unknown))
            )
            rest = {name: value for name, value in asked.items() if name not in unknown}
            return lowered.compile(compiler_options=rest)


def is_out_of_memory(error: JaxRuntimeError) -> bool:
    """Whether compiler or runtime say that the device's memory does not suffice."""
    return "RESOURCE_EXHAUSTED" in str(error)
