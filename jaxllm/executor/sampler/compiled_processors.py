"""Logits processors that are part of a program, and what they know of each request.

Axis letters: B rows, V vocabulary, K numbers of a request.
"""

import hashlib
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jax import lax

from jaxllm.errors import ConfigError, RequestError
from jaxllm.processors.interface import JaxLogitsProcessor
from jaxllm.processors.loading import label
from jaxllm.requests.sampling_params import SamplingParams

if TYPE_CHECKING:
    from jaxllm.executor.resolved import ResolvedConfig

MOST = 31
"""Processors whose use fits the bits of a number."""

_CHECKED_ROWS = 8
"""Rows with which they are traced to see what they are."""


@dataclass(frozen=True)
class CompiledProcessors:
    """The processors, in their order. Numbers of all are int32 [K]: floats are kept as their bits."""

    processors: tuple[JaxLogitsProcessor, ...]
    vocab_size: int

    @classmethod
    def of(cls, resolved: "ResolvedConfig") -> "CompiledProcessors":
        """The processors of a configuration. Raises `ConfigError`."""
        size, made = resolved.model.vocab_size, []
        for kind in resolved.processors:
            if issubclass(kind, JaxLogitsProcessor):
                try:
                    made.append(kind(resolved.config, size))
                    made[-1].is_argmax_invariant()
                except Exception as error:
                    raise _wrong(kind, f"{type(error).__name__}: {error}") from error
        if len(made) > MOST:
            raise ConfigError(f"logits_processors: at most {MOST} compiled ones are allowed, not {len(made)}")
        return cls(tuple(made), size)

    @cached_property
    def num_numbers(self) -> int:
        """K."""
        return sum(prod(each.shape) for each in self.processors)

    def numbers_of(self, params: SamplingParams) -> tuple[int, npt.NDArray[np.int32]]:
        """A bit for each processor that the request uses, and its numbers int32 [K]. Raises `RequestError`."""
        bits, parts = 0, [np.zeros(0, np.int32)]
        for index, each in enumerate(self.processors):
            name = label(type(each))
            try:
                skipped = each.is_argmax_invariant() and params.greedy
                found = None if skipped else each.parameters(params)
                part = None if found is None else _numbers(found, each.dtype)
            except Exception as error:
                message = f"logits processor {name} rejects the request: {type(error).__name__}: {error}"
                raise RequestError(message, "extra_args") from error
            if part is None:
                parts.append(np.zeros(prod(each.shape), np.int32))
                continue
            if part.shape != each.shape:
                raise RequestError(
                    f"logits processor {name} returned state of shape {part.shape}, not {each.shape}", "extra_args"
                )
            bits |= 1 << index
            parts.append(_bits_of(part))
        return bits, np.concatenate(parts)

    @cached_property
    def following(self) -> int:
        """A bit for each processor whose numbers depend on the output."""
        common, found = JaxLogitsProcessor.parameters_after, 0
        for index, each in enumerate(self.processors):
            found |= (type(each).parameters_after is not common) << index
        return found

    def numbers_after(
        self, params: SamplingParams, output: npt.NDArray[np.int32], bits: int, numbers: npt.NDArray[np.int32]
    ) -> npt.NDArray[np.int32]:
        """The numbers int32 [K] after an output, int32 [tokens], of a request that had others.

        Raises `RuntimeError` that names the processor which fails.
        """
        tokens, found, first = output.tolist(), numbers.copy(), 0
        for index, each in enumerate(self.processors):
            size = prod(each.shape)
            if bits & self.following & 1 << index:
                try:
                    part = _numbers(each.parameters_after(params, tokens), each.dtype)
                    found[first : first + size] = _bits_of(part.reshape(each.shape))
                except Exception as error:
                    name = label(type(each))
                    raise RuntimeError(f"logits processor {name} failed: {type(error).__name__}") from error
            first += size
        return found

    def apply(self, logits: jax.Array, temperature: jax.Array, bits: jax.Array, numbers: jax.Array) -> jax.Array:
        """Logits float32 [B, V] of rows with `temperature` float32 [B], `bits` int32 [B], `numbers` int32 [B, K].

        The logits may have more columns than the vocabulary; those stay as they are.
        """
        first = 0
        for index, each in enumerate(self.processors):
            size = prod(each.shape)
            own = numbers[:, first : first + size].reshape(-1, *each.shape)
            own = own if each.dtype == "int32" else lax.bitcast_convert_type(own, jnp.float32)
            uses = (bits >> index) & 1 != 0
            changed = _changed(each, logits[:, : self.vocab_size], temperature, own)
            rest = logits[:, self.vocab_size :]
            changed = jnp.concatenate([changed, rest], axis=1) if rest.shape[1] else changed
            logits = jnp.where(uses[:, None], changed, logits)
            first += size
        return logits

    def digests(self) -> dict[str, str]:
        """For each processor a digest of what it computes: executables depend on it. Raises `ConfigError`."""
        return {f"{index} {label(type(each))}": self._digest(each) for index, each in enumerate(self.processors)}

    def _digest(self, processor: JaxLogitsProcessor) -> str:
        logits = jax.ShapeDtypeStruct((_CHECKED_ROWS, self.vocab_size), jnp.float32)
        numbers = jax.ShapeDtypeStruct((_CHECKED_ROWS, *processor.shape), processor.dtype)
        try:
            lowered = jax.jit(processor.apply).lower(logits, numbers)
        except Exception as error:
            raise _wrong(type(processor), f"apply cannot be traced: {type(error).__name__}: {error}") from error
        made: Any = lowered.out_info
        if getattr(made, "shape", None) != logits.shape or getattr(made, "dtype", None) != jnp.float32:
            raise _wrong(type(processor), f"apply returns {made}, but must return float32 {logits.shape}")
        invariant = processor.is_argmax_invariant()
        return hashlib.sha256(f"{invariant} {lowered.as_text()}".encode()).hexdigest()[:16]


def _numbers(found: Any, dtype: str) -> npt.NDArray[Any]:
    """What a processor made of a request, if that loses no more than digits. Raises `ValueError`."""
    raw = np.asarray(found)
    if not np.can_cast(raw.dtype, dtype, "same_kind"):
        raise ValueError(f"cannot convert {raw.dtype} to {dtype}")
    if dtype == "int32" and raw.size and not -(2**31) <= int(raw.min()) <= int(raw.max()) < 2**31:
        raise ValueError("a value does not fit into int32")
    return raw.astype(dtype)


def _bits_of(part: npt.NDArray[Any]) -> npt.NDArray[np.int32]:
    found: npt.NDArray[np.int32] = np.ascontiguousarray(part).reshape(-1).view(np.int32)
    return found


def _changed(each: JaxLogitsProcessor, logits: jax.Array, temperature: jax.Array, own: jax.Array) -> jax.Array:
    if not each.is_argmax_invariant():
        return each.apply(logits, own)
    divisor = jnp.where(temperature > 0, temperature, 1.0)[:, None]
    scaled = logits / divisor
    found = each.apply(scaled, own)
    # Dividing and multiplying would change the last digit of what the processor leaves alone.
    return jnp.where(found == scaled, logits, found * divisor)


def _wrong(kind: type, what: str) -> ConfigError:
    return ConfigError(f"logits_processors={label(kind)!r}: {what}")
