"""Options of the forward pass beyond the checkpoint's own configuration."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from jax.sharding import Mesh

from jaxllm.models.kv_type import KVCacheType
from jaxllm.models.stage import Stage

if TYPE_CHECKING:
    from jaxllm.models.drafters.plan import DrafterPlan


@dataclass(frozen=True)
class AdapterShape:
    """Slots for adapters: how many, and the largest rank of one. Whole blocks, see `low_rank.whole_blocks`.

    With `has_vectors` they also have a factor and biases for each output.
    """

    num_slots: int
    rank: int
    dtype: str
    has_vectors: bool = False
    modules: tuple[tuple[str | int, ...], ...] | None = None
    """Paths of the linear layers that have slots, within a layer of the model; None: all have."""
    expert_rank: int = 0
    """The largest rank of an adapter of routed experts; 0: they have no slots."""
    num_expert_slots: int = 0
    """How many slots these have."""
    most_labels: int = 0
    """The most labels of an adapter's classifier, where it may have more than the model's."""


@dataclass(frozen=True)
class ForwardOptions:
    """How a model is built and run.

    `platform` is JAX's name of the backend, `attention` an implementation of paged attention, `stack` how the layers
    run, and `max_model_len` the longest request in tokens (dynamic rope scaling depends on it). `mesh` holds the
    devices (see `jaxllm.models.sharding`); None is JAX's default device. With `one_layer_cache` the KV cache has one
    layer, which all layers of the model write and read in turn: enough where nothing outlives the step; its pages then
    have `page_size` tokens. With `native_matmul` weights are packed for the kernel of
    `pallas_kernels.linear.cpu`, where it takes them; with `multiplies_pairs` that multiplies bfloat16 as it is, which
    the processor must be able to do. `attention_checks` is for debugging, see
    `AttentionOptions.checks`. `moe_backend` is 'tpu' where the kernel for TPUs multiplies with experts' matrices,
    else 'xla', and `linear_backend` likewise with quantized matrices; `mm_encoder_attn_backend` attends in towers.
    With `expert_parallel` each device has some of the experts, otherwise a part of each.
    With `cache_groups` layers with different windows have page tables of their own, see `jaxllm.models.cache_plan`.
    `kv_cache` is the type of the KV cache; None is that of the activations. `stage` says which layers there are, where
    these are not all. With `adapters` every linear layer of the model's layers has slots for adapters.
    `drafter` is the plan of what guesses at further tokens alongside the model. Decodes have up to `most_drafts` drafts
    after them. With `sees_images` the model has its tower, which turns images into rows in place of tokens.
    """

    platform: str = "cpu"
    attention: str = "xla"
    stack: Literal["scan", "loop"] = "loop"
    max_model_len: int = 2048
    mesh: Mesh | None = None
    one_layer_cache: bool = False
    page_size: int = 16
    native_matmul: bool = False
    multiplies_pairs: bool = False
    attention_checks: bool = False
    moe_backend: str = "xla"
    linear_backend: str = "xla"
    mm_encoder_attn_backend: str = "xla"
    expert_parallel: bool = False
    cache_groups: bool = False
    kv_cache: KVCacheType | None = None
    stage: Stage | None = None
    adapters: AdapterShape | None = None
    drafter: "DrafterPlan | None" = None
    most_drafts: int = 0
    sees_images: bool = False
