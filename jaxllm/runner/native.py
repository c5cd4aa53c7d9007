"""The kernels for CPUs that a plan needs, ready before anything is compiled or read that calls them."""

from pathlib import Path

from jaxllm.pallas_kernels.cpu.targets import MATMUL, attention, provide
from jaxllm.runner.plan import Plan

KERNELS = "kernels"
"""Folder of object files, beside that of the executables."""


def provide_kernels(plan: Plan, cache: Path | None) -> None:
    """Have XLA know them, from the folder beside `cache` if an earlier start has left them there."""
    names = [attention(plan.cache.dtype)] if plan.forward.attention == "cpu" else []
    names += [MATMUL] if plan.forward.native_matmul and plan.dtype == "float32" else []
    provide(names, None if cache is None else cache.parent / KERNELS)
