"""From a plan to a runner that is ready: weights, memory, executables."""

import logging
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxllm.errors import CapacityError, ConfigError
from jaxllm.models.causal_lm import load_model
from jaxllm.models.errors import ModelError
from jaxllm.progress import Progress, silent
from jaxllm.runner.compilations import CompilationWatch
from jaxllm.runner.executables import Executables, use_compilation_cache
from jaxllm.runner.memory import cpu_free_bytes, device_free_bytes, plan_pages
from jaxllm.runner.plan import Plan
from jaxllm.runner.runner import Runner
from jaxllm.runner.sampling_table import SamplingTable
from jaxllm.runner.spec import make_spec

logger = logging.getLogger(__name__)

PROVISIONAL_PAGES = 64
"""Pages of the executable that is compiled only to learn how much memory a step needs beside the cache."""


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
        sampling=SamplingTable(plan.config.scheduler.max_num_seqs, plan.vocab_size, plan.config.model.seed),
        watch=CompilationWatch(strict=plan.config.compile.strict_compilation),
    )
    runner.warm_up()
    return runner


def _count_pages(plan: Plan, free_bytes: int) -> int:
    return plan_pages(
        plan.cache,
        plan.config.cache,
        max_model_len=plan.max_model_len,
        max_num_seqs=plan.config.scheduler.max_num_seqs,
        free_bytes=free_bytes,
        memories=1 if plan.platform == "cpu" else plan.num_devices,
    )


def _left_on_device(plan: Plan) -> int:
    """Bytes for the KV cache once the weights are on the device: the compiler says what a step needs beside them."""
    spec, buckets = make_spec(plan, PROVISIONAL_PAGES)
    memory = Executables(spec, plan.config.compile).lower(buckets.largest).compile().memory_analysis()
    if memory is None:
        raise CapacityError("this backend does not tell how much memory a step needs; set kv_cache_memory_bytes")
    state = sum(map(_bytes_on_device, jax.tree.leaves(spec.state))) - _bytes_on_device(spec.state.kv_cache)
    beside: Any = memory.temp_size_in_bytes + memory.generated_code_size_in_bytes + state
    devices = jax.local_devices()[:1] if plan.mesh is None else list(plan.mesh.devices.flat)
    return device_free_bytes(devices, plan.config.cache.gpu_memory_utilization, int(beside))


def _bytes_on_device(array: Any) -> int:
    """Bytes that each device holds of an array given as a shape."""
    shape = array.shape if array.sharding is None else array.sharding.shard_shape(array.shape)
    return math.prod(shape) * np.dtype(array.dtype).itemsize
