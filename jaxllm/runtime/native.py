"""The kernels for CPUs that a configuration needs, known to XLA before anything is compiled or read that calls them."""

from collections.abc import Callable
from pathlib import Path

from jaxllm.pallas_kernels.numba.targets import ZEROS, attention, begin, matmul_target
from jaxllm.runtime.resolved import ResolvedConfig

KERNELS = "kernels"
"""Folder of object files, beside that of the executables."""


def begin_kernels(resolved: ResolvedConfig, cache: Path | None) -> Callable[[], None]:
    """Have XLA know them, from the folder beside `cache` if an earlier start has left them there.

    They are compiled at the same time as what calls them; calling the result waits for them.
    """
    names = [attention(resolved.cache.dtype)] if resolved.forward.attention == "cpu" else []
    names += [ZEROS, matmul_target(resolved.dtype)] if resolved.forward.native_matmul else []
    return begin(names, None if cache is None else cache.parent / KERNELS)
