"""The kernels for CPUs that a configuration needs, known to XLA before anything is compiled or read that calls them."""

from collections.abc import Callable
from pathlib import Path

from jaxllm.pallas_kernels.linear.cpu.packed import matmul_target
from jaxllm.pallas_kernels.numba.targets import begin
from jaxllm.pallas_kernels.numba.zeros import ZEROS
from jaxllm.pallas_kernels.paged_attention.cpu.attention import attention_target
from jaxllm.runtime.resolved import ResolvedConfig

KERNELS = "kernels"
"""Folder of object files, beside that of the executables."""


def begin_kernels(resolved: ResolvedConfig, cache: Path | None) -> Callable[[], None]:
    """Have XLA know them, from the folder beside `cache` if an earlier start has left them there.

    They are compiled at the same time as what calls them; calling the result waits for them.
    """
    targets = [attention_target(resolved.cache.dtype)] if resolved.forward.attention == "cpu" else []
    targets += [ZEROS, matmul_target(resolved.dtype)] if resolved.forward.native_matmul else []
    return begin(targets, None if cache is None else cache.parent / KERNELS)
