"""Rows whose tokens are chosen after the step, among those that a mask allows.

Which tokens a grammar allows is computed on the host while the device runs the forward pass. The step leaves such rows
alone but for their hidden states; then one more executable, the same for all steps, takes these and the masks, and
chooses. Steps without such rows do not know of it.

Axis letters: M rows of one call, W words of a mask, V vocabulary.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
import numpy.typing as npt
from flax import nnx

from jaxllm.executor.compile.program_context import ProgramBody, ProgramContext
from jaxllm.executor.device_state import DeviceState
from jaxllm.executor.packed_layout import PackedLayout
from jaxllm.executor.sampler.blocks import put_last_tokens, sample_in_blocks
from jaxllm.executor.sampler.row_numbers import FLOAT_FIELDS
from jaxllm.executor.sampler.rows import INT_FIELDS, SamplingRows, SamplingState
from jaxllm.executor.sampler.sampler import SampledRows
from jaxllm.executor.shards import max_over_shards
from jaxllm.executor.step_inputs import StepShape
from jaxllm.models.causal_lm import CausalLM

Int32Array = npt.NDArray[np.int32]

CONSTRAINED_ROWS = 64
"""Most rows of one call. More take several calls."""


@dataclass
class ConstrainedRows:
    """Rows of a step whose tokens are still to be chosen: what must be known of them then.

    rows: int32 [n], of the plan; one with drafts is there for its token and for each of its drafts, and `places`,
    int32 [n], counts these. hidden: int32 [n], places of their hidden states. ints, floats: their parameters, for
    `SamplingRows.unpack`. `chosen` is filled by `Runner.choose`: which of these rows, and the places of their tokens in
    what is on the device; `begun` says that this was done, or is not needed.
    """

    rows: Int32Array
    places: Int32Array
    hidden: Int32Array
    ints: npt.NDArray[np.int32]
    floats: npt.NDArray[np.float32]
    chosen: list[tuple[Int32Array, Int32Array, SampledRows]] = field(default_factory=list)
    wants_logprobs: bool = False
    begun: bool = False

    def num_chosen(self, num_rows: int) -> Int32Array:
        """How many tokens were chosen for each of the plan's rows, int32 [n]."""
        which = [which for which, _, _ in self.chosen]
        rows = self.rows[np.concatenate(which)] if which else self.rows[:0]
        return np.bincount(rows, minlength=num_rows).astype(np.int32)

    def empty(self) -> Int32Array:
        """Rows of the plan whose processors have left no token, int32."""
        found = [
            self.rows[which[np.asarray(sampled.is_empty)[places]]]
            for which, places, sampled in self.chosen
            if sampled.is_empty is not None
        ]
        return np.concatenate(found) if found else np.zeros(0, np.int32)


def constrained_layout(state: Any, shards: int = 1) -> PackedLayout:
    """The packed input of a shard, for a `SamplingState` of all: [S, V] says how many rows and words."""
    return PackedLayout(constrained_fields(state, shards, CONSTRAINED_ROWS))


def constrained_fields(state: Any, shards: int, max_rows: int) -> dict[str, tuple[tuple[int, ...], Any]]:
    """The fields of such an input, for at most so many rows."""
    slots, vocab_size = state.bias.shape[0] // shards, state.bias.shape[1]
    rows, words = min(slots, max_rows), -(-vocab_size // 32)
    return {
        "hidden_rows": ((rows,), np.int32),
        "num_rows": ((), np.int32),
        "sampling_ints": ((len(INT_FIELDS), rows), np.int32),
        "sampling_floats": ((len(FLOAT_FIELDS), rows), np.float32),
        "masks": ((rows, words), np.int32),
    }


def sample_constrained_body(context: ProgramContext[DeviceState]) -> ProgramBody:
    """See `make_sample_constrained`."""
    layout = constrained_layout(context.state.sampling, context.shape.shards)
    function = make_sample_constrained(context.graph, context.shape, layout)
    return ProgramBody(function, (context.of_shards(layout.size),))


def make_sample_constrained(
    graph: nnx.GraphDef[CausalLM], shape: StepShape, layout: PackedLayout
) -> Callable[..., Any]:
    """The function `(parameters, hidden, sampling, last_tokens, packed) -> (SampledRows [M], sampling, last_tokens)`.

    `hidden`, `sampling` and `last_tokens` are those of `DeviceState` after the step.
    """

    def sample_constrained(
        parameters: Any, hidden: jax.Array, sampling: SamplingState, last_tokens: jax.Array, packed: jax.Array
    ) -> tuple[SampledRows, SamplingState, jax.Array]:
        model = nnx.merge(graph, parameters)
        inputs = layout.unpack(packed)
        rows = SamplingRows.unpack(inputs["sampling_ints"], inputs["sampling_floats"])
        chosen = hidden[inputs["hidden_rows"]]
        num_rows = max_over_shards(inputs["num_rows"])
        sampled, sampling = sample_in_blocks(model, chosen, rows, sampling, num_rows, shape, inputs["masks"])
        return sampled, sampling, put_last_tokens(last_tokens, rows, sampled)

    return sample_constrained
