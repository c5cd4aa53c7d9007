"""How far the queries of a block see, where some see later ones of their span."""

from typing import Any

import jax.numpy as jnp
from jax import lax

from jaxllm.pallas_kernels.paged_attention.tpu.common import Options, Seen
from jaxllm.pallas_kernels.paged_attention.tpu.prefill_copies import Span
from jaxllm.pallas_kernels.tpu_common.constants import Ref


def find_bounds(seen: Seen, bounds: Ref, span: Span, options: Options) -> None:
    """Write the end of what each row of a block of queries sees to `bounds`, int32 [1, rows].

    Row m is of query m // group: instead of dividing, ends are counted from the block's first query and multiplied with
    the group. Spans are few, and each is found from the end of the one before it.
    """
    group, end = options.dims.group_rows, span.token + span.end - span.begin
    row = lax.broadcasted_iota(jnp.int32, bounds.shape, 1)
    bounds[...] = row + 1

    def one(token: Any) -> Any:
        until = seen.until[token] - span.begin
        inside = (row >= (token - span.token) * group) & (row < until * group)
        bounds[...] = jnp.where(inside, until * group, bounds[...])
        return _following(seen, span.token + until, end)

    lax.while_loop(lambda token: token < end, one, _following(seen, span.token, end))


def _following(seen: Seen, token: Any, end: Any) -> Any:
    """The first token from `token` on that sees later ones; `end` or more where it is not in the block."""
    inside = token < end
    return jnp.where(inside, seen.next_seeing[jnp.where(inside, token, 0)], end)
