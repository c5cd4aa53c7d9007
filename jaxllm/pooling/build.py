"""From a configuration to a runner that is ready: weights and executables."""

import dataclasses
import logging
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
from jaxllm.executor.compile.generation import media_pool
from jaxllm.executor.compile.program import Program, ProgramSet, program_from_leaves
from jaxllm.executor.kernels.native import begin_kernels
from jaxllm.executor.media_programs import encoding
from jaxllm.executor.memory.capacity import bytes_on_device
from jaxllm.executor.program_table import EMPTY_ADAPTERS, ENCODE, ROW_SQUARES, SCALE_ADAPTER, SET_ADAPTER
from jaxllm.executor.resolved import ResolvedConfig
from jaxllm.models.checkpoint.loading import open_weights
from jaxllm.models.errors import ModelError
from jaxllm.models.layers.adapter_factors import row_squares, set_factors, square_shapes
from jaxllm.models.layers.adapter_slots import AdaptedGraph, split_adapters
from jaxllm.models.options import ForwardOptions
from jaxllm.models.pooling_model import Decoder, PoolingModel, abstract_pooling_model, load_pooling_model
from jaxllm.models.towers.image_tower import ImageTower
from jaxllm.pooling.resolved import ResolvedPoolingConfig
from jaxllm.pooling.runner import EMPTY_MEDIA, PoolingRunner
from jaxllm.pooling.step import FINISH_ROWS, Merge, PoolingShape, make_finish, make_step

logger = logging.getLogger(__name__)


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
            media = media_pool(resolved.common)
            check_weights(resolved.common, bytes_on_device((programs.parameters, slots, media)))
        cache = use_compilation_cache(compile_options.compilation_cache_dir)
        wait_for_kernels = begin_kernels(resolved.common, cache)
        executables = cached_executables(resolved.common, programs, 0, cache)
        at_start = () if compile_options.enforce_eager else programs.buckets.all
        with executables.compiling(at_start, progress):
            parameters = _load(resolved, progress)
        wait_for_kernels()
    except ModelError as error:
        raise ConfigError(str(error)) from error
    tower = resolved.common.model.tower
    runner = PoolingRunner(
        parameters=parameters,
        executables=executables,
        buckets=programs.buckets,
        shape=programs.shape,
        hidden_size=resolved.common.model.embedding_size,
        size=resolved.size,
        watch=CompilationWatch(strict=compile_options.strict_compilation),
        grid_merge=tower.merge if tower is not None and programs.shape.has_grid_positions else None,
    )
    if programs.shape.adapters is not None:
        first_run(executables, "creating slots for adapters", runner.empty_adapters)
    if programs.shape.sees_images:
        first_run(executables, "creating the pool of images", runner.empty_media)
    runner.warm_up(run_at_start(resolved.common.platform, at_start) or programs.buckets.all[:1])
    return runner


def _load(resolved: ResolvedPoolingConfig, progress: Progress) -> tuple[jax.Array, ...]:
    """The parameters' leaves, on the device."""

    def report(done: int, total: int) -> None:
        progress("Loading weights", done, total)

    common = resolved.common
    options = common.config.model
    if options.weight_cache_size:
        logger.warning("weight_cache_size has no effect: pooling models are read and packed at each start")
    source = open_weights(common.folder, options.load_format, options.seed)
    dtype, outputs = jnp.dtype(common.dtype), resolved.settings.outputs
    model = load_pooling_model(source, common.model, resolved.forward, dtype, outputs, report)
    return tuple(jax.tree.leaves(nnx.split(model)[1]))


def pooling_programs(resolved: ResolvedPoolingConfig) -> ProgramSet[tuple[Any, ...]]:
    """The programs of an engine of this configuration. Their state is the pool of images' rows, if there is one."""
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
    shape = PoolingShape(
        settings,
        common.adapters,
        hidden_size=common.model.hidden_size if common.sees_images else 0,
        has_grid_positions=common.sees_images and common.model.has_grid_positions,
        sees_spans=common.sees_spans,
    )
    media = (media_pool(common),) if common.sees_images else ()
    make = _Making(merge, parameters, adapters, shape, common, adapted, squares, media)
    others = {task: make.finish(task) for task in settings.token_tasks} | (make.media_programs(graph) if media else {})
    return ProgramSet(
        step=make.step,
        others=others | (make.adapter_programs() if adapters else {}),
        buckets=Buckets(common.max_num_batched_tokens, common.max_num_seqs),
        shape=make.shape,
        parameters=parameters,
        state=media,
        options={"pooling": dataclasses.asdict(settings)},
    )


def _model(resolved: ResolvedPoolingConfig, options: ForwardOptions) -> PoolingModel:
    common = resolved.common
    return abstract_pooling_model(common.model, options, jnp.dtype(common.dtype), resolved.settings.outputs)


def _tower_of(graph: nnx.GraphDef[PoolingModel], parameters: Any) -> ImageTower:
    """The tower of a decoder that sees images."""
    backbone = nnx.merge(graph, parameters).backbone
    assert isinstance(backbone, Decoder)
    assert backbone.model.tower is not None
    return backbone.model.tower


def _host(shape: tuple[int, ...] = (), dtype: Any = np.int32) -> jax.ShapeDtypeStruct:
    """The shape of an array that comes from the host."""
    return jax.ShapeDtypeStruct(shape, dtype)


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
    media: tuple[Any, ...]
    """Shape of the pool of images' rows, where texts may have images."""

    def step(self, bucket: Bucket) -> Program:
        packed = jax.ShapeDtypeStruct((self.shape.layout(bucket).size,), np.int32)
        step = make_step(self.merge, self.shape, bucket)
        return self._program(f"pool_{bucket.tokens}_tokens", step, self.media, packed, result=(0, 0))

    def finish(self, task: str) -> Program:
        hidden = jax.ShapeDtypeStruct((FINISH_ROWS, self.common.model.embedding_size), np.float32)
        each = jax.ShapeDtypeStruct((FINISH_ROWS,), np.int32)
        return self._program(task, make_finish(self.merge, self.shape, task), hidden, each, each, each, result=0)

    def media_programs(self, graph: nnx.GraphDef[PoolingModel]) -> dict[str, Program]:
        """What makes the pool of images' rows, and encodes a crop of each size."""
        tower = self.common.model.tower
        assert tower is not None
        found = {EMPTY_MEDIA: Program(partial(empty_adapters, self.media), (), (0,))}
        make = partial(program_from_leaves, precision=self.common.matmul_precision, result=0, donated=(1,))
        for size in tower.sizes:
            body = encoding(tower, size, partial(_tower_of, graph), _host)
            name = ENCODE.sized_name(size)
            found[name] = make(name, body.function, self.parameters, *self.media, *body.inputs)
        return found

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
