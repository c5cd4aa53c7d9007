"""Linear layers whose matrices lie in strips for the kernel for TPUs, on devices that share them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import tpu as pltpu

from jaxllm.models.forward_context import ALL_ROWS
from jaxllm.models.layers.linear import Linear
from jaxllm.models.layers.parameter import ARRAYS
from jaxllm.models.options import ForwardOptions
from jaxllm.models.sharding import make_mesh
from jaxllm.pallas_kernels.linear.quantized import QuantizedRowMajor
from jaxllm.pallas_kernels.linear.quantized_cases import random_matrix
from jaxllm.pallas_kernels.linear.tpu.layout import Strips
from jaxllm.pallas_kernels.linear.weight_type import UINT4, Activations, Values, WeightType

AWQ = WeightType(Values.CODES, group=32, has_offsets=True, code=UINT4)


@pytest.mark.parametrize("axes", [("mlp", "hidden"), ("hidden", "mlp")], ids=["outputs", "inputs"])
def test_devices_share_a_matrix(axes: tuple[str, str]) -> None:
    """Each multiplies with its part, and partial sums are added up."""
    in_size, out_size = 192, 256
    options = ForwardOptions(platform="tpu", linear_backend="tpu", mesh=make_mesh(jax.devices()[:2], 2))
    linear = Linear(in_size, out_size, bias=False, dtype=jnp.dtype("float32"), axes=axes, options=options)
    linear.set_weight_type(AWQ)
    assert isinstance(linear.layout, Strips)
    rng = np.random.default_rng(0)
    matrix = random_matrix((out_size, in_size), AWQ, rng)
    for name, (own, dtype) in linear.layout.arrays().items():
        array = np.zeros(own.array_shape, dtype)
        own.pack_into(array, np.asarray(getattr(matrix, name)))
        variable = getattr(linear, ARRAYS[name])
        variable.set_raw_value(jax.device_put(array, variable.get_raw_value().sharding))
    x = rng.standard_normal((5, in_size), np.float32)
    with pltpu.force_tpu_interpret_mode(), jax.set_mesh(options.mesh):
        found = np.asarray(jax.jit(linear.__call__)(x, ALL_ROWS))
    np.testing.assert_allclose(found, x @ matrix.dequantized().T, rtol=0, atol=4e-5 * in_size**0.5)


def test_what_depends_on_other_devices_is_left_to_xla() -> None:
    kind = WeightType(Values.INT8, activations=Activations.PER_TOKEN)
    options = ForwardOptions(platform="tpu", linear_backend="tpu", mesh=make_mesh(jax.devices()[:2], 2))
    for axes, layout in ((("mlp", "hidden"), Strips), (("hidden", "mlp"), QuantizedRowMajor)):
        linear = Linear(256, 256, bias=False, dtype=jnp.dtype("float32"), axes=axes, options=options)
        linear.set_weight_type(kind)
        assert isinstance(linear.layout, layout)
