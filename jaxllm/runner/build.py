"""From options to a runner that is ready: platform, types, memory, weights, executables."""

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxllm.config import EngineConfig
from jaxllm.errors import CapacityError, ConfigError
from jaxllm.models.causal_lm import abstract_model, load_model
from jaxllm.models.checkpoint import read_config, resolve
from jaxllm.models.config import ModelConfig
from jaxllm.models.errors import ModelError
from jaxllm.models.options import ForwardOptions
from jaxllm.progress import Progress, silent
from jaxllm.runner.buckets import Buckets
from jaxllm.runner.compilations import CompilationWatch
from jaxllm.runner.executables import Executables, use_compilation_cache
from jaxllm.runner.memory import CacheShape, cpu_free_bytes, device_free_bytes, plan_pages
from jaxllm.runner.recipes import StepSpec
from jaxllm.runner.runner import Runner
from jaxllm.runner.sampling_rows import empty_state
from jaxllm.runner.sampling_table import SamplingTable
from jaxllm.runner.step import DeviceState, StepShape

logger = logging.getLogger(__name__)

SAMPLE_ROWS = {"cpu": 16}
"""Rows whose logits are computed at a time. On CPU the time of a matrix product grows with the rows from 16 on."""
OTHER_SAMPLE_ROWS = 128
MAX_NUM_BATCHED_TOKENS = {"cpu": 512}
OTHER_MAX_NUM_BATCHED_TOKENS = 2048
PROVISIONAL_PAGES = 64
"""Pages of the executable that is compiled only to learn how much memory a step needs beside the cache."""


@dataclass(frozen=True)
class Plan:
    """Everything decided before anything is loaded."""

    config: EngineConfig
    folder: Path
    model: ModelConfig
    platform: str
    dtype: str
    max_model_len: int
    max_num_batched_tokens: int

    @property
    def forward(self) -> ForwardOptions:
        """Options of the forward pass."""
        stack, attention = self.config.compile.layer_stack, self.config.compile.attention_backend
        return ForwardOptions(
            platform=self.platform,
            attention=("cpu" if self.platform == "cpu" else "xla") if attention == "auto" else attention,
            stack=("scan" if self.platform == "tpu" else "loop") if stack == "auto" else stack,
            max_model_len=self.max_model_len,
        )

    @property
    def cache(self) -> CacheShape:
        """Shape of the KV cache but for its number of pages."""
        return CacheShape.of(self.model, self.config.cache.block_size, self.dtype)


def make_plan(config: EngineConfig) -> Plan:
    """Find the model and settle what the options leave open.

    Raises:
        ConfigError: the model cannot be found or read, or an option does not suit it.
    """
    try:
        folder = resolve(config.model.model, config.model.revision, config.model.download_dir)
        model = read_config(folder)
    except ModelError as error:
        raise ConfigError(str(error)) from error
    platform = jax.default_backend()
    return Plan(
        config=config,
        folder=folder,
        model=model,
        platform=platform,
        dtype=_choose_dtype(config.model.dtype, model.dtype, platform),
        max_model_len=_choose_length(config.model.max_model_len, model),
        max_num_batched_tokens=config.scheduler.max_num_batched_tokens
        or MAX_NUM_BATCHED_TOKENS.get(platform, OTHER_MAX_NUM_BATCHED_TOKENS),
    )


def _choose_dtype(asked: str, checkpoint: str, platform: str) -> str:
    if asked != "auto":
        return asked
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


def build_runner(plan: Plan, progress: Progress = silent) -> tuple[Runner, int]:
    """Load the weights, compile the steps at the same time, and allocate the cache.

    Returns the runner and the number of KV pages, the null page included.

    Raises:
        ConfigError: the checkpoint is broken or does not match its configuration.
        CapacityError: weights and a KV cache for one longest request do not fit.
    """
    use_compilation_cache(plan.config.compile.compilation_cache_dir)
    try:
        if plan.platform == "cpu":
            # Nothing that a step needs is taken from the cache's share, so the size can be known first.
            pages = _count_pages(plan, cpu_free_bytes(plan.config.cache.gpu_memory_utilization))
            return _build(plan, pages, None, progress), pages
        model = _load(plan, progress)
        pages = _count_pages(plan, _left_on_device(plan))
        return _build(plan, pages, model, progress), pages
    except ModelError as error:
        raise ConfigError(str(error)) from error


