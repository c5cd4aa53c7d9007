"""The protocol of recurrent operations: inputs of tokens and the states of a layer in, outputs and new states out."""

from typing import NamedTuple, Protocol, TypeVar

import jax

from jaxllm.pallas_kernels.ragged_batch import RaggedBatch
from jaxllm.pallas_kernels.recurrence.rows import StateRows

Inputs_contra = TypeVar("Inputs_contra", contravariant=True)


class LayerStates(NamedTuple):
    """The states of all layers, and where a step's rows have theirs."""

    states: jax.Array
    """[L, slots, ...] of each request; updated in place where they are donated."""
    layer: int | jax.Array
    """Which of the states are this layer's."""
    rows: StateRows
    """Where those of each row lie."""
    batch: RaggedBatch
    """Which tokens are whose; its pages are not used."""
    inputs: tuple[jax.Array, ...] = ()
    """[L, slots, K, ...] each, those inputs of the last K drafts of requests that change states; updated as well."""


class RecurrentOperation(Protocol[Inputs_contra]):
    """An implementation of a recurrence over ragged rows, such as those of `gated_delta`."""

    def __call__(
        self, inputs: Inputs_contra, states: LayerStates, *, platform: str = "cpu"
    ) -> tuple[jax.Array, tuple[jax.Array, ...]]:
        """Outputs [T, ...], the states [L, slots, ...] after this step's tokens but for drafts, and `inputs`.

        `platform` is JAX's name of what is compiled for. Outputs of padding are finite but meaningless.
        """
        ...
