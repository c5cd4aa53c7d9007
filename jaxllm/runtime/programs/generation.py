"""What each executable of an engine is made from: a function, the shapes of its arguments, and what comes out."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Mesh, NamedSharding

from jaxllm.models.causal_lm import CausalLM
from jaxllm.models.sharding import sharding
from jaxllm.pallas_kernels.numba.zeros import zeros
from jaxllm.runtime.programs.buckets import Bucket
from jaxllm.runtime.sampling.constrained import constrained_layout, make_sample_constrained
from jaxllm.runtime.sampling.listed import listed_layout, make_listed_logprobs
from jaxllm.runtime.sampling.logprobs import Logprobs
from jaxllm.runtime.sampling.rows import set_bias, set_row
from jaxllm.runtime.sampling.sampler import SampledRows
from jaxllm.runtime.sampling.table import UPDATE_SIZE
from jaxllm.runtime.sampling.vocabulary import SAME, SPLIT, over_vocabulary
from jaxllm.runtime.step import (
    PROMPT_LOGPROB_ROWS,
    DeviceState,
    StepShape,
    copy_pages,
    make_prompt_logprobs,
    make_step,
    set_pages,
)

Shapes = Any
"""A pytree of `jax.ShapeDtypeStruct`."""

Key = Bucket | str
"""Names an executable: the bucket of a step, or one of `OTHERS`."""

OTHERS = (
    "empty_state", "prompt_logprobs", "listed_logprobs", "sample_constrained", "set_row", "set_bias", "set_pages",
    "copy_pages",
)  # fmt: skip
"""The executables beside the steps, which have one shape each."""


class Spec(Protocol):
    """What an engine's executables are made from."""

    @property
    def mesh(self) -> Mesh | None:
        """The devices; None is JAX's default device."""

    @property
    def shape(self) -> Any:
        """What all steps have in common, a dataclass."""

    @property
    def has_little_of_xla(self) -> bool:
        """Whether kernels of our own do nearly all of the work."""

    @property
    def arrays(self) -> Any:
        """Shapes of all that stays on the device."""

    @property
    def named(self) -> dict[str, Any]:
        """What the executables depend on beyond shapes, as plain data, by the names of options."""
        ...

    def keys(self, buckets: Iterable[Bucket]) -> "list[Key]":
        """Every executable of an engine with these buckets, the longest to compile first."""
        ...

    def recipe(self, key: "Key") -> "Recipe":
        """How the executable `key` is made."""
        ...


@dataclass(frozen=True)
class StepSpec:
    """All that determines the executables: the model's graph, the shapes of its arrays, and of a step."""

    graph: nnx.GraphDef[CausalLM]
    parameters: Shapes
    state: DeviceState
    """Shapes of the device state."""
    shape: StepShape
    mesh: Mesh | None = None
    """The devices, see `jaxllm.models.sharding`; None is JAX's default device."""
    has_little_of_xla: bool = False
    """Whether kernels of our own do nearly all of the work."""

    def host(self, shape: tuple[int, ...] = (), dtype: Any = np.int32, *axes: str | None) -> jax.ShapeDtypeStruct:
        """An array that comes from the host, whole on every device unless `axes` say otherwise."""
        return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding(self.mesh, *axes))

    @property
    def arrays(self) -> Any:
        """Shapes of all that stays on the device."""
        return self.parameters, self.state

    @property
    def named(self) -> dict[str, Any]:
        """What the executables depend on beyond shapes, as plain data, by the names of options."""
        return {"max_logprobs": self.shape.max_logprobs}

    def keys(self, buckets: Iterable[Bucket]) -> "list[Key]":
        """Every executable of an engine with these buckets, the longest to compile first."""
        return all_keys(buckets)

    def recipe(self, key: "Key") -> "Recipe":
        """How the executable `key` is made."""
        return recipe(self, key)

    @property
    def whole(self) -> NamedSharding | None:
        """Where results go that the host reads."""
        return sharding(self.mesh)


@dataclass(frozen=True)
class Recipe:
    """How to make one executable.

    `result` has the structure of what the function returns; its leaves mean nothing.
    """

    function: Callable[..., Any]
    arguments: tuple[Shapes, ...]
    result: Any
    donated: tuple[int, ...] = ()
    out_shardings: Any = None
    mesh: Mesh | None = None

    def lower(self) -> jax.stages.Lowered:
        """Trace the function and lower it."""
        made = jax.jit(self.function, donate_argnums=self.donated, out_shardings=self.out_shardings)
        if self.mesh is None:
            return made.lower(*self.arguments)
        # Kernels for TPUs learn from it which chip they are for.
        with jax.set_mesh(self.mesh):
            return made.lower(*self.arguments)


def all_keys(buckets: Iterable[Bucket]) -> list[Key]:
    """Every executable of an engine with these buckets, the longest to compile first."""
    return [*sorted(buckets, reverse=True), *OTHERS]


def name_of(key: Key) -> str:
    """`step_64` for the bucket of 64 tokens."""
    return f"step_{key.tokens}" if isinstance(key, Bucket) else key


def recipe(spec: StepSpec, key: Key) -> Recipe:
    """How the executable `key` is made."""
    if isinstance(key, Bucket):
        return _step(spec, key)
    return {
        "empty_state": _empty_state,
        "prompt_logprobs": _prompt_logprobs,
        "listed_logprobs": _listed_logprobs,
        "sample_constrained": _sample_constrained,
        "set_row": _set_row,
        "set_bias": _set_bias,
        "set_pages": _set_pages,
        "copy_pages": _copy_pages,
    }[key](spec)


