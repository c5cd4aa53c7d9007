"""Parameters that get some of their tensors: the others stay as they lie."""

import jax
import ml_dtypes
import numpy as np
import pytest

from jaxllm.models.checkpoint.parameter_reloader import _patch
from jaxllm.models.checkpoint.weight_target import WeightTarget
from jaxllm.models.layers.parameter import ParameterSpec, Part, Rows
from jaxllm.pallas_kernels.linear.tpu.layout import StripArray
from jaxllm.pallas_kernels.linear.weight_type import INT4
from jaxllm.pallas_kernels.linear.xla import RowMajor


@pytest.mark.parametrize("code", [None, INT4], ids=["int8", "int4"])
def test_rows_that_are_not_given_stay(code: tuple[float, ...] | None) -> None:
    """Also where a code of 0 lies in memory as another number."""
    layout: RowMajor = StripArray((256, 64 if code is None else 32), 128, code)
    dtype = np.int8 if code is None else np.uint8
    random = np.random.default_rng(0)
    before, given = (random.integers(0, 127, layout.shape).astype(dtype) for _ in range(2))
    given[:, :3] = 0
    packed, wanted = (np.zeros(layout.array_shape, np.int8 if code is None else ml_dtypes.int4) for _ in range(2))
    layout.pack_into(packed, before)
    layout.pack_into(wanted, np.concatenate([before[:128], given[128:]]))
    slot = WeightTarget((), None, (128, 64), Rows(), Part("", 128, 128, Rows()), 1)
    spec = ParameterSpec(jax.ShapeDtypeStruct(packed.shape, packed.dtype), Rows(), layout)
    _patch(packed, spec, [(slot, given[128:])])
    np.testing.assert_array_equal(packed, wanted)
