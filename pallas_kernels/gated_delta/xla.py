"""The gated delta rule in plain XLA operations.

A chunk of C tokens is a system of C linear equations: each token's correction depends on those before it. It is solved
once for all heads, then everything is products of matrices (arXiv 2412.06464, section 3.3; arXiv 2406.06484).
"""

from functools import partial

import jax
import jax.numpy as jnp
from jax import lax

from jaxllm.pallas_kernels.gated_delta.by_channel import chunk_by_channel, step_by_channel
from jaxllm.pallas_kernels.gated_delta.inputs import GatedDeltaInputs
from jaxllm.pallas_kernels.gated_delta.inverse import solve
from jaxllm.pallas_kernels.recurrence import LayerStates
from jaxllm.pallas_kernels.recurrence.run import run_rows

_einsum = partial(jnp.einsum, precision=lax.Precision.HIGHEST, preferred_element_type=jnp.float32)


class _GatedDelta:
    def kept(self, inputs: GatedDeltaInputs) -> tuple[jax.Array, ...]:
        """See `Recurrence`."""
        return inputs[1:]

    def restored(self, kept: tuple[jax.Array, ...]) -> GatedDeltaInputs:
        """See `Recurrence`."""
        return GatedDeltaInputs(kept[0], *kept)

    def step(self, inputs: GatedDeltaInputs, states: jax.Array) -> tuple[jax.Array, jax.Array]:
        """See `Recurrence`."""
        if inputs.decay.ndim == inputs.key.ndim:
            return step_by_channel(inputs, states)
        query, key, value, decay, rate = inputs.repeat_for_value_heads()
        kept = jnp.exp(decay)[:, :, None]
        # The state is read once for both, and once more to be written.
        seen = _einsum("bvxh,bvhe->bvxe", jnp.stack([key, query], axis=2), states) * kept[..., None]
        change = (value - seen[:, :, 0]) * rate[:, :, None]
        out = seen[:, :, 1] + (query * key).sum(axis=-1, keepdims=True) * change
        return out, states * kept[..., None] + key[..., None] * change[:, :, None]

    def chunk(self, inputs: GatedDeltaInputs, state: jax.Array, length: jax.Array) -> tuple[jax.Array, jax.Array]:
        """See `Recurrence`."""
        if inputs.decay.ndim == inputs.key.ndim:
            return chunk_by_channel(inputs, state, length)
        size = len(inputs.key)
        number = jnp.arange(size, dtype=jnp.int32)
        query, key, value, decay, rate = (jnp.moveaxis(each, 1, 0) for each in inputs.repeat_for_value_heads())
        is_token = number < length
        # Without decay and with a rate of zero a token changes nothing.
        total = jnp.cumsum(jnp.where(is_token, decay, 0.0), axis=1)
        rate = jnp.where(is_token, rate, 0.0)[:, :, None]
        is_seen = number[:, None] >= number
        between = jnp.exp(jnp.where(is_seen, total[:, :, None] - total[:, None], -jnp.inf))
        system = _einsum("vih,vjh->vij", key * rate, key) * between
        since_start = jnp.exp(total)[:, :, None]
        before = _einsum("vih,vhe->vie", key, state) * since_start
        change = solve(system, (value - before) * rate)
        scores = _einsum("vih,vjh->vij", query, key) * between
        out = _einsum("vih,vhe->vie", query * since_start, state) + _einsum("vij,vje->vie", scores, change)
        to_end = jnp.exp(total[:, -1:] - total)[:, :, None]
        state = state * since_start[:, -1:] + _einsum("vih,vie->vhe", key * to_end, change)
        return jnp.moveaxis(out, 0, 1), state


def xla_gated_delta(
    inputs: GatedDeltaInputs, states: LayerStates, *, platform: str = "cpu"
) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    """See `gated_delta`."""
    out = jax.ShapeDtypeStruct(inputs.value.shape, inputs.value.dtype)
    return run_rows(_GatedDelta(), inputs, out, states, platform=platform)
