"""The resolved configuration: model, devices, types and limits, decided before anything is loaded."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Self

from jax.sharding import Mesh

from jaxllm.config import EngineConfig
from jaxllm.config.engine_info import KernelChoice, Operation
from jaxllm.executor.compile.buckets import GROWTH, GROWTH_WITHOUT_PADDING
from jaxllm.executor.memory.memory import CacheShape
from jaxllm.kv.groups import CacheGroups
from jaxllm.models.cache_plan import CachePlan
from jaxllm.models.config import ModelConfig
from jaxllm.models.kv_shape import CacheLayout, latent_kinds
from jaxllm.models.kv_type import KVCacheType
from jaxllm.models.options import AdapterShape, ForwardOptions
from jaxllm.models.sharding import data_parallel, model_parallel, padded_vocab
from jaxllm.models.stage import Stage
from jaxllm.pallas_kernels.cpu_common.processor import host_processor
from jaxllm.pallas_kernels.linear import can_pack

if TYPE_CHECKING:
    from jaxllm.models.drafters.plan import DrafterPlan


@dataclass(frozen=True)
class ResolvedConfig:
    """An engine's configuration with nothing left open.

    Limits are those of each data shard.
    """

    config: EngineConfig
    folder: Path
    model: ModelConfig
    platform: str
    kernels: Mapping[Operation, KernelChoice]
    """The implementation of each operation."""
    device_kind: str
    mesh: Mesh | None
    """The devices; None is JAX's default device."""
    dtype: str
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    page_size: int
    """Tokens in one page of the KV cache."""
    kv_cache: KVCacheType | None = None
    """Type of the KV cache; None is `dtype`."""
    attention_checks: bool = False
    """Whether the kernel for TPUs checks bounds and semaphores."""
    num_snapshots: int = 0
    """Slots for states of recurrent layers that no request uses, but prefixes are found with."""
    stages: tuple[tuple[Stage, Mesh], ...] = ()
    """Layers that have devices of their own, and these; `mesh` is that of the first stage then."""
    stage: Stage | None = None
    """The layers that this is the configuration of; None: all."""
    processors: tuple[type, ...] = ()
    """Classes of the logits processors, in their order."""
    adapters: AdapterShape | None = None
    """Slots for adapters, if there are any."""
    drafter: "DrafterPlan | None" = None
    """What on the devices makes drafts, if anything does."""
    drafter_folder: Path | None = None
    """Folder of its weights, if they are not in the model's checkpoint."""

    media_rows: int = 0
    """Rows of images that the devices hold; 0 where requests may have no images."""

    sound_windows: int = 0
    """Windows of sound whose keys and values the devices hold; 0 where the model has no cross attention."""

    @property
    def pages_per_window(self) -> int:
        """Pages of the KV cache that a window of sound takes; 0 where the model has no cross attention."""
        sound = self.model.sound
        return 0 if sound is None or sound.token_id is not None else -(-sound.num_keys // self.page_size)

    @property
    def window_pages(self) -> int:
        """Pages that all windows take, in each data shard, after those that the scheduler hands out."""
        return self.sound_windows * self.pages_per_window

    @property
    def sees_images(self) -> bool:
        """Whether requests may have images."""
        return self.media_rows > 0

    @property
    def sees_spans(self) -> bool:
        """Whether tokens may see later ones of their span."""
        return self.sees_images and self.model.sees_spans

    @property
    def longest_span(self) -> int:
        """Tokens of a span at most: a step has room for one, and for a token of every other request."""
        return self.span_within(self.max_num_batched_tokens - self.max_num_seqs + 1)

    def span_within(self, longest: int) -> int:
        """Tokens of a span at most, where a step has room for `longest` of a request.

        Of a whole prompt each token sees all others, whatever the window: it must be within that.
        """
        tower = self.model.tower
        is_prompt = tower is not None and tower.spans == "prompt"
        return min([longest, *(window for window in self.model.windows if window and is_prompt)])

    def backend(self, operation: Operation) -> str:
        """Name of the implementation of an operation."""
        return self.kernels[operation].name

    def with_kernel(self, operation: Operation, name: str, problem: str | None = None) -> Self:
        """A copy with another implementation of an operation; `problem` says why it is not the fastest."""
        return replace(self, kernels={**self.kernels, operation: KernelChoice(name, problem)})

    @property
    def forward(self) -> ForwardOptions:
        """Options of the forward pass."""
        stack = self.config.compile.layer_stack
        # What XLA splits over devices must be XLA's.
        is_native = (self.backend("attention") == "cpu" or self._takes_latent_attention) and self.mesh is None
        is_native &= all(can_pack(size, self.dtype) for size in (self.model.hidden_size, *self.model.mlp_sizes()))
        return ForwardOptions(
            platform=self.platform,
            attention="cpu_pairs" if self._attends_pairs else self.backend("attention"),
            stack=("scan" if self.platform == "tpu" or is_native else "loop") if stack == "auto" else stack,
            max_model_len=self.max_model_len,
            mesh=self.mesh,
            native_matmul=is_native,
            multiplies_pairs=is_native and self._multiplies_pairs,
            attention_checks=self.attention_checks,
            moe_backend=self.backend("moe"),
            linear_backend=self.backend("linear"),
            mm_encoder_attn_backend=self.backend("mm_encoder_attn"),
            expert_parallel=self.config.parallel.enable_expert_parallel,
            # A request's page tables are the same in all stages.
            cache_groups=not (self.config.cache.disable_hybrid_kv_cache_manager or self.stages or self.stage),
            kv_cache=self.kv_cache,
            stage=self.stage,
            drafter=self.drafter,
            most_drafts=self.max_drafts,
            sees_images=self.sees_images,
        )

    @property
    def stage_configs(self) -> "tuple[ResolvedConfig, ...]":
        """The configuration of each stage, or this one where there are none."""
        parts = tuple(replace(self, stages=(), stage=stage, mesh=mesh) for stage, mesh in self.stages)
        return parts or (self,)

    @property
    def _multiplies_pairs(self) -> bool:
        """Whether bfloat16 is multiplied as it is, where native kernels are."""
        is_wanted = self.dtype == "bfloat16" and self.config.compile.bfloat16_products == "auto"
        return is_wanted and host_processor().multiplies_bfloat16

    @property
    def _attends_pairs(self) -> bool:
        """Whether the kernel of attention for CPUs is the one that multiplies a cache of bfloat16 as it is."""
        if self.backend("attention") != "cpu" or self.kv_dtype != "bfloat16" or not self._multiplies_pairs:
            return False
        # Keys of latent attention must be whole vectors of pairs, 32 numbers each.
        keys = [rank + rope for rank, rope, _ in latent_kinds(self.model)]
        return all(key % 32 == 0 for key in (*keys, *(plan.size for plan in self.model.compressed)))

    @property
    def _takes_latent_attention(self) -> bool:
        """Whether this is a CPU whose kernels are wanted, and attention is one that has none."""
        is_free = self.config.compile.attention_backend == "auto"
        has_none = self.model.latent is not None or bool(self.model.compressed)
        return is_free and self.platform == "cpu" and has_none

    @property
    def cache_plan(self) -> CachePlan:
        """Page tables of a request, and where layers lie in a page."""
        layout = CacheLayout.of(self.model, self.forward, self.dtype)
        return layout.plan(self.stage_model.within(self.max_model_len), by_window=self.forward.cache_groups)

    @property
    def stage_model(self) -> ModelConfig:
        """The model as far as it is in the stage."""
        return self.model if self.stage is None else self.stage.of(self.model)

    @property
    def num_state_slots(self) -> int:
        """Places for states of recurrent layers: one for each running request, and snapshots."""
        return self.max_num_seqs + self.num_snapshots

    @property
    def shares_prefixes(self) -> bool:
        """Whether requests can begin with what others have computed."""
        return self.config.cache.enable_prefix_caching and (self.num_snapshots > 0 or not self.cache_plan.states)

    @property
    def cache_groups(self) -> CacheGroups:
        """What of a request each page table must have."""
        plan = self.cache_plan
        margin = int(self.shares_prefixes)
        return CacheGroups(plan.windows, self.page_size, self.max_num_batched_tokens, bool(plan.states), margin)

    @property
    def matmul_precision(self) -> str | None:
        """JAX's precision of products, None for its default: with that, TPUs and GPUs would round float32 factors."""
        return "highest" if self.dtype == "float32" and self.platform != "cpu" else None

    @property
    def bucket_growth(self) -> int:
        """From one step shape to the next. What computes nothing for padding needs few."""
        return GROWTH_WITHOUT_PADDING if self.forward.native_matmul else GROWTH

    @property
    def num_devices(self) -> int:
        """Devices that share each matrix."""
        return model_parallel(self.mesh)

    @property
    def num_stages(self) -> int:
        """Stages of layers, each on devices of its own."""
        return len(self.stages) or 1

    @property
    def data_shards(self) -> int:
        """Parts of the batch, each with its own requests and KV pages on devices of its own."""
        return data_parallel(self.mesh)

    @property
    def max_logprobs(self) -> int:
        """Alternatives per token that a step returns."""
        asked = self.config.output.max_logprobs
        return self.model.vocab_size if asked == -1 else min(asked, self.model.vocab_size)

    @property
    def vocab_size(self) -> int:
        """Tokens in the arrays on the devices, which may be a few more than the model has."""
        return padded_vocab(self.model, self.num_devices)

    @property
    def max_drafts(self) -> int:
        """Most drafts that a request brings to a step."""
        drafting = self.config.speculation.drafting
        return 0 if drafting is None or self.stage is not None else drafting.num_tokens

    @property
    def cache(self) -> CacheShape:
        """Shape of the KV cache but for its number of pages."""
        own, drafter = self._cache_of(self.model, self.cache_plan.depth, self.forward.attention), self.drafter_cache
        return own if drafter is None else replace(own, other_bytes=drafter.page_bytes)

    def _cache_of(self, model: ModelConfig, num_layers: int, attention: str) -> CacheShape:
        return CacheShape.of(
            model,
            num_layers=num_layers,
            page_size=self.page_size,
            dtype=self.kv_dtype,
            implementation=attention,
            num_devices=self.num_devices,
            platform=self.platform,
            dynamic_scales=self.kv_cache is not None and self.kv_cache.is_dynamic,
        )

    @property
    def drafter_cache(self) -> CacheShape | None:
        """Shape of what the drafter keeps in pages of its own, which have the numbers of the model's."""
        model = None if self.drafter is None else self.drafter.cached_layers(self.model)
        if self.drafter is None or model is None:
            return None
        forward = self.drafter.forward(self.forward)
        layout = CacheLayout.of(model, forward, self.dtype)
        return self._cache_of(model, layout.plan(model, by_window=False).depth, forward.attention)

    @property
    def kv_dtype(self) -> str:
        """Array type of the KV cache (NumPy's name)."""
        return self.dtype if self.kv_cache is None else self.kv_cache.dtype
