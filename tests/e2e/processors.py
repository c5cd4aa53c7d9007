"""Logits processors that tests give to engines: what an operator might write, in each of the forms."""

import os
from collections.abc import Sequence
from functools import partial
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from jaxllm.processors.interface import (
    AdapterLogitsProcessor,
    BatchUpdate,
    JaxLogitsProcessor,
    LogitsProcessor,
    process_dict_updates,
)
from jaxllm.requests.sampling_params import SamplingParams

MOST_BANNED = 4


def extra(params: SamplingParams, name: str) -> Any:
    return (params.extra_args or {}).get(name)


class Bias(LogitsProcessor):
    """`logit_bias` once more, on the host: `extra_args={"bias": {"5": 6.0}}`."""

    def __init__(self, vllm_config: Any, device: Any, is_pin_memory: bool) -> None:
        super().__init__(vllm_config, device, is_pin_memory)
        self.biases: dict[int, dict[int, float]] = {}

    @classmethod
    def validate_params(cls, sampling_params: SamplingParams) -> None:
        found = extra(sampling_params, "bias")
        if found is not None and not isinstance(found, dict):
            raise ValueError(f"bias={found!r}: must be an object of token ids and numbers")

    def uses(self, params: SamplingParams) -> bool:
        return extra(params, "bias") is not None

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        def biases_of(params: SamplingParams, prompt: list[int] | None, output: list[int]) -> dict[int, float]:
            return {int(key): value for key, value in extra(params, "bias").items()}

        process_dict_updates(self.biases, batch_update, biases_of)

    def apply(self, logits: np.ndarray) -> np.ndarray:
        for index, biases in self.biases.items():
            logits[index, list(biases)] += np.array(list(biases.values()), np.float32)
        return logits


class CompiledBans(JaxLogitsProcessor):
    """Banned words of one token, in the program: `extra_args={"ban": [7, 8]}`."""

    shape: ClassVar[tuple[int, ...]] = (MOST_BANNED,)
    dtype: ClassVar[str] = "int32"

    def parameters(self, params: SamplingParams) -> Any:
        banned = extra(params, "ban")
        return None if banned is None else np.array([*banned, *[-1] * (MOST_BANNED - len(banned))])

    def apply(self, logits: jax.Array, parameters: jax.Array) -> jax.Array:
        tokens = jnp.arange(logits.shape[1], dtype=jnp.int32)
        return jnp.where((tokens[None, :, None] == parameters[:, None, :]).any(axis=2), -jnp.inf, logits)


class MinP(LogitsProcessor):
    """`min_p` once more, on the host: `extra_args={"p": 0.1}`."""

    def __init__(self, vllm_config: Any, device: Any, is_pin_memory: bool) -> None:
        super().__init__(vllm_config, device, is_pin_memory)
        self.least: dict[int, float] = {}

    def is_argmax_invariant(self) -> bool:
        return True

    def uses(self, params: SamplingParams) -> bool:
        return extra(params, "p") is not None

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        process_dict_updates(self.least, batch_update, lambda params, prompt, output: extra(params, "p"))

    def apply(self, logits: np.ndarray) -> np.ndarray:
        for index, least in self.least.items():
            row = logits[index]
            row[row < row.max() + np.log(np.float32(least))] = -np.inf
        return logits


class CompiledMinP(JaxLogitsProcessor):
    """`min_p` once more, in the program: `extra_args={"compiled_p": 0.1}`."""

    def is_argmax_invariant(self) -> bool:
        return True

    def parameters(self, params: SamplingParams) -> Any:
        return extra(params, "compiled_p")

    def apply(self, logits: jax.Array, parameters: jax.Array) -> jax.Array:
        floor = logits.max(axis=1) + jnp.log(parameters)
        return jnp.where(logits < floor[:, None], -jnp.inf, logits)


class NoRepeats(AdapterLogitsProcessor):
    """No token twice in an output: `extra_args={"unique": true}`; also what may go wrong, by other values of it."""

    def new_req_logits_processor(self, params: SamplingParams) -> Any:
        asked = extra(params, "unique")
        if asked is None:
            return None

        def process(output: list[int], logits: np.ndarray) -> np.ndarray:
            if asked == "fails" and len(output) == 3:
                raise ZeroDivisionError("as asked")
            if asked == "gives nothing":
                return None  # type: ignore[return-value]
            if asked == "forbids all":
                return np.full_like(logits, -np.inf)
            logits[output] = -np.inf
            return logits

        return process


class CompiledNoRepeats(JaxLogitsProcessor):
    """`NoRepeats` in the program, of up to 12 tokens: `extra_args={"compiled_unique": true}`; or "fails"."""

    shape: ClassVar[tuple[int, ...]] = (12,)
    dtype: ClassVar[str] = "int32"

    def parameters(self, params: SamplingParams) -> Any:
        return None if extra(params, "compiled_unique") is None else np.full(12, -1)

    def parameters_after(self, params: SamplingParams, output: Sequence[int]) -> Any:
        if extra(params, "compiled_unique") == "fails" and len(output) == 3:
            raise ZeroDivisionError("as asked")
        return np.array([*output, *[-1] * (12 - len(output))])

    def apply(self, logits: jax.Array, parameters: jax.Array) -> jax.Array:
        tokens = jnp.arange(logits.shape[1], dtype=jnp.int32)
        return jnp.where((tokens[None, :, None] == parameters[:, None, :]).any(axis=2), -jnp.inf, logits)


class EndsEngine(AdapterLogitsProcessor):
    """Ends the engine, as a crash does, after so many tokens of a request: `extra_args={"ends_engine_after": 5}`."""

    def new_req_logits_processor(self, params: SamplingParams) -> Any:
        after = extra(params, "ends_engine_after")
        return None if after is None else partial(self._end, after)

    @staticmethod
    def _end(after: int, output: list[int], logits: np.ndarray) -> np.ndarray:
        if len(output) >= after:
            os._exit(3)
        return logits
