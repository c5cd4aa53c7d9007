"""Rotary position embeddings (arXiv 2104.09864) and the ways to stretch them."""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from jaxllm.models.config import RopeConfig

Rotation = tuple[jax.Array, jax.Array]
"""Cosine and sine of every token's angles, both float32 [T, H/2]."""


def frequencies(rope: RopeConfig, head_size: int, max_model_len: int) -> tuple[np.ndarray, float]:
    """Angle per position of each pair of a head, float32 [H/2], and the factor on cosine and sine.

    Dynamic scaling changes the base with the length of the text. Here it is fixed, so that cached keys stay valid and
    a request's tokens do not depend on its neighbours: `max_model_len` counts as the length, as if the text had
    already grown to it. Up to the trained length nothing is scaled.
    """
    plain = _geometric(rope.theta, head_size)
    scaled, factor = _KINDS[rope.kind](rope, plain, head_size, max_model_len)
    return scaled.astype(np.float32), factor


def rotation(rope: RopeConfig, head_size: int, max_model_len: int, positions: jax.Array) -> Rotation:
    """Cosine and sine for `positions` int32 [T], computed once per step for all layers."""
    inverse, factor = frequencies(rope, head_size, max_model_len)
    angles = positions.astype(jnp.float32)[:, None] * inverse
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    return (cos, sin) if factor == 1.0 else (cos * factor, sin * factor)


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
    if max_model_len <= rope.trained_length:
        return plain, 1.0
    growth = rope.factor * max_model_len / rope.trained_length - (rope.factor - 1)
    return _geometric(rope.theta * growth ** (head_size / (head_size - 2)), head_size), 1.0


def _llama3(rope: RopeConfig, plain: np.ndarray, head_size: int, max_model_len: int) -> _Scaled:
    # Turns over the trained length decide: many stay, few are stretched, between them a ramp.
    turns = rope.trained_length * plain / (2 * math.pi)
    keep = np.clip((turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor), 0, 1)
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


_KINDS: dict[str, Callable[[RopeConfig, np.ndarray, int, int], _Scaled]] = {
    "default": _default,
    "linear": _linear,
    "dynamic": _dynamic,
    "llama3": _llama3,
    "yarn": _yarn,
}
