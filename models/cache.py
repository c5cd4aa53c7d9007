"""State of a decoder's layers on the devices from step to step."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from jax.tree_util import register_dataclass
from jax.typing import DTypeLike

from jaxllm.models.cache_plan import CachePlan

States = tuple[jax.Array, ...]
"""The arrays of a `StateGroup`, [layers, slots, ...] each."""


@register_dataclass
@dataclass(frozen=True)
class Cache:
    """Keys and values in pages, and states in slots, where `CachePlan` puts them; donated and updated in place.

    `pages` are pools of pages, [L, P, C, 2K, H] each or as the attention has it (see `cache_shape`); there is none
    where no layer has attention. `states` has the arrays of each group of recurrent layers.
    """

    pages: tuple[jax.Array, ...]
    states: tuple[States, ...] = ()

    def of(self, group: int | None) -> jax.Array | States:
        """What a layer reads and writes, whose `CachePlan.groups` is `group`. No arrays where no states are kept."""
        if group is None:
            return self.pages[0]
        return self.states[group] if self.states else ()

    def updated(self, group: int | None, own: jax.Array | States) -> "Cache":
        """The cache with what a layer has made of its part."""
        if group is None:
            assert isinstance(own, jax.Array)
            return replace(self, pages=(own,))
        assert isinstance(own, tuple)
        return replace(self, states=(*self.states[:group], own, *self.states[group + 1 :])) if self.states else self


def make_cache(
    plan: CachePlan,
    pages: tuple[int, ...],
    slots: int,
    dtype: DTypeLike,
    make: Callable[..., Any] | None = None,
    axes: tuple[str | None, ...] = (None, None, None, "kv_heads"),
    page_dtype: DTypeLike | None = None,
) -> Cache:
    """The arrays of a plan, with `pages` as the shape of a pool, and room for the states of so many slots.

    `dtype` is that of activations. `make(shape, dtype, *axes)` makes an array whose axes have these logical names,
    zeros by default. `axes` are those of `pages`, and `page_dtype` their type, by default `dtype`.
    """
    if make is None:

        def make(shape: tuple[int, ...], dtype: DTypeLike, *axes: str | None) -> Any:
            return jnp.zeros(shape, dtype)

    return Cache(
        (make(pages, dtype if page_dtype is None else page_dtype, *axes),) if plan.depth else (),
        tuple(
            tuple(
                make((group.count, slots, *each.shape), jnp.dtype(each.dtype or dtype), None, None, *each.axes)
                for each in group.arrays
            )
            for group in plan.states
        ),
    )
