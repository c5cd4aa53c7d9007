"""A call target that is known to XLA before its kernel is compiled."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxllm.pallas_kernels.cpu_common.build import build
from jaxllm.pallas_kernels.cpu_common.trampoline import Trampoline
from jaxllm.pallas_kernels.linear.cpu.form import Form
from jaxllm.pallas_kernels.linear.cpu.matmul import make_kernel


def product(x: jax.Array, weights: jax.Array) -> jax.Array:
    """The call of `packed.matmul`, of a target with another name."""
    none = jnp.zeros(0, jnp.float32)
    results = jax.ShapeDtypeStruct((4, 16), jnp.float32), jax.ShapeDtypeStruct((0, 0), jnp.float32)
    ints = jnp.array([4, 0, 0], jnp.int32)
    found = jax.ffi.ffi_call("test_trampoline", results)(x, weights, ints, none, jnp.zeros(1), none.reshape(0, 0))
    return found[0]


def test_what_calls_a_kernel_is_compiled_before_the_kernel() -> None:
    trampoline = Trampoline("test_trampoline")
    x, weights = jnp.ones((4, 32), jnp.float32), jnp.ones((1, 1, 32, 16), jnp.float32)
    compiled = jax.jit(product).lower(x, weights).compile()
    with pytest.raises(jax.errors.JaxRuntimeError, match="the kernel is still being compiled"):
        compiled(x, weights).block_until_ready()
    trampoline.open(build(make_kernel(Form("float32"))))
    np.testing.assert_array_equal(compiled(x, weights), np.full((4, 16), 32.0))
