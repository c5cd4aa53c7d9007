"""Rotary position embeddings (arXiv 2104.09864) and the ways to stretch them."""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from jaxllm.models.attention_plan import QueryScale, RopeConfig

Rotation = tuple[jax.Array, jax.Array]
"""Cosine and sine of every token's angles, both float32 [T, H/2]."""


def frequencies(rope: RopeConfig, head_size: int, max_model_len: int) -> tuple[np.ndarray, float]:
    """Angle per position of each pair that is rotated, float32 [at most H/2], and the factor on cosine and sine.

    Dynamic scaling changes the base with the length of the text. Here it is fixed, so that cached keys stay valid and
    a request's tokens do not depend on its neighbours: `max_model_len` counts as the length, as if the text had
    already grown to it. Up to the trained length nothing is scaled.
    """
    size = rope.rotary_size or rope.head_size or head_size
    plain = _geometric(rope.theta, size)
    scaled, factor = _KINDS[rope.kind](rope, plain, size, max_model_len)
    return scaled.astype(np.float32), factor


def rotation(
    rope: RopeConfig, head_size: int, max_model_len: int, positions: jax.Array, learned: jax.Array | None = None
) -> Rotation:
    """Cosine and sine for `positions` int32 [T] or [3, T], computed once per step for all layers.

    The angles of pairs that are not rotated are zero. Without sections, pairs turn by the first of three parts.
    Frequencies are multiplied by what is `learned`, float32 [pairs], if anything is.
    """
    plain, factor = frequencies(rope, head_size, max_model_len)
    inverse = plain if learned is None else plain * learned
    if positions.ndim == 1:
        angles = positions.astype(jnp.float32)[:, None] * inverse
    else:
        angles = positions.astype(jnp.float32)[pair_parts(rope, len(inverse))].T * inverse
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    if factor != 1.0:
        cos, sin = cos * factor, sin * factor
    rest = (0, (rope.head_size or head_size) // 2 - len(inverse))
    if not rest[1]:
        return cos, sin
    return jnp.pad(cos, ((0, 0), rest), constant_values=1.0), jnp.pad(sin, ((0, 0), rest))


def pair_parts(rope: RopeConfig, num_pairs: int) -> np.ndarray:
    """Which part of a position turns each pair: 0 time, 1 height, 2 width; int32 [num_pairs]."""
    parts = np.zeros(num_pairs, np.int32)
    if rope.sections and not rope.mixes_sections:
        parts = np.repeat(np.arange(len(rope.sections), dtype=np.int32), rope.sections)
    for part, count in enumerate(rope.sections if rope.mixes_sections else ()):
        if part:
            parts[part : 3 * count : 3] = part
    return parts


def pair_order(rope: RopeConfig | None, head_size: int) -> tuple[int, ...] | None:
    """Where the elements of a head in memory are in that of a checkpoint; None where none moves.

    Pairs are half a head apart in memory, those that are rotated first. Queries and keys move alike, so that their
    products stay what they are.
    """
    if rope is None or (rope.rotary_size is None and not rope.interleaved):
        return None
    size = rope.rotary_size or head_size
    pairs = np.arange(size).reshape(-1, 2) if rope.interleaved else np.arange(size).reshape(2, -1).T
    rest = np.arange(size, head_size).reshape(2, -1)
    first, second = (np.concatenate([pairs[:, side], rest[side]]) for side in (0, 1))
    return tuple(np.concatenate([first, second]).tolist())


def rotate(x: jax.Array, by: Rotation) -> jax.Array:
    """Rotate heads [T, heads, H]; element i of the first half pairs with element i of the second."""
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    cos, sin = by[0][:, None, :], by[1][:, None, :]
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1).astype(x.dtype)


_Scaled = tuple[np.ndarray, float]


def _geometric(theta: float, head_size: int) -> np.ndarray:
    # In float64: at position 100,000 one unit in the last place of a float32 frequency is an angle of 0.01.
    return 1.0 / theta ** (np.arange(0, head_size, 2, dtype=np.float64) / head_size)


