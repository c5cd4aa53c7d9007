"""The resolved configuration: model, devices, types and limits, decided before anything is loaded."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, Self

import jax
from jax.sharding import Mesh

from jaxllm.config import EngineConfig, ModelOptions
from jaxllm.config.engine_info import KernelChoice, Operation
from jaxllm.errors import ConfigError
from jaxllm.executor.compile.buckets import GROWTH, GROWTH_WITHOUT_PADDING
from jaxllm.executor.devices import data_shards, devices_of_all, local_devices, split_over, tensor_parallel_size
from jaxllm.executor.kernels.operation import Workload
from jaxllm.executor.kernels.select import select_kernels
from jaxllm.executor.kv_type import choose_kv_cache
from jaxllm.executor.memory.memory import CacheShape
from jaxllm.executor.model_files import model_folder
from jaxllm.executor.step_size import usual_step_sizes
from jaxllm.kv.groups import CacheGroups
from jaxllm.models.cache_plan import CachePlan
from jaxllm.models.checkpoint.model_config import read_config
from jaxllm.models.config import ModelConfig
from jaxllm.models.errors import ModelError
from jaxllm.models.families.registry import lookup
from jaxllm.models.kv_shape import CacheLayout
from jaxllm.models.kv_type import KVCacheType
from jaxllm.models.options import ForwardOptions
from jaxllm.models.sharding import data_parallel, model_parallel, padded_vocab
from jaxllm.models.stage import Stage
from jaxllm.pallas_kernels.linear import can_pack

logger = logging.getLogger(__name__)

PAGE_SIZES = {"tpu": 64}
"""With one KV head on a device, starting a copy for every 16 tokens takes a decode on a TPU half of its bandwidth."""
OTHER_PAGE_SIZE = 16


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

    def backend(self, operation: Operation) -> str:
        """Name of the implementation of an operation."""
        return self.kernels[operation].name

    def with_kernel(self, operation: Operation, name: str, problem: str | None = None) -> Self:
        """The same with another implementation of an operation; `problem` says why it is not the fastest."""
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
            attention=self.backend("attention"),
            stack=("scan" if self.platform == "tpu" or is_native else "loop") if stack == "auto" else stack,
            max_model_len=self.max_model_len,
            mesh=self.mesh,
            native_matmul=is_native,
            attention_checks=self.attention_checks,
            moe_backend=self.backend("moe"),
            linear_backend=self.backend("linear"),
            expert_parallel=self.config.parallel.enable_expert_parallel,
            # A request's page tables are the same in all stages.
            cache_groups=not (self.config.cache.disable_hybrid_kv_cache_manager or self.stages or self.stage),
            kv_cache=self.kv_cache,
            stage=self.stage,
        )

    @property
    def by_stage(self) -> "tuple[ResolvedConfig, ...]":
        """The configuration of each stage, or this one where there are none."""
        parts = tuple(replace(self, stages=(), stage=stage, mesh=mesh) for stage, mesh in self.stages)
        return parts or (self,)

    @property
    def _takes_latent_attention(self) -> bool:
        """Whether this is a CPU whose kernels are wanted, and attention is one that has none."""
        is_free = self.config.compile.attention_backend == "auto"
        return is_free and self.platform == "cpu" and self.model.latent is not None

    @property
    def cache_plan(self) -> CachePlan:
        """Page tables of a request, and where layers lie in a page."""
        layout = CacheLayout.of(self.model, self.forward, self.dtype)
        return layout.plan(self.own_model.within(self.max_model_len), by_window=self.forward.cache_groups)

    @property
    def own_model(self) -> ModelConfig:
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
    def cache(self) -> CacheShape:
        """Shape of the KV cache but for its number of pages."""
        return CacheShape.of(
            self.model,
            num_layers=self.cache_plan.depth,
            page_size=self.page_size,
            dtype=self.kv_dtype,
            implementation=self.forward.attention,
            num_devices=self.num_devices,
            platform=self.platform,
            dynamic_scales=self.kv_cache is not None and self.kv_cache.is_dynamic,
        )

    @property
    def kv_dtype(self) -> str:
        """Array type of the KV cache (NumPy's name)."""
        return self.dtype if self.kv_cache is None else self.kv_cache.dtype


def resolve_config(
    config: EngineConfig,
    absent_devices: Sequence[jax.Device] | None = None,
    *,
    runner: Literal["generate", "pooling"] = "generate",
    processes: int = 1,
) -> ResolvedConfig:
    """Find the model and settle what the options leave open, for an engine that generates or one that pools.

    `absent_devices` are those of a topology that is not there (`jax.experimental.topologies`): the result serves to
    compile for them. `processes` of `jax.distributed` make the engine, with all their devices.

    Raises:
        ConfigError: the model cannot be found or read, or an option does not suit it or the devices.
    """
    if absent_devices is not None:
        # The compiler for TPUs that are not there crashes now and then when two threads use it (libtpu 0.0.42).
        config = replace(config, compile=replace(config.compile, compile_workers=1))
    count, shards = tensor_parallel_size(config.parallel) or 1, data_shards(config.parallel)
    stages = config.parallel.pipeline_parallel_size
    try:
        folder = model_folder(config.model, weights=True)
        model = _quantized(read_config(folder, config.model.hf_overrides), config.model.quantization)
        if runner == "generate":
            _check_generates(config.model.runner, model)
    except ModelError as error:
        raise ConfigError(str(error)) from error
    if shards > 1 and processes > 1:
        raise ConfigError(f"mesh: data={shards}: data shards are devices of one host so far; leave data out")
    devices = _devices(config, stages * shards * count, processes) if absent_devices is None else absent_devices
    platform = devices[0].platform
    page_size = config.cache.block_size or PAGE_SIZES.get(platform, OTHER_PAGE_SIZE)
    dtype = _choose_dtype(config.model.dtype, model, platform)
    kv_cache = None
    if runner == "generate":
        kv_cache = choose_kv_cache(config, folder, model, dtype=dtype, platform=platform)
    _check_chunks(model, page_size)
    if config.model.enable_prompt_embeds:
        _check_embeddings(model, runner, stages, processes)
    step = usual_step_sizes(platform, runner)[0].chosen(config.scheduler)
    resolved = ResolvedConfig(
        config=config,
        folder=folder,
        model=model,
        platform=platform,
        kernels=select_kernels(config.compile, Workload(devices[0], model, page_size, kv_cache or KVCacheType(dtype))),
        device_kind=devices[0].device_kind,
        mesh=split_over(
            model,
            devices,
            count,
            absent=absent_devices is not None,
            expert_parallel=config.parallel.enable_expert_parallel,
            shards=shards,
        ),
        dtype=dtype,
        max_model_len=_choose_length(config.model, model),
        max_num_seqs=step.requests,
        max_num_batched_tokens=step.tokens,
        page_size=page_size,
        kv_cache=kv_cache,
        attention_checks=config.compile.attention_checks,
        processors=_load_processors(config, runner, stages, processes),
    )
    if stages == 1:
        return resolved
    # Most engines have one: starts are faster without the import.
    from jaxllm.executor.pipeline.stages import assign_pipeline_stages

    return assign_pipeline_stages(resolved, devices, runner=runner, processes=processes)


def _quantized(model: ModelConfig, method: str | None) -> ModelConfig:
    """The model as it is to be rounded while it is read, if so. A method may also be that of its checkpoint."""
    if method is None or method == model.weight_method:
        return model
    from jaxllm.models.quantization.online import METHODS, quantized

    if method not in METHODS and model.weight_method is None:
        raise ModelError(
            f"quantization={method!r}: the checkpoint is not quantised; choose one of {', '.join(METHODS)} to round "
            "it while it is read, or leave quantization out"
        )
    if model.weight_method is not None:
        raise ModelError(
            f"quantization={method!r}: the checkpoint is quantised by {model.weight_method!r}; leave quantization out, "
            "and it is read so"
        )
    family = lookup(model.architecture)
    if family.make_encoder is not None:
        raise ModelError(f"quantization={method!r}: encoders such as {model.architecture} are not quantised here")
    return quantized(model, family.names_of(model), method)


def _load_processors(config: EngineConfig, runner: str, stages: int, processes: int) -> tuple[type, ...]:
    names = config.output.logits_processors
    if not names:
        return ()
    if runner == "pooling":
        raise ConfigError("logits_processors: pooling models sample no tokens; leave it out")
    if stages > 1 or processes > 1:
        where = f"pipeline_parallel_size={stages}" if stages > 1 else "engines on several hosts"
        raise ConfigError(f"logits_processors: not with {where}; use tensor_parallel_size on one host")
    # Most engines have none: starts are faster without the import.
    from jaxllm.processors.loading import load_classes

    return load_classes(names)


def _devices(config: EngineConfig, count: int, processes: int) -> Sequence[jax.Device]:
    return local_devices(config, count) if processes == 1 else devices_of_all(config, count, processes)


def _check_generates(asked: str, model: ModelConfig) -> None:
    architecture = model.architecture
    if asked == "pooling":
        raise ModelError(
            "runner='pooling': this is for models that generate; a pooling model needs no such preparation"
        )
    made_for = lookup(architecture).use
    if made_for != "generate":
        raise ModelError(
            f"{architecture} is not a generative model, it is made to {made_for}: omit runner, or pass --runner pooling"
        )
    if not model.is_causal:
        raise ModelError(
            f"this {architecture} is not a generative model, its tokens attend to later ones: omit runner, or pass "
            f"--runner pooling"
        )


def _check_chunks(model: ModelConfig, page_size: int) -> None:
    chunk = next((layer.attention.chunk for layer in model.layers if layer.attention.chunk % page_size), None)
    if chunk is not None:
        raise ConfigError(
            f"block_size={page_size}: attention within chunks of {chunk} tokens needs pages that divide them; give a "
            f"divisor of {chunk}, or leave block_size out"
        )


def _check_embeddings(model: ModelConfig, runner: str, stages: int, processes: int) -> None:
    embedding, problem = model.embedding, None
    if runner == "pooling":
        problem = "a model that pools takes none"
    elif stages > 1 or processes > 1:
        where = f"pipeline_parallel_size={stages}" if stages > 1 else "engines on several hosts"
        problem = f"not with {where}; use tensor_parallel_size on one host"
    elif embedding.each_layer is not None:
        problem = f"each layer of {model.architecture} looks tokens up by their ids"
    elif model.embedding_size != model.hidden_size:
        problem = f"embeddings of {model.architecture} are projected from {model.embedding_size} to {model.hidden_size}"
    if problem is not None:
        raise ConfigError(f"enable_prompt_embeds: {problem}")


def _choose_dtype(asked: str, model: ModelConfig, platform: str) -> str:
    checkpoint = model.dtype
    if platform == "tpu" and asked == "float16":
        raise ConfigError("dtype='float16': not supported on TPUs; use bfloat16, or leave dtype out")
    if asked != "auto":
        return asked
    if platform == "tpu" and checkpoint == "float16":
        logger.warning("dtype auto: bfloat16 in place of the checkpoint's float16, in which TPUs do not compute")
        return "bfloat16"
    # What recurrent layers compute is XLA's on CPUs, which in bfloat16 takes several times as long as in float32.
    if platform == "cpu" and (checkpoint == "float16" or (checkpoint == "bfloat16" and model.recurrences)):
        what = "recurrent layers" if model.recurrences else "CPUs"
        logger.info("dtype auto: float32, because %s are slow in the checkpoint's %s", what, checkpoint)
        return "float32"
    return checkpoint


def _choose_length(options: ModelOptions, model: ModelConfig) -> int:
    asked, longest = options.max_model_len, model.context_length
    windows = [window for window in model.windows if window]
    if options.disable_sliding_window and windows:
        longest = min(longest, *windows)
    # Dynamic rope scaling follows the length one asks for.
    is_dynamic = model.rope is not None and model.rope.kind == "dynamic"
    if asked is not None and asked > longest and not is_dynamic:
        raise ConfigError(
            f"max_model_len={asked}: the model has positions for {longest} tokens only"
            + (" (disable_sliding_window)" if longest < model.context_length else "")
        )
    return asked or longest
