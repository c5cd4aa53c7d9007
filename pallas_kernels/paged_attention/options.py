"""Options besides plain causal attention."""

from dataclasses import dataclass, field

import jax


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class HeadNorms:
    """Norms of each query and key head by its mean square, with `epsilon` beneath the root (arXiv 1910.07467)."""

    query: jax.Array
    """[H], by which what is normalised is multiplied."""
    key: jax.Array
    """[H], likewise for keys."""
    epsilon: float = field(metadata={"static": True})


@dataclass(frozen=True)
class AttentionOptions:
    """Options of one call. Arrays may be traced, as a scan over layers gives them."""

    scale: float
    """Factor on the scores, usually H ** -0.5."""
    window: int | jax.Array | None = None
    """A token at position p sees the keys at p - window + 1 to p; None or 0 sees all up to p."""
    soft_cap: float | None = None
    """Scores become soft_cap * tanh(score / soft_cap)."""
    sinks: jax.Array | None = None
    """float32 [N], a score per head that takes part in the softmax and has no value (gpt-oss)."""
    alibi_slopes: jax.Array | None = None
    """float32 [N], slope * (key position - query position) is added to the scores, after the cap (arXiv 2108.12409)."""
    k_scale: float | jax.Array | None = None
    """A stored key times this is the key; None means 1.

    Values are clipped to what the cache's type holds, and rounded where it holds integers.
    """
    v_scale: float | jax.Array | None = None
    """Likewise for values."""
    scale_bytes: int = 0
    """Not 0: each token and head of an int8 cache has a scale of its own, see `dynamic_scales`, in so many more numbers
    after a stored head. Then `k_scale` and `v_scale` are None."""
    writes: bool = True
    """Whether the step's keys and values go into the cache. Else they are there already, since an earlier layer has
    written them, and those that are given only have their shape."""
    checks: bool = False
    """For debugging: a kernel for TPUs stops where it leaves an array or a semaphore is wrong, and is slower."""
    head_norms: HeadNorms | None = None
    """Norms that come before the rotation, where a backend rotates (`Backend.merged`)."""