def _default(rope: RopeConfig, plain: np.ndarray, head_size: int, max_model_len: int) -> _Scaled:
    return plain, 1.0


def _linear(rope: RopeConfig, plain: np.ndarray, head_size: int, max_model_len: int) -> _Scaled:
    return plain / rope.factor, 1.0


def _dynamic(rope: RopeConfig, plain: np.ndarray, head_size: int, max_model_len: int) -> _Scaled:
    if rope.alpha is not None:
        return _geometric(rope.theta * rope.alpha ** (head_size / (head_size - 2)), head_size), 1.0
    if max_model_len <= rope.trained_length:
        return plain, 1.0
    growth = rope.factor * max_model_len / rope.trained_length - (rope.factor - 1)
    return _geometric(rope.theta * growth ** (head_size / (head_size - 2)), head_size), 1.0


def _llama3(rope: RopeConfig, plain: np.ndarray, head_size: int, max_model_len: int) -> _Scaled:
    # Turns over the trained length decide: many stay, few are stretched, between them a ramp.
    turns = rope.trained_length * plain / (2 * math.pi)
    ramp = rope.high_freq_factor - rope.low_freq_factor
    # Llama 4 Scout has a step in the ramp's place.
    keep = np.clip((turns - rope.low_freq_factor) / ramp, 0, 1) if ramp else turns > rope.low_freq_factor
    return plain * (keep + (1 - keep) / rope.factor), 1.0


def _yarn(rope: RopeConfig, plain: np.ndarray, head_size: int, max_model_len: int) -> _Scaled:
    """YaRN (arXiv 2309.00071): the ramp runs over the index of the pair, between two numbers of turns."""

    def pair_of(turns: float) -> float:
        return head_size * math.log(rope.trained_length / (turns * 2 * math.pi)) / (2 * math.log(rope.theta))

    low, high = pair_of(rope.beta_fast), pair_of(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_size - 1)
    span = (high - low) or 0.001
    stretch = np.clip((np.arange(head_size // 2) - low) / span, 0, 1)
    return plain * ((1 - stretch) + stretch / rope.factor), _yarn_factor(rope)


def _yarn_factor(rope: RopeConfig) -> float:
    def temper(weight: float) -> float:
        return 0.1 * weight * math.log(rope.factor) + 1.0 if rope.factor > 1 else 1.0

    if rope.attention_factor is not None:
        return rope.attention_factor
    if rope.mscale and rope.mscale_all_dim:
        return temper(rope.mscale) / temper(rope.mscale_all_dim)
    return temper(1.0)


def _longrope(rope: RopeConfig, plain: np.ndarray, head_size: int, max_model_len: int) -> _Scaled:
    """LongRoPE (arXiv 2402.13753): a factor for each pair, searched for short texts and for long ones."""
    factors = rope.long_factors if max_model_len > rope.trained_length else rope.short_factors
    return plain / np.asarray(factors), rope.attention_factor or 1.0


def _proportional(rope: RopeConfig, plain: np.ndarray, head_size: int, max_model_len: int) -> _Scaled:
    # What is missing after them is not rotated.
    return plain[: int(rope.part * head_size // 2)] / rope.factor, 1.0


_KINDS: dict[str, Callable[[RopeConfig, np.ndarray, int, int], _Scaled]] = {
    "default": _default,
    "linear": _linear,
    "dynamic": _dynamic,
    "llama3": _llama3,
    "yarn": _yarn,
    "longrope": _longrope,
    "proportional": _proportional,
}


def query_growth(scale: QueryScale, positions: jax.Array) -> jax.Array:
    """Factor on each query, float32 [T], at `positions` int32 [T]."""
    return 1.0 + scale.beta * jnp.log1p(((positions + scale.offset) // scale.length).astype(jnp.float32))
