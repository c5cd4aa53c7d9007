"""Blocks that several layers have in common."""

from dataclasses import dataclass, field
from typing import Any

import jax
from flax import nnx


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class SharedBlocks:
    """Blocks whose parameters are in memory once, and what the first layer got: layers are told of them each step."""

    parameters: Any
    embedded: jax.Array
    """[T, D]"""
    graph: Any = field(metadata={"static": True})

    @staticmethod
    def of(blocks: nnx.Module, embedded: jax.Array) -> "SharedBlocks":
        """Those of a model, in a step."""
        graph, parameters = nnx.split(blocks)
        return SharedBlocks(parameters, embedded, graph)

    def block(self, number: int) -> Any:
        """One of them."""
        return nnx.merge(self.graph, self.parameters)[number]