def _step(spec: StepSpec, bucket: Bucket) -> Recipe:
    function = make_step(spec.graph, spec.shape, bucket)
    leaves, tree = jax.tree.flatten(spec.parameters)

    def step(leaves: tuple[Any, ...], state: DeviceState, packed: jax.Array) -> Any:
        return function(jax.tree.unflatten(tree, leaves), state, packed)

    step.__name__ = f"step_{bucket.tokens}_tokens"
    arguments = (tuple(leaves), spec.state, spec.host((spec.shape.layout(bucket).size,)))
    return Recipe(
        step,
        arguments,
        (SampledRows(_LEAF, _LOGPROBS), spec.state),
        donated=(1,),
        out_shardings=(spec.whole, _shardings(spec.state)),
        mesh=spec.mesh,
    )


def _empty_state(spec: StepSpec) -> Recipe:
    def empty_state() -> DeviceState:
        state = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), spec.state)
        cache = spec.state.kv_cache
        return replace(state, kv_cache=zeros(cache.shape, cache.dtype)) if spec.has_little_of_xla else state

    return Recipe(empty_state, (), spec.state, out_shardings=_shardings(spec.state), mesh=spec.mesh)


def _prompt_logprobs(spec: StepSpec) -> Recipe:
    function = make_prompt_logprobs(spec.graph, spec.shape.max_logprobs)
    leaves, tree = jax.tree.flatten(spec.parameters)

    def prompt_logprobs(leaves: tuple[Any, ...], *arguments: jax.Array) -> Any:
        return function(jax.tree.unflatten(tree, leaves), *arguments)

    arguments = (tuple(leaves), spec.state.hidden, spec.host(), spec.host((PROMPT_LOGPROB_ROWS,)))
    return Recipe(prompt_logprobs, arguments, _LOGPROBS, out_shardings=spec.whole, mesh=spec.mesh)


def _listed_logprobs(spec: StepSpec) -> Recipe:
    layout = listed_layout(spec.state.last_tokens.shape[0])
    function = make_listed_logprobs(spec.graph, layout)
    leaves, tree = jax.tree.flatten(spec.parameters)

    def listed_logprobs(leaves: tuple[Any, ...], *arguments: jax.Array) -> Any:
        return function(jax.tree.unflatten(tree, leaves), *arguments)

    arguments = (tuple(leaves), spec.state.hidden, spec.host((layout.size,)))
    return Recipe(listed_logprobs, arguments, _LEAF, out_shardings=spec.whole, mesh=spec.mesh)


def _sample_constrained(spec: StepSpec) -> Recipe:
    state = spec.state
    layout = constrained_layout(state.sampling)
    function = make_sample_constrained(spec.graph, spec.shape, layout)
    leaves, tree = jax.tree.flatten(spec.parameters)

    def sample_constrained(leaves: tuple[Any, ...], *arguments: Any) -> Any:
        return function(jax.tree.unflatten(tree, leaves), *arguments)

    arguments = (tuple(leaves), state.hidden, state.sampling, state.last_tokens, spec.host((layout.size,)))
    return Recipe(
        sample_constrained,
        arguments,
        (SampledRows(_LEAF, _LOGPROBS), state.sampling, _LEAF),
        donated=(2, 3),
        out_shardings=(spec.whole, _shardings(state.sampling), _shardings(state.last_tokens)),
        mesh=spec.mesh,
    )


def _set_row(spec: StepSpec) -> Recipe:
    state = spec.state.sampling
    rows = [spec.host(state.bias.shape[1:], dtype, "vocab") for dtype in (np.int32, np.bool_, np.float32)]
    return Recipe(
        set_row, (state, spec.host(), *rows), state, donated=(0,), out_shardings=_shardings(state), mesh=spec.mesh
    )


def _set_bias(spec: StepSpec) -> Recipe:
    state = spec.state.sampling
    entries = [spec.host((UPDATE_SIZE,), dtype) for dtype in (np.int32, np.int32, np.float32)]
    # Each device changes its part: left to itself, the compiler would gather the whole array for it.
    function = over_vocabulary(set_bias, spec.mesh, (SPLIT, SAME, SAME, SAME), SPLIT)
    return Recipe(function, (state, *entries), state, donated=(0,), out_shardings=_shardings(state), mesh=spec.mesh)


def _set_pages(spec: StepSpec) -> Recipe:
    table, rows = spec.state.page_table, spec.shape.rows_at_once
    arguments = (table, spec.host((rows,)), spec.host((rows, table.shape[1])))
    return Recipe(set_pages, arguments, _LEAF, donated=(0,), out_shardings=_shardings(table), mesh=spec.mesh)


def _copy_pages(spec: StepSpec) -> Recipe:
    cache = spec.state.kv_cache
    # In one step, each slot can get a copy of one page.
    arguments = (cache, spec.host((2, spec.state.last_tokens.shape[0])), spec.host())
    return Recipe(copy_pages, arguments, _LEAF, donated=(0,), out_shardings=_shardings(cache), mesh=spec.mesh)


def _shardings(state: Any) -> Any:
    """Where the leaves of a device state stay."""
    return jax.tree.map(lambda leaf: leaf.sharding, state)


_LEAF: Any = 0
_LOGPROBS = Logprobs(_LEAF, _LEAF, _LEAF, _LEAF)
