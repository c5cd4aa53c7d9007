"""Pipeline parallel: which layers are in which stage, on which devices, and which engines cannot be cut so."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxllm.config import EngineConfig
from jaxllm.errors import ConfigError
from jaxllm.executor.devices import data_shards
from jaxllm.executor.resolved import ResolvedConfig
from jaxllm.models.config import ModelConfig
from jaxllm.models.families import registry
from jaxllm.models.options import ForwardOptions
from jaxllm.models.plan import LayerPlan
from jaxllm.models.sharding import make_mesh
from jaxllm.models.stage import Stage


def assign_pipeline_stages(
    resolved: ResolvedConfig, devices: Sequence[jax.Device], *, runner: str, processes: int
) -> ResolvedConfig:
    """The configuration with `pipeline_parallel_size` stages, each on the next of the devices.

    Raises `ConfigError` for what has no stages.
    """
    config, each = resolved.config, resolved.num_devices
    count = config.parallel.pipeline_parallel_size
    _check(resolved, runner, processes)
    if len(devices) < count * each:
        raise ConfigError(
            f"pipeline_parallel_size={count}: stages of {each} devices need {count * each}, but there are "
            f"{len(devices)}"
        )
    weights = [layer_bytes(resolved, plan) for plan in resolved.model.layers]
    table = resolved.vocab_size * resolved.model.embedding_size * jnp.dtype(resolved.dtype).itemsize
    ranges = balanced(weights, count, first=table, last=table)
    stages = tuple(
        (Stage(start, stop, len(weights)), make_mesh(devices[index * each : (index + 1) * each], each))
        for index, (start, stop) in enumerate(ranges)
    )
    return replace(resolved, stages=stages, mesh=stages[0][1])


def refuse_stages(config: EngineConfig, what: str) -> None:
    """Raise `ConfigError` where an engine in stages is asked for, and `what` knows nothing of them."""
    if config.parallel.pipeline_parallel_size > 1:
        raise ConfigError(
            f"pipeline_parallel_size={config.parallel.pipeline_parallel_size}: not supported by {what}; omit it, or "
            "use tensor_parallel_size"
        )


def _check(resolved: ResolvedConfig, runner: str, processes: int) -> None:
    """Raise `ConfigError` for engines and models that have one stage."""
    config, model = resolved.config, resolved.model
    parallel = config.parallel
    asked = f"pipeline_parallel_size={parallel.pipeline_parallel_size}"
    reasons = {
        "pooling models support one stage only": runner == "pooling",
        "all stages must be in one process": processes > 1,
        "data shards support one stage only; omit data from mesh": data_shards(parallel) > 1,
        "recurrent layers support one stage only": bool(model.recurrences),
        "layers that share keys and values support one stage only": model.shares_keys,
        "layers that share choices of keys support one stage only": model.shared_choice > 0,
        "layers that add what others give support one stage only": any(each.adds_late for each in model.layers),
        "KV heads of several sizes support one stage only": len(model.kv_heads) > 1,
        "blocks shared by layers support one stage only": registry.lookup(model.architecture).make_shared is not None,
        "per-layer embeddings support one stage only": model.embedding.each_layer is not None,
        "several residual streams support one stage only": model.layers[0].streams is not None,
    }
    for reason, applies in reasons.items():
        if applies:
            raise ConfigError(f"{asked}: {reason}; use tensor_parallel_size instead")
    if parallel.pipeline_parallel_size > model.num_layers:
        raise ConfigError(f"{asked}: the model has {model.num_layers} layers, and each stage needs at least one")


def layer_bytes(resolved: ResolvedConfig, plan: LayerPlan) -> int:
    """Bytes of the weights of a layer, on all devices together."""
    return _layer_bytes(resolved.model, plan, resolved.dtype)


@cache
def _layer_bytes(model: ModelConfig, plan: LayerPlan, dtype: str) -> int:
    layer: Any = registry.lookup(model.architecture).make_layer(model, plan, ForwardOptions(), jnp.dtype(dtype))
    leaves = jax.tree.leaves(nnx.split(layer)[1])
    return sum(int(np.prod(leaf.shape)) * np.dtype(leaf.dtype).itemsize for leaf in leaves)


def balanced(weights: Sequence[int], count: int, *, first: int, last: int) -> list[tuple[int, int]]:
    """Ranges (start, stop) of layers for `count` stages, such that the largest has as few bytes as can be.

    Each has at least one layer. The first adds `first` bytes, the last `last`. Among equal splits, earlier stages get
    fewer layers.
    """
    ends = np.concatenate([[0], np.cumsum(weights)])

    @cache
    def best(stage: int, start: int) -> tuple[int, tuple[int, ...]]:
        """The largest of the stages from this one on, and where they stop."""
        extra = first if stage == 0 else 0
        if stage == count - 1:
            return int(ends[-1] - ends[start]) + extra + last, (len(weights),)
        found = []
        for stop in range(start + 1, len(weights) - (count - 1 - stage) + 1):
            most, stops = best(stage + 1, stop)
            found.append((max(int(ends[stop] - ends[start]) + extra, most), (stop, *stops)))
        return min(found)

    stops = best(0, 0)[1]
    return list(zip((0, *stops[:-1]), stops, strict=True))
