"""Which implementation of paged attention an engine takes."""

from dataclasses import dataclass
from typing import Any, Self

from jaxllm.errors import ConfigError
from jaxllm.models.config import ModelConfig
from jaxllm.pallas_kernels.paged_attention.cpu.attention import CACHE_BYTES, MULTIPLE
from jaxllm.pallas_kernels.paged_attention.gpu.options import is_hopper, refusal


@dataclass(frozen=True)
class AttentionShape:
    """What the choice depends on, beside the device."""

    group: int
    """Query heads per KV head."""
    head_size: int
    page_size: int
    dtype: str
    """Of the KV cache."""

    @classmethod
    def of(cls, model: ModelConfig, page_size: int, dtype: str) -> Self:
        """That of a model."""
        return cls(model.num_heads // model.num_kv_heads, model.head_size, page_size, dtype)


def choose_attention(asked: str, device: Any, shape: AttentionShape) -> str:
    """The implementation (see `backend.BACKENDS`) for a device: the one asked for, or the fastest for 'auto'.

    Raises `ConfigError` where the one asked for is of another platform or cannot.
    """
    platform = device.platform
    if asked in ("tpu", "gpu", "cpu") and asked != platform:
        raise ConfigError(f"attention_backend={asked!r} needs a {asked.upper()}; this is a {platform.upper()}")
    problem = None
    if platform == "cpu":
        problem = _refused_by_cpu(shape)
    elif platform == "gpu":
        problem = _refused_by_gpu(device, shape)
    if asked == platform and problem is not None:
        raise ConfigError(f"attention_backend={asked!r} {problem}; leave it out, or choose 'xla'")
    if asked != "auto":
        return asked
    return platform if platform in ("tpu", "cpu", "gpu") and problem is None else "xla"


def _refused_by_cpu(shape: AttentionShape) -> str | None:
    if shape.head_size % MULTIPLE == 0 and shape.page_size % MULTIPLE == 0 and shape.dtype in CACHE_BYTES:
        return None
    return (
        f"needs heads and pages that are multiples of {MULTIPLE} and a cache in {', '.join(CACHE_BYTES)}; "
        f"these are {shape.head_size} and {shape.page_size}, and {shape.dtype}"
    )


def _refused_by_gpu(device: Any, shape: AttentionShape) -> str | None:
    if not is_hopper(device):
        return f"needs a GPU of compute capability 9 (Hopper); this is a {device.device_kind}"
    problem = refusal(group=shape.group, head_size=shape.head_size, page_size=shape.page_size, kv_dtype=shape.dtype)
    return None if problem is None else f"does not take {problem}"
