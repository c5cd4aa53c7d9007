"""Whisper's rules as a logits processor that is part of the program.

Axis letters: B requests, V vocabulary.
"""

from collections.abc import Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from jaxllm.processors.interface import JaxLogitsProcessor
from jaxllm.requests.sampling_params import SamplingParams
from jaxllm.requests.transcription_rules import MOST_SUPPRESSED, NUM_LIMITS, rules_of


class TranscriptionRules(JaxLogitsProcessor):
    """Applies the rules of requests that have any."""

    shape: ClassVar[tuple[int, ...]] = (NUM_LIMITS + MOST_SUPPRESSED,)
    dtype: ClassVar[str] = "int32"

    @classmethod
    def validate_params(cls, sampling_params: SamplingParams) -> None:
        """Raise `ValueError` for rules that are none."""
        rules = rules_of(sampling_params)
        if rules is not None:
            rules.numbers(())

    def parameters(self, params: SamplingParams) -> Any:
        """Before the first token."""
        return self.parameters_after(params, ())

    def parameters_after(self, params: SamplingParams, output: Sequence[int]) -> Any:
        """After some tokens."""
        rules = rules_of(params)
        return None if rules is None else rules.numbers(output)

    def apply(self, logits: jax.Array, parameters: jax.Array) -> jax.Array:
        """Forbid what must not follow; then all but timestamps where one is due."""
        count, size = logits.shape
        tokens = jnp.arange(size, dtype=jnp.int32)
        first, first_text, earliest, latest = (parameters[:, each, None] for each in range(NUM_LIMITS))
        suppressed = parameters[:, NUM_LIMITS:]
        # Those that are none go to a column of their own.
        places = jnp.where((suppressed < 0) | (suppressed >= size), size, suppressed)
        is_forbidden = jnp.zeros((count, size + 1), bool).at[jnp.arange(count)[:, None], places].set(True)[:, :size]
        has_times, is_time = first > 0, tokens >= first
        outside = jnp.where(is_time, (tokens < earliest) | (tokens > latest), tokens < first_text)
        found = jnp.where(is_forbidden | (has_times & outside), -jnp.inf, logits)
        times = jax.nn.logsumexp(jnp.where(is_time, found, -jnp.inf), axis=1, keepdims=True)
        text = jnp.where(is_time, -jnp.inf, found).max(axis=1, keepdims=True)
        return jnp.where(has_times & ~is_time & (times > text), -jnp.inf, found)
