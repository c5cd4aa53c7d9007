"""Which implementation of paged or latent attention an engine takes."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from jaxllm.errors import ConfigError
from jaxllm.executor.kernels.operation import Kernel, OperationKernels, Workload
from jaxllm.models.attention_plan import AttentionPlan, BlockIndexPlan, GroupIndexPlan
from jaxllm.models.config import ModelConfig
from jaxllm.models.kv_shape import latent_kinds, latent_sizes
from jaxllm.pallas_kernels.paged_attention import get_backend
from jaxllm.pallas_kernels.paged_attention.cpu.attention import CACHE_BYTES, MULTIPLE

if TYPE_CHECKING:
    from jaxllm.pallas_kernels.latent_attention import LatentFeature, LatentSizes


@dataclass(frozen=True)
class AttentionShape:
    """One kind of heads, and what the cache holds of them."""

    group: int
    """Query heads per KV head."""
    head_size: int
    page_size: int
    dtype: str
    """Type of the KV cache."""
    latent: "LatentSizes | None" = None
    """What latent attention keeps of a token, in place of heads."""
    dynamic_scales: bool = False
    """Whether each token and head has a scale of its own in the cache."""
    spans: bool = False
    """Whether tokens may see later ones."""
    compressed: bool = False
    """Whether entries that stand for groups of tokens are seen in place of far keys."""
    index: int = 0
    """Keys of a block, where an index chooses the blocks that tokens see; 0: there is no such index."""
    latent_features: "frozenset[LatentFeature]" = frozenset()
    """What latent attention has that a kernel may lack."""
    latent_kinds: tuple[tuple[int, int, int], ...] = ()
    """Sizes of latents, of rotary parts and of index keys, which may differ from layer to layer."""
    groups: bool = False
    """Whether the index scores groups of tokens by the means of their keys."""


def attention_shapes(workload: Workload) -> tuple[AttentionShape, ...]:
    """The shapes of a model's layers, one for each kind of heads. One kernel serves all of them."""
    model, kind = workload.model, workload.kv_cache
    seen = workload.sees_spans, bool(model.compressed), _index_block(model), _latent_features(model)
    rest = (
        workload.page_size, kind.dtype, latent_sizes(model), kind.is_dynamic, *seen, latent_kinds(model),
        _has_groups(model),
    )  # fmt: skip
    return tuple(AttentionShape(heads // kv_heads, size, *rest) for heads, kv_heads, size in model.attention_heads)


def _index_block(model: ModelConfig) -> int:
    """See `AttentionShape.index`. All layers with an index have blocks of one size."""
    return max((index.block for index in _indexes(model)), default=0)


def _has_groups(model: ModelConfig) -> bool:
    return any(isinstance(index, GroupIndexPlan) for index in _indexes(model))


def _indexes(model: ModelConfig) -> Iterator[BlockIndexPlan | GroupIndexPlan]:
    plans = (layer.attention for layer in model.attention_layers)
    return (plan.index for plan in plans if isinstance(plan, AttentionPlan) and plan.index)


def _latent_features(model: ModelConfig) -> "frozenset[LatentFeature]":
    """What layers with latent attention need of a kernel."""
    plans = model.latents
    found: dict[LatentFeature, bool] = {
        "sinks": any(plan.sinks for plan in plans),
        "windows": any(plan.window for plan in plans),
        "latents of other layers": any(plan.source is not None for plan in plans),
        "latents of several sizes": len({plan.rank for plan in plans}) > 1,
        "an index of groups of keys": any(plan.index is not None and plan.index.pool > 1 for plan in plans),
    }
    return frozenset(name for name, is_there in found.items() if is_there)


def _check_dynamic(platform: str, shapes: tuple[AttentionShape, ...]) -> None:
    """Raise `ConfigError` where no attention takes scales by token and head."""
    if not shapes[0].dynamic_scales:
        return
    if shapes[0].latent is not None:
        raise ConfigError(
            "kv_cache_dtype='int8': not supported with latent attention, whose latent and rotary parts need "
            "different scales; use 'fp8', or omit it"
        )
    if platform == "tpu":
        # Rows of 128 lanes have no place for a scale: XLA's attention would pad them to twice their size.
        raise ConfigError(
            "kv_cache_dtype='int8': requires a checkpoint with key and value scales on TPUs, and this one has none; "
            "use 'fp8'"
        )


_NO_INDEX = "does not support attention to keys that an index chooses"


def _latent_refusal(name: str, shape: AttentionShape) -> str | None:
    # Few models have it: starts of others are faster without the imports.
    from jaxllm.pallas_kernels.latent_attention import LATENT_BACKENDS, LatentSizes, get_latent_backend
    from jaxllm.pallas_kernels.latent_attention.cpu.attention import refusal as refused_by_cpu
    from jaxllm.pallas_kernels.latent_attention.tpu.sizes import refusal as refused_by_tpu

    if shape.compressed:
        # To the kernel for CPUs a key is a latent.
        return refused_by_cpu(LatentSizes(shape.head_size, 0), MULTIPLE, shape.dtype)
    if name not in LATENT_BACKENDS:
        return f"does not support latent attention (supported: {', '.join(LATENT_BACKENDS)})"
    assert shape.latent is not None
    if shape.latent.index and get_latent_backend(name).call_indexed is None:
        return _NO_INDEX
    kinds = [LatentSizes(*each) for each in shape.latent_kinds] or [shape.latent]
    lacks = sorted(shape.latent_features - get_latent_backend(name).supports)
    if lacks:
        return f"does not support {' and '.join(lacks)} in latent attention"
    if name == "cpu":
        problems = (refused_by_cpu(kind, shape.page_size, shape.dtype) for kind in kinds)
        return next(filter(None, problems), None)
    return refused_by_tpu(shape.page_size, shape.dtype, shape.latent, kinds)


def _cpu_refusal(_: Any, shape: AttentionShape) -> str | None:
    if shape.groups:
        return "does not support an index of groups of keys"
    if shape.index % MULTIPLE:
        return f"needs an index of blocks of keys that are multiples of {MULTIPLE}, not {shape.index}"
    if shape.head_size % MULTIPLE == 0 and shape.page_size % MULTIPLE == 0 and shape.dtype in CACHE_BYTES:
        return None
    return (
        f"needs head and page sizes that are multiples of {MULTIPLE} and a cache in {', '.join(CACHE_BYTES)}, not "
        f"{shape.head_size}, {shape.page_size} and {shape.dtype}"
    )


_BY_TOKEN = (
    "does not support scales per token and head, which kv_cache_dtype='int8' needs if the checkpoint has no scales"
)


def _gpu_refusal(device: Any, shape: AttentionShape) -> str | None:
    if shape.dynamic_scales:
        return _BY_TOKEN
    if shape.spans:
        return "does not support tokens of images that see later ones"
    # Only here: starts elsewhere are faster without the import.
    from jaxllm.pallas_kernels.paged_attention.gpu.options import is_hopper, refusal

    if not is_hopper(device):
        return f"needs a GPU of compute capability 9 (Hopper); this is a {device.device_kind}"
    problem = refusal(group=shape.group, head_size=shape.head_size, page_size=shape.page_size, kv_dtype=shape.dtype)
    return None if problem is None else f"does not support {problem}"


def _triton_refusal(device: Any, shape: AttentionShape) -> str | None:
    if shape.dynamic_scales:
        return _BY_TOKEN
    # Only on GPUs: starts elsewhere are faster without the import.
    from jaxllm.pallas_kernels.paged_attention.triton.options import problem_of, refusal

    problem = refusal(head_size=shape.head_size, kv_dtype=shape.dtype)
    return problem_of(device) if problem is None else f"does not support {problem}"


_Refusal = Callable[[Any, AttentionShape], str | None]


def _kernel(name: str, platform: str, refusal: _Refusal) -> Kernel[tuple[AttentionShape, ...]]:
    """A kernel that must serve every shape; `refusal` is why it does not serve one of paged attention."""

    def first_refusal(device: Any, shapes: tuple[AttentionShape, ...]) -> str | None:
        if shapes[0].compressed and name != "cpu":
            return "does not support keys that are values, nor entries that stand for groups of tokens"
        if shapes[0].latent is not None:
            return _latent_refusal(name, shapes[0])
        if shapes[0].index and get_backend(name).call_indexed is None:
            return _NO_INDEX
        return next(filter(None, (refusal(device, shape) for shape in shapes)), None)

    # In float32 kernels for GPUs are right, and XLA's products are likely faster.
    return Kernel(name, platform, first_refusal, lambda shapes: platform != "gpu" or shapes[0].dtype != "float32")


ATTENTION = OperationKernels(
    "attention",
    kernels=(
        _kernel("tpu", "tpu", lambda device, shape: None),
        _kernel("gpu", "gpu", _gpu_refusal),
        _kernel("triton", "gpu", _triton_refusal),
        _kernel("cpu", "cpu", _cpu_refusal),
    ),
    shape_of=attention_shapes,
    check=_check_dynamic,
)
