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
"""The arrays of a `StateGroup`, [layers, slots, ...] each, or [layers, slots, K, ...] for inputs of K drafts."""


@register_dataclass
@dataclass(frozen=True)
class ChosenPages:
    """Pages of latents, and which keys the tokens of a step see in layers that share a choice of them."""

    pages: jax.Array
    places: jax.Array
    """int32 [T, top], see `jaxllm.pallas_kernels.latent_attention.ChosenKeys`."""


@register_dataclass
@dataclass(frozen=True)
class Cache:
    """Keys and values in pages, and states in slots, where `CachePlan` puts them; donated and updated in place.

    `pages` are pools of pages, [L, P, C, 2K, H] each or as the attention has it (see `cache_shape`); there is none
    where no layer has attention. `states` has the arrays of each group of recurrent layers, and `draft_inputs` those
    for its drafts, if there are any. Within a step, `places` are those that layers share, see `ChosenPages`.
    """

    pages: tuple[jax.Array, ...]
    states: tuple[States, ...] = ()
    draft_inputs: tuple[States, ...] = ()
    places: jax.Array | None = None

    def of(self, group: int | None) -> jax.Array | States | ChosenPages:
        """What a layer reads and writes, whose `CachePlan.groups` is `group`. No arrays where no states are kept."""
        if group is None:
            return self.pages[0] if self.places is None else ChosenPages(self.pages[0], self.places)
        if not self.states:
            return ()
        return self.states[group] + (self.draft_inputs[group] if self.draft_inputs else ())

    def updated(self, group: int | None, own: jax.Array | States | ChosenPages) -> "Cache":
        """The cache with what a layer has made of its part."""
        if isinstance(own, ChosenPages):
            return replace(self, pages=(own.pages,), places=own.places)
        if group is None:
            assert isinstance(own, jax.Array)
            return replace(self, pages=(own,))
        assert isinstance(own, tuple)
        if not self.states:
            return self
        count = len(self.states[group])
        updated = replace(self, states=_with(self.states, group, own[:count]))
        return replace(updated, draft_inputs=_with(self.draft_inputs, group, own[count:])) if own[count:] else updated


def _with(groups: tuple[States, ...], group: int, own: States) -> tuple[States, ...]:
    return (*groups[:group], own, *groups[group + 1 :])


def make_cache(
    plan: CachePlan,
    pages: tuple[int, ...],
    slots: int,
    dtype: DTypeLike,
    make: Callable[..., Any] | None = None,
    axes: tuple[str | None, ...] = (None, None, None, "kv_heads"),
    page_dtype: DTypeLike | None = None,
    drafts: tuple[int, int] = (0, 0),
) -> Cache:
    """The arrays of a plan, with `pages` as the shape of a pool, and room for the states of so many slots.

    `drafts` are how many of these slots may have drafts, the first ones, and how many drafts.

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
        tuple(
            tuple(
                make((group.count, *drafts, *each.shape), jnp.dtype(each.dtype or dtype), None, None, None, *each.axes)
                for each in group.draft_inputs
            )
            for group in plan.states
            if drafts[1]
        ),
    )
