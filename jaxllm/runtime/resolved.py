"""The resolved configuration: model, devices, types and limits, decided before anything is loaded."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import jax
from jax.sharding import Mesh

from jaxllm.config import EngineConfig
from jaxllm.errors import ConfigError
from jaxllm.models.checkpoint.checkpoint import read_config, resolve
from jaxllm.models.config import ModelConfig
from jaxllm.models.errors import ModelError
from jaxllm.models.families.registry import lookup
from jaxllm.models.options import ForwardOptions
from jaxllm.models.sharding import model_parallel, padded_vocab
from jaxllm.pallas_kernels.linear import can_pack
from jaxllm.runtime.attention import AttentionShape, choose_attention
from jaxllm.runtime.devices import local_devices, split_over, tensor_parallel_size
from jaxllm.runtime.memory.memory import CacheShape
from jaxllm.runtime.programs.buckets import GROWTH, GROWTH_WITHOUT_PADDING

logger = logging.getLogger(__name__)

MAX_NUM_BATCHED_TOKENS = {"cpu": 512}
OTHER_MAX_NUM_BATCHED_TOKENS = 2048

PAGE_SIZES = {"tpu": 64}
"""With one KV head on a device, starting a copy for every 16 tokens takes a decode on a TPU half of its bandwidth."""
OTHER_PAGE_SIZE = 16


@dataclass(frozen=True)
class ResolvedConfig:
    """An engine's configuration with nothing left open."""

    config: EngineConfig
    folder: Path
    model: ModelConfig
    platform: str
    attention: str
    """Implementation of paged attention, see `choose_attention`."""
    device_kind: str
    mesh: Mesh | None
    """The devices; None is JAX's default device."""
    dtype: str
    max_model_len: int
    max_num_batched_tokens: int
    page_size: int
    """Tokens in one page of the KV cache."""
    attention_checks: bool = False
    """Whether the kernel for TPUs checks bounds and semaphores."""
    attention_problem: str | None = None
    """Why `auto` did not take the kernel of this platform, where that failed its self-test."""

    @property
    def forward(self) -> ForwardOptions:
        """Options of the forward pass."""
        stack = self.config.compile.layer_stack
        # What XLA splits over devices must be XLA's.
        is_native = self.attention == "cpu" and self.mesh is None
        is_native &= all(can_pack(size, self.dtype) for size in (self.model.hidden_size, self.model.intermediate_size))
        return ForwardOptions(
            platform=self.platform,
            attention=self.attention,
            stack=("scan" if self.platform == "tpu" or is_native else "loop") if stack == "auto" else stack,
            max_model_len=self.max_model_len,
            mesh=self.mesh,
            native_matmul=is_native,
            attention_checks=self.attention_checks,
        )

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
            page_size=self.page_size,
            dtype=self.dtype,
            implementation=self.forward.attention,
            num_devices=self.num_devices,
        )


def resolve_config(
    config: EngineConfig,
    absent_devices: Sequence[jax.Device] | None = None,
    *,
    runner: Literal["generate", "pooling"] = "generate",
) -> ResolvedConfig:
    """Find the model and settle what the options leave open, for an engine that generates or one that pools.

    `absent_devices` are those of a topology that is not there (`jax.experimental.topologies`): the result serves to
    compile for them.

    Raises:
        ConfigError: the model cannot be found or read, or an option does not suit it or the devices.
    """
    if absent_devices is not None:
        # The compiler for TPUs that are not there crashes now and then when two threads use it (libtpu 0.0.42).
        config = replace(config, compile=replace(config.compile, compile_workers=1))
    count = tensor_parallel_size(config.parallel) or 1
    try:
        folder = resolve(config.model.model, config.model.revision, config.model.download_dir)
        model = read_config(folder)
        if runner == "generate":
            _check_generates(config.model.runner, model.architecture)
    except ModelError as error:
        raise ConfigError(str(error)) from error
    devices = local_devices(config, count) if absent_devices is None else absent_devices
    platform = devices[0].platform
    page_size = config.cache.block_size or PAGE_SIZES.get(platform, OTHER_PAGE_SIZE)
    dtype = _choose_dtype(config.model.dtype, model.dtype, platform)
    return ResolvedConfig(
        config=config,
        folder=folder,
        model=model,
        platform=platform,
        attention=choose_attention(
            config.compile.attention_backend, devices[0], AttentionShape.of(model, page_size, dtype)
        ),
        device_kind=devices[0].device_kind,
        mesh=split_over(model, devices, count, absent=absent_devices is not None),
        dtype=dtype,
        max_model_len=_choose_length(config.model.max_model_len, model),
        max_num_batched_tokens=config.scheduler.max_num_batched_tokens
        or MAX_NUM_BATCHED_TOKENS.get(platform, OTHER_MAX_NUM_BATCHED_TOKENS),
        page_size=page_size,
        attention_checks=config.compile.attention_checks,
    )


def _check_generates(asked: str, architecture: str) -> None:
    if asked == "pooling":
        raise ModelError(
            "runner='pooling': this is for models that generate; a pooling model needs no such preparation"
        )
    made_for = lookup(architecture).use
    if made_for != "generate":
        raise ModelError(
            f"{architecture} generates no text, it is made to {made_for}: leave runner out, or give --runner pooling"
        )


def _choose_dtype(asked: str, checkpoint: str, platform: str) -> str:
    if platform == "tpu" and asked == "float16":
        raise ConfigError("dtype='float16': TPUs do not compute in it; take bfloat16, or leave dtype out")
    if asked != "auto":
        return asked
    if platform == "tpu" and checkpoint == "float16":
        logger.warning("dtype auto: bfloat16 in place of the checkpoint's float16, in which TPUs do not compute")
        return "bfloat16"
    if platform == "cpu" and checkpoint != "float32":
        logger.info("dtype auto: float32, because CPUs are slow in the checkpoint's %s", checkpoint)
        return "float32"
    return checkpoint


def _choose_length(asked: int | None, model: ModelConfig) -> int:
    longest = model.context_length
    # Dynamic rope scaling follows the length one asks for.
    if asked is not None and asked > longest and model.rope.kind != "dynamic":
        raise ConfigError(f"max_model_len={asked}: the model has positions for {longest} tokens only")
    return asked or longest
