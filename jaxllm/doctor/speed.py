"""Stage `speed`: copies between host and device, memory of the device, and matrix products, compared with the chip's
peaks.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxllm.doctor.result import Context, Outcome
from jaxllm.doctor.timing import best_seconds, share
from jaxllm.pallas_kernels.chips import chip_of

LEAST_BANDWIDTH, LEAST_FLOPS = 0.6, 0.5
"""Shares of the peaks below which a device is called slow."""

_COPY_BYTES = {"cpu": 2**25}
_MEMORY_BYTES = {"cpu": 2**27}
_SIZES = {"cpu": 1024}
_REPEATS = {"cpu": 1}
_OTHER_COPY_BYTES, _OTHER_MEMORY_BYTES, _OTHER_SIZE, _OTHER_REPEATS = 2**28, 2**30, 8192, 10


def run(context: Context) -> Outcome:
    """Measure the default device."""
    device = jax.local_devices()[0]
    chip = chip_of(device.device_kind)
    figures: dict[str, Any] = {"device": device.device_kind, "chip": None if chip is None else chip.name}
    context.say("copying to the device")
    figures["to_device_bytes_per_s"], figures["to_host_bytes_per_s"] = _copies(device)
    context.say("copying within the device")
    figures["memory_bytes_per_s"] = _memory(device.platform)
    for dtype in ("bfloat16", "int8", "float32"):
        context.say(f"multiplying matrices of {dtype}")
        figures[f"{dtype}_flops"] = _product(device.platform, dtype)
    peaks = (chip.hbm_bandwidth, chip.bf16_flops) if chip else (None, None)
    figures["peak_memory_bytes_per_s"], figures["peak_bfloat16_flops"] = peaks
    memory, flops = figures["memory_bytes_per_s"], figures["bfloat16_flops"]
    there, back = figures["to_device_bytes_per_s"] / 1e9, figures["to_host_bytes_per_s"] / 1e9
    summary = (
        f"to device {there:.1f}, back {back:.1f} GB/s; "
        f"memory {memory / 1e9:,.0f} GB/s{share(memory, peaks[0])}; bf16 {flops / 1e12:.3g} TFLOP/s"
        f"{share(flops, peaks[1])}, int8 {figures['int8_flops'] / 1e12:.3g}, "
        f"float32 {figures['float32_flops'] / 1e12:.3g}"
    )
    if chip and (memory < LEAST_BANDWIDTH * chip.hbm_bandwidth or flops < LEAST_FLOPS * chip.bf16_flops):
        return Outcome(summary, figures, "slow", "another process may be using the device, or it is throttled by heat")
    return Outcome(summary, figures)


def _copies(device: jax.Device) -> tuple[float, float]:
    """Bytes per second to the device and back."""
    size = _COPY_BYTES.get(device.platform, _OTHER_COPY_BYTES)
    host = np.ones(size, np.uint8)
    there = best_seconds(lambda: jax.device_put(host, device, may_alias=False))
    # A new array each time: JAX keeps the host's copy of an array.
    arrays = iter([jax.device_put(host, device, may_alias=False) for _ in range(4)])
    back = best_seconds(lambda: np.array(next(arrays)))
    return size / there, size / back


def _memory(platform: str) -> float:
    """Bytes per second, read and written."""
    size, repeats = _MEMORY_BYTES.get(platform, _OTHER_MEMORY_BYTES), _REPEATS.get(platform, _OTHER_REPEATS)
    array = jnp.zeros(size // 2, jnp.bfloat16)
    # Each pass must be over before the next begins, or the compiler makes one of all.
    negate = _repeated(lambda x: lax.optimization_barrier(-x), repeats)
    return 2 * size * repeats / best_seconds(partial(negate, array))


def _product(platform: str, dtype: str) -> float:
    """Operations per second of a product of square matrices."""
    size, repeats = _SIZES.get(platform, _OTHER_SIZE), _REPEATS.get(platform, _OTHER_REPEATS)
    is_integer = dtype == "int8"
    matrix = jax.random.normal(jax.random.key(0), (size, size), jnp.float32)
    matrix = (matrix * (10.0 if is_integer else size**-0.5)).astype(dtype)

    def multiply(x: jax.Array) -> jax.Array:
        product = lax.dot(x, matrix, preferred_element_type=jnp.int32 if is_integer else jnp.float32)
        return product.astype(dtype)

    return 2 * size**3 * repeats / best_seconds(partial(_repeated(multiply, repeats), matrix))


def _repeated(step: Callable[[jax.Array], jax.Array], times: int) -> Callable[[jax.Array], jax.Array]:
    """`step`, that many times in one call: what the host does is not measured."""
    # The library's product is what is measured; trying what Triton makes of it takes longer than all the rest.
    options = {"xla_gpu_enable_triton_gemm": False} if jax.default_backend() == "gpu" else None
    return jax.jit(lambda x: lax.fori_loop(0, times, lambda _, x: step(x), x), compiler_options=options)
