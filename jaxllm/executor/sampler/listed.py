"""Log-probabilities of tokens that requests list (`logprob_token_ids`), for the rows of a step that want them.

They need no more than the hidden states that the step leaves on the device. So one more executable, the same for all
steps, computes the logits of such rows again, as for the log-probabilities of prompts. Steps without such rows do not
know of it, and no step takes longer to compile.

Axis letters: M rows of one call, K listed tokens, D hidden size.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import numpy as np
import numpy.typing as npt
from flax import nnx

from jaxllm.executor.compile.program_context import ProgramBody, ProgramContext
from jaxllm.executor.device_state import DeviceState
from jaxllm.executor.packed_layout import PackedLayout
from jaxllm.executor.sampler.logprobs import listed_logprobs
from jaxllm.executor.sampler.logprobs_mode import is_normalized
from jaxllm.executor.sampler.vocabulary import SAME, SPLIT, over_vocabulary
from jaxllm.models.causal_lm import CausalLM
from jaxllm.requests.sampling_limits import MAX_LOGPROB_TOKEN_IDS

Int32Array = npt.NDArray[np.int32]

LISTED_ROWS = 32
"""Most rows of one call. More take several calls."""


@dataclass(frozen=True)
class ListedRows:
    """The rows of a plan that list tokens, int32 [n], and their log-probabilities [M, K], still on the device."""

    rows: Int32Array
    blocks: list[jax.Array]

    def collect(self) -> dict[int, np.ndarray]:
        """Wait for the log-probabilities: float32 [K] of each row; those after the request's own mean nothing."""
        found = np.concatenate(jax.device_get(self.blocks))
        return dict(zip(self.rows.tolist(), found, strict=False))


def listed_layout(num_slots: int) -> PackedLayout:
    """The packed input, for an engine with so many slots."""
    rows = min(num_slots, LISTED_ROWS)
    return PackedLayout(
        {
            "hidden_rows": ((rows,), np.int32),
            "num_rows": ((), np.int32),
            "token_ids": ((rows, MAX_LOGPROB_TOKEN_IDS), np.int32),
        }
    )


def packed_rows(layout: PackedLayout, hidden: Int32Array, tokens: Int32Array) -> Iterator[Int32Array]:
    """Inputs of as many calls as it takes for these rows of `hidden` (int32 [n]) and their `tokens` (int32 [n, K])."""
    first = 0
    while first < len(hidden):
        packed, views = layout.host_buffer()
        part = slice(first, first + len(views["hidden_rows"]))
        count = len(hidden[part])
        views["hidden_rows"][:count] = hidden[part]
        views["token_ids"][:count] = tokens[part]
        views["num_rows"][...] = count
        first += count
        yield packed


def listed_logprobs_body(context: ProgramContext[DeviceState]) -> ProgramBody:
    """See `make_listed_logprobs`."""
    layout = listed_layout(context.state.last_tokens.shape[0])
    function = make_listed_logprobs(context.graph, layout, normalized=is_normalized(context.shape.logprobs_mode))
    return ProgramBody(function, (context.host((layout.size,)),))


def make_listed_logprobs(
    graph: nnx.GraphDef[CausalLM], layout: PackedLayout, *, normalized: bool = True
) -> Callable[..., Any]:
    """The function `(parameters, hidden, packed) -> float32 [M, K]`, with `DeviceState.hidden` after the step.

    Unless `normalized`, it gives logits.
    """

    def logprobs(parameters: Any, hidden: jax.Array, packed: jax.Array) -> jax.Array:
        model = nnx.merge(graph, parameters)
        inputs = layout.unpack(packed)
        logits = model.logits(hidden[inputs["hidden_rows"]], inputs["num_rows"])
        values = partial(listed_logprobs, normalized=normalized)
        gather = over_vocabulary(values, model.options.mesh, (SPLIT, SAME), SAME)
        found: jax.Array = gather(logits, inputs["token_ids"])
        return found

    return logprobs
