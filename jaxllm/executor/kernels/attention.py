"""Which implementation of paged attention an engine takes."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from jaxllm.errors import ConfigError
from jaxllm.models.config import ModelConfig
from jaxllm.models.kv_shape import latent_sizes
from jaxllm.models.kv_type import KVCacheType
from jaxllm.pallas_kernels.paged_attention.cpu.attention import CACHE_BYTES, MULTIPLE

if TYPE_CHECKING:
    from jaxllm.pallas_kernels.latent_attention import LatentSizes


@dataclass(frozen=True)
class AttentionShape:
    """What the choice depends on, beside the device."""

    group: int
    """Query heads per KV head."""
    head_size: int
    page_size: int
    dtype: str
    """Of the KV cache."""
    latent: "LatentSizes | None" = None
    """What latent attention keeps of a token, in place of heads."""
    dynamic_scales: bool = False
    """Whether each token and head has a scale of its own in the cache."""

    @classmethod
    def all_of(cls, model: ModelConfig, page_size: int, kind: KVCacheType) -> list[Self]:
        """Those of a model, one for each kind of heads."""
        rest = page_size, kind.dtype, latent_sizes(model), kind.is_dynamic
        return [cls(model.num_heads // heads, size, *rest) for heads, size in model.kv_heads]


def choose_attention(asked: str, device: Any, *shapes: AttentionShape) -> str:
    """The implementation (see `backend.BACKENDS`) for a device: the one asked for, or the fastest for 'auto'.

    It is one for all `shapes`. Raises `ConfigError` where the one asked for is of another platform or cannot.
    """
    platform = device.platform
    needed = {"triton": "gpu"}.get(asked, asked)
    if needed in ("tpu", "gpu", "cpu") and needed != platform:
        raise ConfigError(f"attention_backend={asked!r} needs a {needed.upper()}; this is a {platform.upper()}")
    problem = None
    if shapes[0].dynamic_scales:
        _check_dynamic(platform, shapes[0])
    if shapes[0].latent is not None:
        problem = _refused_by_latent(asked if asked != "auto" else platform, shapes[0])
        if asked != "auto" and problem is not None:
            raise ConfigError(f"attention_backend={asked!r} {problem}; leave it out, or choose 'xla'")
    elif platform == "cpu":
        problem = next(filter(None, map(_refused_by_cpu, shapes)), None)
    elif platform == "gpu":
        return _choose_on_gpu(asked, device, shapes)
    if asked == platform and problem is not None:
        raise ConfigError(f"attention_backend={asked!r} {problem}; leave it out, or choose 'xla'")
    if asked != "auto":
        return asked
    return platform if platform in ("tpu", "cpu") and problem is None else "xla"


def _choose_on_gpu(asked: str, device: Any, shapes: tuple[AttentionShape, ...]) -> str:
    """The kernel for Hopper, that for all GPUs since Ampere, or XLA's."""
    for name, refused in {"gpu": _refused_by_gpu, "triton": _refused_by_triton}.items():
        if asked not in ("auto", name):
            continue
        problem = next(filter(None, (refused(device, shape) for shape in shapes)), None)
        if problem is None:
            # In float32 the kernel is right, and XLA's products are likely faster.
            if asked == "auto" and shapes[0].dtype == "float32":
                return "xla"
            return name
        if asked == name:
            raise ConfigError(f"attention_backend={asked!r} {problem}; leave it out, or choose 'xla'")
    return "xla" if asked == "auto" else asked


def _check_dynamic(platform: str, shape: AttentionShape) -> None:
    """Raise `ConfigError` where no attention takes scales by token and head."""
    if shape.latent is not None:
        raise ConfigError(
            "kv_cache_dtype='int8': a latent and its rotary part have no common scale; take 'fp8', or leave it out"
        )
    if platform == "tpu":
        # Rows of 128 lanes have no place for a scale: XLA's attention would pad them to twice their size.
        raise ConfigError(
            "kv_cache_dtype='int8': on TPUs the checkpoint must have scales of keys and values, and this one has none; "
            "take 'fp8'"
        )


def _refused_by_latent(name: str, shape: AttentionShape) -> str | None:
    # Few models have it: starts of others are faster without the imports.
    from jaxllm.pallas_kernels.latent_attention import LATENT_BACKENDS
    from jaxllm.pallas_kernels.latent_attention.cpu.attention import refusal as refused_by_cpu
    from jaxllm.pallas_kernels.latent_attention.tpu.sizes import refusal as refused_by_tpu

    if name not in LATENT_BACKENDS:
        return f"has no kernel of latent attention (there are: {', '.join(LATENT_BACKENDS)})"
    if name == "cpu" and shape.latent is not None:
        return refused_by_cpu(shape.latent, shape.page_size, shape.dtype)
    return refused_by_tpu(shape.page_size, shape.dtype) if name == "tpu" else None


def _refused_by_cpu(shape: AttentionShape) -> str | None:
    if shape.head_size % MULTIPLE == 0 and shape.page_size % MULTIPLE == 0 and shape.dtype in CACHE_BYTES:
        return None
    return (
        f"needs heads and pages that are multiples of {MULTIPLE} and a cache in {', '.join(CACHE_BYTES)}; "
        f"these are {shape.head_size} and {shape.page_size}, and {shape.dtype}"
    )


_BY_TOKEN = "has no scales by token and head, as kv_cache_dtype='int8' needs without those of a checkpoint"


def _refused_by_gpu(device: Any, shape: AttentionShape) -> str | None:
    if shape.dynamic_scales:
        return _BY_TOKEN
    # Only here: starts elsewhere are faster without the import.
    from jaxllm.pallas_kernels.paged_attention.gpu.options import is_hopper, refusal

    if not is_hopper(device):
        return f"needs a GPU of compute capability 9 (Hopper); this is a {device.device_kind}"
    problem = refusal(group=shape.group, head_size=shape.head_size, page_size=shape.page_size, kv_dtype=shape.dtype)
    return None if problem is None else f"does not take {problem}"


def _refused_by_triton(device: Any, shape: AttentionShape) -> str | None:
    if shape.dynamic_scales:
        return _BY_TOKEN
    from jaxllm.pallas_kernels.paged_attention.triton.options import problem_of, refusal

    problem = refusal(head_size=shape.head_size, kv_dtype=shape.dtype)
    return problem_of(device) if problem is None else f"does not take {problem}"
