"""How Mosaic compiles kernels that start their own copies."""

from jax.experimental.pallas import tpu as pltpu


def compiler_params(vmem_bytes: int, *, checks: bool) -> pltpu.CompilerParams:
    """How the kernels are compiled.

    Usually without `checks` of bounds and semaphores: they are two thirds of what it takes to start a DMA. Page tables
    come from the engine, which checks its own integrity, and the interpreter checks every bound.
    """
    return pltpu.CompilerParams(
        dimension_semantics=("arbitrary",),
        has_side_effects=True,
        vmem_limit_bytes=vmem_bytes,
        disable_bounds_checks=not checks,
        disable_semaphore_checks=not checks,
    )
