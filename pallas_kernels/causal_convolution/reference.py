"""Causal convolution the obvious way: every token looks for what is before it, in its row or in the row's state."""

import jax
import jax.numpy as jnp


def reference_causal_convolution(
    x: jax.Array,
    states: jax.Array,
    weight: jax.Array,
    bias: jax.Array | None,
    query_start: jax.Array,
    num_drafts: jax.Array | None,
) -> tuple[jax.Array, jax.Array]:
    """See `causal_convolution`. A loop over the rows, for concrete `query_start`."""
    reach = weight.shape[1] - 1
    out, after = jnp.zeros(x.shape, jnp.float32), []
    for row, (first, end) in enumerate(zip(query_start[:-1].tolist(), query_start[1:].tolist(), strict=True)):
        seen = jnp.concatenate([states[row], x[first:end].astype(states.dtype)])
        for token in range(first, end):
            window = seen[token - first : token - first + reach + 1].astype(jnp.float32)
            out = out.at[token].set((window * weight.T.astype(jnp.float32)).sum(0))
        last = len(seen) - (0 if num_drafts is None else int(num_drafts[row]))
        after.append(seen[last - reach : last])
    if bias is not None:
        out = out + bias.astype(jnp.float32)
    return out.astype(x.dtype), jnp.stack(after)
