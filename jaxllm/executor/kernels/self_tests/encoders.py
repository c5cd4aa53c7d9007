"""The self-test of attention in the encoders of images and sound."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from jaxllm.executor.kernels.self_test import SelfTest
from jaxllm.executor.resolved import ResolvedConfig
from jaxllm.pallas_kernels.segment_attention.api import segment_attention
from jaxllm.pallas_kernels.segment_attention.segments import Segments

_HEADS, _PADDING = 2, 40
_TOLERANCE = 0.03
"""Tolerance of weighted means of numbers of about 1, in any type: bfloat16 takes a fifth of it."""


@dataclass(frozen=True)
class SegmentCase:
    """Segments of so many tokens, and the size and type of heads."""

    lengths: tuple[int, ...]
    head_size: int
    dtype: str


def _cases(resolved: ResolvedConfig) -> Sequence[SegmentCase]:
    """An image seen as a whole, of several blocks, and one seen in windows; heads of 72 and 64 numbers."""
    if not (resolved.sees_images or resolved.model.has_cross_attention):
        return ()
    return SegmentCase((1100,), 72, resolved.dtype), SegmentCase((64,) * 9 + (16, 700), 64, resolved.dtype)


def _run(q: jax.Array, k: jax.Array, v: jax.Array, segments: Segments, implementation: str) -> jax.Array:
    return jax.jit(partial(segment_attention, scale=0.125, implementation=implementation))(q, k, v, segments)


def _find_problem(case: SegmentCase, resolved: ResolvedConfig, run: Callable[..., jax.Array]) -> str | None:
    """The difference from the reference on the CPU in words, None if it is small."""
    total = sum(case.lengths)
    rng, shape = np.random.default_rng(0), (total + _PADDING, _HEADS, case.head_size)
    q, k, v = (jnp.asarray(rng.standard_normal(shape, np.float32).astype(jnp.dtype(case.dtype))) for _ in range(3))
    starts = np.concatenate([[0], np.cumsum(case.lengths)]).astype(np.int32)
    rows = np.pad(np.repeat(np.arange(len(case.lengths), dtype=np.int32), case.lengths), (0, _PADDING))
    counts = jnp.int32(total), jnp.int32(len(case.lengths))
    operands = q, k, v, Segments(jnp.asarray(starts), jnp.asarray(rows), *counts)
    found = np.asarray(run(*operands, resolved.backend("mm_encoder_attn")), np.float32)[:total]
    q, k, v, segments = jax.device_put(operands, jax.local_devices(backend="cpu")[0])
    wanted = np.asarray(_run(q, k, v, segments, "reference"), np.float32)[:total]
    wrong = float(np.nan_to_num(np.abs(found - wanted), nan=np.inf).max())
    return f"it has an error of {wrong:.1e}, and the limit is {_TOLERANCE:.0e}" if wrong > _TOLERANCE else None


TEST = SelfTest(
    "mm_encoder_attn",
    title="attention in encoders by",
    kernels=("tpu", "triton"),
    cases=_cases,
    find_problem=_find_problem,
    run=_run,
)
