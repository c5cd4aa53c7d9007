"""From a configuration to a runner that is ready: weights and executables."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxllm.config.progress import Progress, silent
from jaxllm.errors import ConfigError
from jaxllm.executor.adapter_programs import empty_adapters, one_slot, set_adapter
from jaxllm.executor.compile.buckets import Bucket, Buckets
from jaxllm.executor.compile.cached import cached_executables
from jaxllm.executor.compile.compilations import CompilationWatch
from jaxllm.executor.compile.executables import use_compilation_cache
from jaxllm.executor.compile.first_run import first_run, run_at_start
from jaxllm.executor.compile.program import Program, ProgramSet, program_from_leaves
from jaxllm.executor.kernels.native import begin_kernels
from jaxllm.executor.memory.capacity import bytes_on_device
from jaxllm.executor.program_table import EMPTY_ADAPTERS, ROW_SQUARES, SCALE_ADAPTER, SET_ADAPTER
from jaxllm.executor.resolved import ResolvedConfig
from jaxllm.models.checkpoint.loading import open_weights
from jaxllm.models.errors import ModelError
from jaxllm.models.layers.adapter_factors import row_squares, set_factors, square_shapes
from jaxllm.models.layers.adapter_slots import AdaptedGraph, split_adapters
from jaxllm.models.options import ForwardOptions
from jaxllm.models.pooling_model import PoolingModel, abstract_pooling_model, load_pooling_model
from jaxllm.pooling.resolved import ResolvedPoolingConfig
from jaxllm.pooling.runner import PoolingRunner
from jaxllm.pooling.step import FINISH_ROWS, Merge, PoolingShape, make_finish, make_step


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

            slots = programs.others[SET_ADAPTER.name].arguments[0] if programs.shape.adapters else ()
            check_weights(resolved.common, bytes_on_device((programs.parameters, slots)))
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
    if programs.shape.adapters is not None:
        first_run(executables, "creating slots for adapters", runner.empty_adapters)
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
    graph, parameters = nnx.split(_model(resolved, resolved.forward))
    merge: Merge = lambda parameters, adapters: nnx.merge(graph, parameters)  # noqa: E731
    adapters: tuple[Any, ...] = ()
    adapted: AdaptedGraph | None = None
    squares: tuple[Any, ...] = ()
    if common.adapters is not None:
        model = _model(resolved, resolved.forward_with_slots)
        adapted, arrays = split_adapters(model)
        merge, adapters = adapted.merge, tuple(arrays.values())
        squares = square_shapes(model) if common.adapters.has_vectors else ()
    make = _Making(merge, parameters, adapters, PoolingShape(settings, common.adapters), common, adapted, squares)
    others = {task: make.finish(task) for task in settings.token_tasks}
    return ProgramSet(
        step=make.step,
        others=others | (make.adapter_programs() if adapters else {}),
        buckets=Buckets(common.max_num_batched_tokens, common.max_num_seqs),
        shape=make.shape,
        parameters=parameters,
        state=None,
        options={"pooling": dataclasses.asdict(settings)},
    )


def _model(resolved: ResolvedPoolingConfig, options: ForwardOptions) -> PoolingModel:
    common = resolved.common
    return abstract_pooling_model(common.model, options, jnp.dtype(common.dtype), resolved.settings.outputs)


@dataclass(frozen=True)
class _Making:
    """What the programs of an engine are made from."""

    merge: Merge
    parameters: Any
    adapters: tuple[Any, ...]
    """Shapes of the slots' arrays."""
    shape: PoolingShape
    common: ResolvedConfig
    adapted: AdaptedGraph | None
    squares: tuple[Any, ...]
    """Shapes of what is measured of the weights, if slots have vectors."""

    def step(self, bucket: Bucket) -> Program:
        packed = jax.ShapeDtypeStruct((self.shape.layout(bucket).size,), np.int32)
        step = make_step(self.merge, self.shape, bucket)
        return self._program(f"pool_{bucket.tokens}_tokens", step, packed, result=(0, 0))

    def finish(self, task: str) -> Program:
        hidden = jax.ShapeDtypeStruct((FINISH_ROWS, self.common.model.embedding_size), np.float32)
        each = jax.ShapeDtypeStruct((FINISH_ROWS,), np.int32)
        return self._program(task, make_finish(self.merge, self.shape, task), hidden, each, each, each, result=0)

    def adapter_programs(self) -> dict[str, Program]:
        """What makes the slots, and fills one."""
        empty = partial(empty_adapters, self.adapters)
        slot, given = jax.ShapeDtypeStruct((), np.int32), map(one_slot, self.adapters)
        result = (0,) * len(self.adapters)
        found = {
            EMPTY_ADAPTERS.name: Program(empty, (), result),
            SET_ADAPTER.name: Program(set_adapter, (self.adapters, slot, *given), result, donated=(0,)),
        }
        assert self.shape.adapters is not None
        return found | (self._vector_programs(slot) if self.shape.adapters.has_vectors else {})

    def _vector_programs(self, slot: Any) -> dict[str, Program]:
        """What makes factors of magnitudes, and what that needs of the weights."""
        adapted, dtype = self.adapted, jnp.dtype(self.common.dtype)
        assert adapted is not None

        def squares(parameters: Any, adapters: Any) -> tuple[jax.Array, ...]:
            return row_squares(adapted.merge(parameters, adapters), dtype)

        def scale(parameters: Any, squares: Any, adapters: Any, slot: jax.Array) -> tuple[jax.Array, ...]:
            return set_factors(adapted, parameters, adapters, squares, slot, dtype)

        make = partial(program_from_leaves, precision=self.common.matmul_precision)
        result = (0,) * len(self.adapters)
        arguments = (self.parameters, self.squares, self.adapters, slot)
        return {
            ROW_SQUARES.name: self._program(ROW_SQUARES.name, squares, result=(0,) * len(self.squares)),
            SCALE_ADAPTER.name: make(SCALE_ADAPTER.name, scale, *arguments, result=result, donated=(2,)),
        }

    def _program(self, name: str, function: Callable[..., Any], *inputs: Any, result: Any) -> Program:
        precision = self.common.matmul_precision
        return program_from_leaves(
            name, function, self.parameters, self.adapters, *inputs, precision=precision, result=result
        )
