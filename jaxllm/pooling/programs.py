"""The programs of a pooling engine."""

import dataclasses
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxllm.executor.compile.buckets import Bucket, Buckets
from jaxllm.executor.compile.program import Program, ProgramSet, of_leaves
from jaxllm.executor.resolved import ResolvedConfig
from jaxllm.models.pooling_model import PoolingModel, abstract_pooling_model
from jaxllm.pooling.resolved import ResolvedPoolingConfig
from jaxllm.pooling.step import FINISH_ROWS, PoolingShape, make_finish, make_step


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
    return of_leaves(f"pool_{bucket.tokens}_tokens", step, parameters, packed, precision=precision, result=(0, 0))


def _finish(
    graph: nnx.GraphDef[PoolingModel], parameters: Any, shape: PoolingShape, common: ResolvedConfig, task: str
) -> Program:
    hidden = jax.ShapeDtypeStruct((FINISH_ROWS, common.model.embedding_size), np.float32)
    each = jax.ShapeDtypeStruct((FINISH_ROWS,), np.int32)
    finish, precision = make_finish(graph, shape, task), common.matmul_precision
    return of_leaves(task, finish, parameters, hidden, each, each, precision=precision, result=0)
