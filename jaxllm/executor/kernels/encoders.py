"""Which implementation attends in the encoders of images and sound."""

from typing import Any

from jaxllm.executor.kernels.operation import Kernel, OperationKernels, Workload
from jaxllm.pallas_kernels.paged_attention.triton.options import HALF_TYPES, problem_of

_SMALL = ("TPU v2", "TPU v3", "TPU v4")
"""Chips with 16 MiB of fast memory: a block of scores, and the keys and values of a head, need more."""


def _tpu_refusal(device: Any, _: Workload) -> str | None:
    kind = str(getattr(device, "device_kind", ""))
    return f"needs more fast memory than a {kind} has" if kind.startswith(_SMALL) else None


def _triton_refusal(device: Any, workload: Workload) -> str | None:
    # Products of float32 as such need more registers than there are.
    if workload.dtype not in HALF_TYPES:
        return f"needs {' or '.join(HALF_TYPES)}, not {workload.dtype}"
    return problem_of(device)


MM_ENCODER_ATTENTION = OperationKernels[Workload](
    "mm_encoder_attn",
    kernels=(
        Kernel("tpu", platform="tpu", refusal=_tpu_refusal),
        Kernel("triton", platform="gpu", refusal=_triton_refusal),
    ),
    shape_of=lambda workload: workload,
    is_used=lambda workload: workload.model.tower is not None or workload.model.sound is not None,
)
"""The declaration of an operation's kernels: see `jaxllm.executor.kernels.select`."""
