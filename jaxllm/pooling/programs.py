"""What each executable of a pooling engine is made from."""

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Mesh

from jaxllm.models.pooling_model import PoolingModel, abstract_pooling_model
from jaxllm.pooling.resolved import ResolvedPoolingConfig
from jaxllm.pooling.step import FINISH_ROWS, PoolingShape, make_finish, make_step
from jaxllm.runtime.programs.buckets import Bucket, Buckets
from jaxllm.runtime.programs.generation import Key, Recipe

FINISH = "finish"
"""The executable for results of single tokens."""


@dataclass(frozen=True)
class PoolingSpec:
    """All that determines the executables: the model's graph, the shapes of its parameters, and how it pools."""

    graph: nnx.GraphDef[PoolingModel]
    parameters: Any
    shape: PoolingShape
    hidden_size: int
    mesh: Mesh | None = None
    has_little_of_xla: bool = False
    """Whether kernels of our own do nearly all of the work."""

    @property
    def arrays(self) -> Any:
        """Shapes of all that stays on the device."""
        return self.parameters

    @property
    def named(self) -> dict[str, Any]:
        """What the executables depend on beyond shapes, as plain data."""
        return {"pooling": dataclasses.asdict(self.shape.settings)}

    def keys(self, buckets: Iterable[Bucket]) -> list[Key]:
        """Every executable of an engine with these buckets, the longest to compile first."""
        return [*sorted(buckets, reverse=True), FINISH]

    def recipe(self, key: Key) -> Recipe:
        """How the executable `key` is made."""
        leaves, tree = jax.tree.flatten(self.parameters)
        if isinstance(key, Bucket):
            step = make_step(self.graph, self.shape, key)

            def of_texts(leaves: tuple[Any, ...], packed: jax.Array) -> Any:
                return step(jax.tree.unflatten(tree, leaves), packed)

            of_texts.__name__ = f"pool_{key.tokens}_tokens"
            size = self.shape.layout(key).size
            return Recipe(of_texts, (tuple(leaves), jax.ShapeDtypeStruct((size,), np.int32)), (0, 0))
        finish = make_finish(self.graph, self.shape)

        def of_tokens(leaves: tuple[Any, ...], *arguments: jax.Array) -> Any:
            return finish(jax.tree.unflatten(tree, leaves), *arguments)

        hidden = jax.ShapeDtypeStruct((FINISH_ROWS, self.hidden_size), np.float32)
        each = jax.ShapeDtypeStruct((FINISH_ROWS,), np.int32)
        return Recipe(of_tokens, (tuple(leaves), hidden, each, each), 0)


def make_spec(resolved: ResolvedPoolingConfig) -> tuple[PoolingSpec, Buckets]:
    """What the executables are compiled from, and their shapes."""
    common = resolved.common
    labels = resolved.settings.num_labels
    model = abstract_pooling_model(
        common.model, resolved.forward, jnp.dtype(common.dtype), labels, resolved.settings.dense
    )
    graph, parameters = nnx.split(model)
    buckets = Buckets(common.max_num_batched_tokens, common.config.scheduler.max_num_seqs)
    return PoolingSpec(graph, parameters, PoolingShape(resolved.settings), common.model.hidden_size), buckets
