"""The order in which the kernel computes: which group's rows, in which window of rows."""

from typing import NamedTuple

import jax
import jax.numpy as jnp


class Visits(NamedTuple):
    """A visit is one group in one window, the rows that both have. Windows come one after the other."""

    group: jax.Array
    """int32 [V]."""
    window: jax.Array
    """int32 [V]."""
    ends: jax.Array
    """int32 [G + 1]: after how many rows the groups before each one end, and after how many the last."""
    total: jax.Array
    """int32 []: how many visits there are, at least one, which may be without rows."""

    @classmethod
    def of(cls, sizes: jax.Array, rows: int, window: int) -> "Visits":
        """The visits of groups of `sizes` int32 [G] in `rows` rows, in windows of `window` rows."""
        groups, windows = len(sizes), -(-rows // window)
        ends = jnp.cumsum(sizes)
        starts = ends - sizes
        first = starts // window
        each = jnp.where(sizes > 0, (ends - 1) // window - first + 1, 0)
        after = jnp.cumsum(each)
        # Groups meet in a window at most once for each that has rows.
        number = jnp.arange(windows + min(groups, rows) - 1, dtype=jnp.int32)
        group = jnp.minimum((after[None, :] <= number[:, None]).sum(axis=1, dtype=jnp.int32), groups - 1)
        own = first[group] + number - (after[group] - each[group])
        return cls(
            group,
            jnp.clip(own, 0, windows - 1),
            jnp.concatenate([jnp.zeros(1, jnp.int32), ends]),
            jnp.maximum(after[-1], 1),
        )
