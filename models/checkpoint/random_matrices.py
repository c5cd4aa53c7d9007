"""Random arrays of matrices of few bits."""

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np

from jaxllm.models.layers.parameter import ParameterSpec, Rows
from jaxllm.pallas_kernels.linear.weight_type import Values, WeightType

LARGEST_ACTIVATION = 6.0
"""The magnitude for which static scales of activations are made: norms leave them about 1."""


def constant_array(spec: ParameterSpec, shape: tuple[int, ...]) -> jax.Array | None:
    """An array that is the same in every matrix: the order of inputs, or the scale of activations; None for others."""
    assert spec.matrix is not None
    if spec.name == "order":
        return jnp.broadcast_to(jnp.arange(shape[-1], dtype=jnp.int32), shape)
    if spec.name == "input_scale":
        return jnp.full(shape, LARGEST_ACTIVATION / _largest(spec.matrix.kind), jnp.float32)
    return None


def from_bits(bits: jax.Array, *, spec: ParameterSpec, rows: Rows) -> jax.Array:
    """Values, scales or offsets [layers, rows, ...] from uint32 of that shape, with a variance of 1 / in in all."""
    assert spec.matrix is not None
    kind, in_size = spec.matrix.kind, spec.matrix.shape[1]
    if spec.name == "values":
        return _values(bits, kind)
    is_used = jnp.arange(bits.shape[1], dtype=jnp.uint32)[:, None] < bits.shape[1] - rows.padding
    mean, deviation = _distribution(kind)
    scale = in_size**-0.5 / deviation
    filled = scale if spec.name == "scales" else -mean * scale
    return jnp.broadcast_to(jnp.where(is_used, jnp.float32(filled), 0), bits.shape).astype(spec.array.dtype)


def _values(bits: jax.Array, kind: WeightType) -> jax.Array:
    top = (bits >> np.uint32(24)).astype(jnp.uint8)
    if kind.values == Values.CODES:
        return top
    signed = jax.lax.bitcast_convert_type(top, jnp.int8)
    return signed if kind.values == Values.INT8 else (signed.astype(jnp.float32) / 128).astype(kind.array_type)


def _distribution(kind: WeightType) -> tuple[float, float]:
    """Mean and standard deviation of values."""
    if kind.code is not None:
        return float(np.mean(kind.code)), float(np.std(kind.code))
    return (-0.5, 256 / 12**0.5) if kind.values == Values.INT8 else (0.0, 2 / 12**0.5)


def _largest(kind: WeightType) -> float:
    return 127.0 if kind.values == Values.INT8 else float(ml_dtypes.finfo(kind.array_type).max)
