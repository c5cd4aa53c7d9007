"""From a configuration to a runner that is ready: weights and executables."""

import dataclasses
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxllm.config.progress import Progress, silent
from jaxllm.errors import ConfigError
from jaxllm.executor.compile.buckets import Bucket, Buckets
from jaxllm.executor.compile.cached import cached_executables
from jaxllm.executor.compile.compilations import CompilationWatch
from jaxllm.executor.compile.executables import use_compilation_cache
from jaxllm.executor.compile.first_run import run_at_start
from jaxllm.executor.compile.program import Program, ProgramSet, program_from_leaves
from jaxllm.executor.kernels.native import begin_kernels
from jaxllm.executor.memory.capacity import bytes_on_device
from jaxllm.executor.resolved import ResolvedConfig
from jaxllm.models.checkpoint.loading import open_weights
from jaxllm.models.errors import ModelError
from jaxllm.models.pooling_model import PoolingModel, abstract_pooling_model, load_pooling_model
from jaxllm.pooling.resolved import ResolvedPoolingConfig
from jaxllm.pooling.runner import PoolingRunner
from jaxllm.pooling.step import FINISH_ROWS, PoolingShape, make_finish, make_step


def build_pooling_runner(resolved: ResolvedPoolingConfig, progress: Progress = silent) -> PoolingRunner:
    """Load the weights and compile the steps at the same time.

    Raises `ConfigError` when the checkpoint is broken or does not match its configuration, and `CapacityError` when the
    weights do not fit the device.
    """
    compile_options = resolved.common.config.compile
    try:
        programs = pooling_programs(resolved)
        if resolved.common.platform != "cpu":
            # Only here: a start on CPU need not wait for the import.
            from jaxllm.planning.fit import check_weights

            check_weights(resolved.common, bytes_on_device(programs.parameters))
        cache = use_compilation_cache(compile_options.compilation_cache_dir)
        wait_for_kernels = begin_kernels(resolved.common, cache)
        executables = cached_executables(resolved.common, programs, 0, cache)
        at_start = () if compile_options.enforce_eager else programs.buckets.all
        with executables.compiling(at_start, progress):
            parameters = _load(resolved, progress)
        wait_for_kernels()
    except ModelError as error:
        raise ConfigError(str(error)) from error
    runner = PoolingRunner(
        parameters=parameters,
        executables=executables,
        buckets=programs.buckets,
        shape=programs.shape,
        hidden_size=resolved.common.model.embedding_size,
        size=resolved.size,
        watch=CompilationWatch(strict=compile_options.strict_compilation),
    )
    runner.warm_up(run_at_start(resolved.common.platform, at_start) or programs.buckets.all[:1])
    return runner


def _load(resolved: ResolvedPoolingConfig, progress: Progress) -> tuple[jax.Array, ...]:
    """The parameters' leaves, on the device."""

    def report(done: int, total: int) -> None:
        progress("Loading weights", done, total)

    common = resolved.common
    options = common.config.model
    source = open_weights(common.folder, options.load_format, options.seed)
    dtype, outputs = jnp.dtype(common.dtype), resolved.settings.outputs
    model = load_pooling_model(source, common.model, resolved.forward, dtype, outputs, report)
    return tuple(jax.tree.leaves(nnx.split(model)[1]))


def pooling_programs(resolved: ResolvedPoolingConfig) -> ProgramSet[None]:
    """The programs of an engine of this configuration."""
    common, settings = resolved.common, resolved.settings
    model = abstract_pooling_model(common.model, resolved.forward, jnp.dtype(common.dtype), settings.outputs)
    graph, parameters = nnx.split(model)
    shape = PoolingShape(settings)
    return ProgramSet(
        step=partial(_step, graph, parameters, shape, common.matmul_precision),
        others={task: _finish(graph, parameters, shape, common, task) for task in settings.token_tasks},
        buckets=Buckets(common.max_num_batched_tokens, common.max_num_seqs),
        shape=shape,
        parameters=parameters,
        state=None,
        options={"pooling": dataclasses.asdict(settings)},
    )


def _step(
    graph: nnx.GraphDef[PoolingModel], parameters: Any, shape: PoolingShape, precision: str | None, bucket: Bucket
) -> Program:
    packed = jax.ShapeDtypeStruct((shape.layout(bucket).size,), np.int32)
    step = make_step(graph, shape, bucket)
    return program_from_leaves(
        f"pool_{bucket.tokens}_tokens", step, parameters, packed, precision=precision, result=(0, 0)
    )


def _finish(
    graph: nnx.GraphDef[PoolingModel], parameters: Any, shape: PoolingShape, common: ResolvedConfig, task: str
) -> Program:
    hidden = jax.ShapeDtypeStruct((FINISH_ROWS, common.model.embedding_size), np.float32)
    each = jax.ShapeDtypeStruct((FINISH_ROWS,), np.int32)
    finish, precision = make_finish(graph, shape, task), common.matmul_precision
    return program_from_leaves(task, finish, parameters, hidden, each, each, precision=precision, result=0)
