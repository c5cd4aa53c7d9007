"""The arguments of the kernel, and the static options of a launch."""

from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

HALF_TYPES = ("bfloat16", "float16")
"""Types of the cache that tensor cores multiply."""

TYPES = (*HALF_TYPES, "float32")
"""Types of the cache. 8-bit types are left to XLA: Triton's offsets of such an array have 32 bits and a sign up to
4 GiB, and reach half of it."""

LEAST_ROWS = 16
"""Fewer rows do not fill a product."""

PREFILL_ROWS = 64
"""Query rows of a unit of a prompt: tokens times the query heads of a KV head."""


def refusal(*, head_size: int, kv_dtype: str) -> str | None:
    """Why the kernel cannot do it; None where it can."""
    if kv_dtype not in TYPES:
        return f"a KV cache of {kv_dtype}; supported: {', '.join(TYPES)}"
    return f"heads of size {head_size}; supported: up to 256" if head_size > 256 else None


def problem_of(device: Any) -> str | None:
    """The reason why a JAX device, or this version of JAX, cannot run it; None where it can."""
    capability = str(getattr(device, "compute_capability", ""))
    if find_spec("jax.experimental.pallas.triton") is None:
        return "needs Pallas through Triton, which this version of JAX no longer includes"
    if not capability.partition(".")[0].isdigit() or float(capability) < 8:
        return f"needs an NVIDIA GPU of compute capability 8 or more; this is a {device.device_kind}"
    return None


@dataclass(frozen=True)
class KernelOptions:
    """Everything static about a launch."""

    decode: bool
    group: int
    """Query heads of a KV head."""
    head_size: int
    page_size: int
    tile: int
    """Keys in a tile."""
    windowed: bool
    soft_cap: float | None
    dtype: str
    """Data type of products."""
    most_short: int = 1
    """Tokens of a row at most that are computed as a decode."""

    @property
    def tokens(self) -> int:
        """Most tokens of a unit."""
        return self.most_short if self.decode else tokens_of_unit(self.group)

    @property
    def rows(self) -> int:
        """Query rows, a power of two as all sizes of Triton's arrays."""
        return max(power_of_two(self.tokens * self.group), LEAST_ROWS)

    @property
    def columns(self) -> int:
        """Numbers of a head, with padding."""
        return max(power_of_two(self.head_size), LEAST_ROWS)

    @property
    def warps(self) -> int:
        """Warps of a program. Four keep a row of scores to one warp each; a wide accumulator needs more registers."""
        return 8 if not self.decode and self.columns > 128 else 4


def tokens_of_unit(group: int) -> int:
    """Tokens of a unit of a prompt."""
    return max(PREFILL_ROWS // group, 1)


def choose_tile(head_size: int, kv_dtype: str) -> int:
    """Keys of a tile: as many as leave room in the shared memory of an L4 for two tiles that are being copied."""
    return 64 if head_size <= 128 and kv_dtype in HALF_TYPES else 32


def power_of_two(size: int) -> int:
    """The least one that is not smaller."""
    return 1 << (size - 1).bit_length()
