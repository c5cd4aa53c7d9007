"""The context of a step for layers and the products inside them. It is passed down, never global."""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
from flax import nnx

from jaxllm.models.layers.rope import Rotation
from jaxllm.pallas_kernels.low_rank import TokenSlots
from jaxllm.pallas_kernels.ragged_batch import RaggedBatch
from jaxllm.pallas_kernels.recurrence.rows import StateRows


class ForwardContext(NamedTuple):
    """A product's facts about the rows of its input. Fields that are None are no part of the compiled program.

    A feature that changes products by row adds its array here, [T, ...], and reads it in `Matrix` or `Linear`; merged
    matrices know their parts themselves (`Merged`).
    """

    num_rows: jax.Array | None = None
    """int32 []: the rows that count; those after them are padding. None: all count."""
    adapters: TokenSlots | None = None
    """The slot of each token's adapter. None: there are no slots."""
    token_ids: jax.Array | None = None
    """int32 [T], where layers choose experts by them, or look up the last ones together."""

    def over_all_rows(self) -> "ForwardContext":
        """A copy for a product that computes padding, too."""
        return self._replace(num_rows=None)


ALL_ROWS = ForwardContext()
"""Every row counts, and there is nothing to know of any."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class SharedBlocks:
    """Blocks that several layers have in common, and what the first layer got. Their parameters are in memory once."""

    parameters: Any
    embedded: jax.Array
    """[T, D]"""
    graph: Any = field(metadata={"static": True})

    @staticmethod
    def of(blocks: nnx.Module, embedded: jax.Array) -> "SharedBlocks":
        """The shared blocks of a model, in a step."""
        graph, parameters = nnx.split(blocks)
        return SharedBlocks(parameters, embedded, graph)

    def block(self, number: int) -> Any:
        """One of them."""
        return nnx.merge(self.graph, self.parameters)[number]


class EntryPages(NamedTuple):
    """A layer's pages of entries: `table` int32 [R, W], as it sees it, and which layer of the cache they are in."""

    table: jax.Array
    layer: int | jax.Array


class LayerContext(NamedTuple):
    """A layer's context besides its input."""

    rotation: Rotation | None
    """Rotation of its own rotary embedding; None if it has none."""
    ragged: RaggedBatch
    layer: int | jax.Array
    """Which layer of the cache it reads and writes."""
    states: StateRows | None = None
    """Where the states of the rows lie, for layers that keep some; None where nothing outlives the step."""
    token_input: jax.Array | None = None
    """[T, size], what the layer has of each token besides its input, see `TokenInputPlan`."""
    shared: SharedBlocks | None = None
    """Shared by layers, in models where they share anything."""
    per_token: ForwardContext = ALL_ROWS
    """The context of products about each token; how many there are is in `ragged`, and an argument only once."""

    cross: RaggedBatch | None = None
    """The batch as cross attention has it, see `cross_batch`, where the model hears."""

    entries: "EntryPages | None" = None
    """Where it keeps entries that stand for groups of tokens, if it does, see `CompressionPlan`."""

    @property
    def forward(self) -> ForwardContext:
        """The context of the layer's products."""
        return self.per_token._replace(num_rows=self.ragged.num_tokens)
