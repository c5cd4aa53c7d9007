"""Log-probabilities of prompts, from the hidden states that a step leaves on the device.

Axis letters: T tokens, D hidden size.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax

from jaxllm.executor.compile.program_context import ProgramBody, ProgramContext
from jaxllm.executor.device_state import DeviceState
from jaxllm.executor.sampler.logprobs import Logprobs, gather_logprobs
from jaxllm.executor.sampler.logprobs_mode import is_normalized
from jaxllm.executor.sampler.vocabulary import SAME, SPLIT, over_vocabulary
from jaxllm.models.causal_lm import CausalLM

PROMPT_LOGPROB_ROWS = 64
"""Prompt positions whose log-probabilities one call computes."""


def prompt_logprobs_body(context: ProgramContext[DeviceState]) -> ProgramBody:
    """See `make_prompt_logprobs`."""
    normalized = is_normalized(context.shape.logprobs_mode)
    function = make_prompt_logprobs(context.graph, context.shape.max_logprobs, normalized=normalized)
    return ProgramBody(function, (context.host(), context.host((PROMPT_LOGPROB_ROWS,))))


def make_prompt_logprobs(
    graph: nnx.GraphDef[CausalLM], max_logprobs: int, *, normalized: bool = True
) -> Callable[..., Any]:
    """The function `(parameters, hidden, first, targets) -> Logprobs` for 64 positions of the last step.

    `hidden` is `DeviceState.hidden`, `first` the first position in it, `targets` int32 [64] the tokens that follow.
    Unless `normalized`, it gives logits.
    """

    def prompt_logprobs(parameters: Any, hidden: jax.Array, first: jax.Array, targets: jax.Array) -> Logprobs:
        model = nnx.merge(graph, parameters)
        padded = jnp.pad(hidden, ((0, PROMPT_LOGPROB_ROWS), (0, 0)))
        logits = model.logits(lax.dynamic_slice_in_dim(padded, first, PROMPT_LOGPROB_ROWS))
        gather = over_vocabulary(
            partial(gather_logprobs, num_top=max_logprobs, normalized=normalized),
            model.options.mesh,
            (SPLIT, SAME),
            SAME,
        )
        found: Logprobs = gather(logits, targets)
        return found

    return prompt_logprobs