def _load(plan: Plan, progress: Progress) -> tuple[jax.Array, ...]:
    """The parameters' leaves, on the device."""

    def report(done: int, total: int) -> None:
        progress("Loading weights", done, total)

    options = plan.config.model
    model = load_model(
        plan.folder, plan.model, plan.forward, jnp.dtype(plan.dtype), options.load_format, options.seed, report
    )
    return tuple(jax.tree.leaves(nnx.split(model)[1]))


def _build(plan: Plan, pages: int, parameters: tuple[jax.Array, ...] | None, progress: Progress) -> Runner:
    spec, buckets = make_spec(plan, pages)
    executables = Executables(spec, plan.config.compile)
    at_start = () if plan.config.compile.enforce_eager else buckets.all
    with executables.compiling(at_start, progress):
        loaded = _load(plan, progress) if parameters is None else parameters
    runner = Runner(
        parameters=loaded,
        state=executables.empty_state(),
        executables=executables,
        buckets=buckets,
        shape=spec.shape,
        sampling=SamplingTable(plan.config.scheduler.max_num_seqs, plan.model.vocab_size, plan.config.model.seed),
        watch=CompilationWatch(strict=plan.config.compile.strict_compilation),
    )
    runner.warm_up()
    return runner


def make_spec(plan: Plan, pages: int) -> tuple[StepSpec, Buckets]:
    """What the executables are compiled from, and their shapes."""
    scheduler = plan.config.scheduler
    graph, parameters = nnx.split(abstract_model(plan.model, plan.forward, jnp.dtype(plan.dtype)))
    buckets = Buckets(plan.max_num_batched_tokens, scheduler.max_num_seqs)
    shape = StepShape(
        table_width=-(-plan.max_model_len // plan.config.cache.block_size),
        max_logprobs=min(plan.config.output.max_logprobs, plan.model.vocab_size),
        sample_rows=SAMPLE_ROWS.get(plan.platform, OTHER_SAMPLE_ROWS),
    )
    state = jax.eval_shape(lambda: _empty_state(plan, pages, buckets))
    return StepSpec(graph, parameters, state, shape), buckets


def _empty_state(plan: Plan, pages: int, buckets: Buckets) -> DeviceState:
    slots = plan.config.scheduler.max_num_seqs
    return DeviceState(
        kv_cache=jnp.zeros(plan.cache.array(pages), plan.dtype),
        sampling=empty_state(slots, plan.model.vocab_size),
        last_tokens=jnp.zeros(slots, jnp.int32),
        hidden=jnp.zeros((buckets.largest.tokens, plan.model.hidden_size), plan.dtype),
    )


def _count_pages(plan: Plan, free_bytes: int) -> int:
    return plan_pages(
        plan.cache,
        plan.config.cache,
        max_model_len=plan.max_model_len,
        max_num_seqs=plan.config.scheduler.max_num_seqs,
        free_bytes=free_bytes,
    )


def _left_on_device(plan: Plan) -> int:
    """Bytes for the KV cache once the weights are on the device: the compiler says what a step needs beside them."""
    spec, buckets = make_spec(plan, PROVISIONAL_PAGES)
    memory = Executables(spec, plan.config.compile).lower(buckets.largest).compile().memory_analysis()
    if memory is None:
        raise CapacityError("this backend does not tell how much memory a step needs; set kv_cache_memory_bytes")
    state = sum(leaf.size * np.dtype(leaf.dtype).itemsize for leaf in jax.tree.leaves(spec.state))
    state -= spec.state.kv_cache.size * np.dtype(spec.state.kv_cache.dtype).itemsize
    beside: Any = memory.temp_size_in_bytes + memory.generated_code_size_in_bytes + state
    return device_free_bytes(jax.local_devices()[0], plan.config.cache.gpu_memory_utilization, int(beside))
