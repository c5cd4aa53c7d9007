"""What executables are compiled from: one program each, and the set of all programs of an engine."""

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Generic, TypeVar

import jax
from jax.sharding import Mesh

from jaxllm.executor.compile.buckets import Bucket, Buckets
from jaxllm.executor.compile.compiler import compile_lowered

Shapes = Any
"""A pytree of `jax.ShapeDtypeStruct`."""

Executable = jax.stages.Compiled
"""A compiled program, called with arrays like its arguments."""

State = TypeVar("State")


def platform_of(mesh: Mesh | None) -> str:
    """The platform of the devices of a mesh; None is JAX's default device."""
    return jax.default_backend() if mesh is None else str(mesh.devices.flat[0].platform)


@dataclass(frozen=True)
class Program:
    """How to make one executable.

    `result` has the structure of what the function returns; its leaves mean nothing.
    """

    function: Callable[..., Any]
    arguments: tuple[Shapes, ...]
    result: Any
    donated: tuple[int, ...] = ()
    out_shardings: Any = None
    mesh: Mesh | None = None

    @property
    def platform(self) -> str:
        """The platform it is compiled for."""
        return platform_of(self.mesh)

    def lower(self) -> jax.stages.Lowered:
        """Trace the function and lower it."""
        # An object of its own: for a function that JAX has met, such as one of a module, it hands out the executable
        # that it has in memory. That may come from JAX's cache on disk, which cannot be serialised again.
        function = partial(self.function)
        made = jax.jit(function, donate_argnums=self.donated, out_shardings=self.out_shardings)
        if self.mesh is None:
            return made.lower(*self.arguments)
        # Kernels for TPUs learn from it which chip they are for.
        with jax.set_mesh(self.mesh):
            return made.lower(*self.arguments)

    def compile(self, options: Mapping[str, Any]) -> Executable:
        """The executable, compiled with options of XLA's."""
        return compile_lowered(self.lower(), self.platform, options)


def program_from_leaves(
    name: str,
    function: Callable[..., Any],
    parameters: Shapes,
    *others: Shapes,
    precision: str | None = None,
    **options: Any,
) -> Program:
    """A program of the parameters' leaves and `others`, from a function of the parameters and `others`.

    `precision` is that of products which do not say it themselves; `options` are those of `Program`.
    """
    leaves, tree = jax.tree.flatten(parameters)

    def call(leaves: tuple[Any, ...], *others: Any) -> Any:
        with jax.default_matmul_precision(precision) if precision else nullcontext():
            return function(jax.tree.unflatten(tree, leaves), *others)

    call.__name__ = name
    return Program(call, (tuple(leaves), *others), **options)


@dataclass(frozen=True)
class ProgramSet(Generic[State]):
    """All programs of an engine. What is compiled, measured, cached, bundled and run is taken from this list."""

    step: Callable[[Bucket], Program]
    """The step of a bucket, be it one of `buckets` or not."""
    others: Mapping[str, Program]
    """The programs besides the steps, which have one shape each, by name."""
    buckets: Buckets
    """The shapes of the engine's steps."""
    shape: Any
    """The shape that all steps share, a dataclass."""
    parameters: Shapes
    state: State
    """Shapes of what else stays on the device; None where nothing does."""
    options: Mapping[str, Any]
    """What the programs depend on beyond shapes, as plain data, by the names of options."""
    mesh: Mesh | None = None
    """The devices, see `jaxllm.models.sharding`; None is JAX's default device."""
    uses_native_kernels: bool = False
    """Whether kernels that XLA only calls do nearly all of the work."""

    @cached_property
    def programs(self) -> dict[str, Program]:
        """By name, the longest to compile first."""
        steps = {bucket.name: self.step(bucket) for bucket in sorted(self.buckets.all, reverse=True)}
        return {**steps, **self.others}
