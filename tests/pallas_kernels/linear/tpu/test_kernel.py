"""The kernel for TPUs in Pallas's interpreter: uninitialised memory as NaN, and a detector of races."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax._src.pallas.mosaic.interpret import interpret_pallas_call
from jax.experimental.pallas import tpu as pltpu

from jaxllm.pallas_kernels.linear.quantized_cases import CASES, NF4, QuantizedCase, make_inputs, tolerance
from jaxllm.pallas_kernels.linear.tpu import kernel, matmul
from jaxllm.pallas_kernels.linear.tpu.codes import code_bias, decode, levels
from jaxllm.pallas_kernels.linear.tpu.kernel import even_columns_first, split_float8
from jaxllm.pallas_kernels.linear.tpu.layout import Strips
from jaxllm.pallas_kernels.linear.weight_type import FP4, INT4, UINT4, Activations, Values, WeightType, pack_codes
from jaxllm.pallas_kernels.tpu_common.target import Target
from tests.thinned import EVERY_CASE

_W8A8 = WeightType(Values.INT8, group=128, activations=Activations.PER_TOKEN)
_AWQ = WeightType(Values.CODES, group=128, has_offsets=True, code=UINT4, scales="float16")
OWN = (
    QuantizedCase("strips", WeightType(Values.INT8), 40, 64, 768, padding=3),
    QuantizedCase("groups_by_sums", _AWQ, 5, 256, 384, layers=2),
    QuantizedCase("groups_of_weights", _AWQ, 70, 256, 128),
    QuantizedCase("integers_in_groups", _W8A8, 9, 256, 256),
    QuantizedCase("windows", WeightType(Values.FLOAT8_E4M3), 300, 64, 256),
)
READ = [
    case
    for case in (*CASES, *OWN)
    if Strips.reads((case.out_size, case.in_size), case.kind) and not (case.norm or case.gated or case.residual)
]
"""Fused operations run outside the kernel."""
_QUICK = ("strips", "groups_by_sums", "integers_in_groups", "mxfp4")
_FEW = (
    *_QUICK, "groups_of_weights", "windows", "int8_odd_sizes", "int8_small_groups_offsets", "e5m2", "e4m3_groups",
    "int4_groups", "uint4_order_layer", "nf4", "int8_per_token_many_rows", "int8_static", "int8_per_token_offsets",
    "int4_per_token_outputs", "e4m3_per_token",
)  # fmt: skip
"""Every type, groups, offsets, an order of inputs, layers, activations of each kind, and several windows."""


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=case.name, marks=() if case.name in _QUICK else pytest.mark.slow)
        for case in READ
        if EVERY_CASE or case.name in _FEW
    ],
)
def test_matches_numpy(case: QuantizedCase) -> None:
    inputs = make_inputs(case)
    with pltpu.force_tpu_interpret_mode(pltpu.InterpretParams(detect_races=True, uninitialized_memory="nan")):
        found = np.asarray(inputs.call("tpu"))
    assert interpret_pallas_call.races is not None
    assert not interpret_pallas_call.races.races_found
    np.testing.assert_allclose(found, inputs.expected(), rtol=0, atol=tolerance(inputs))


@pytest.mark.parametrize(
    ("values", "group"), [(Values.FLOAT8_E4M3, None), (Values.FLOAT8_E4M3, 128), (Values.FLOAT8_E5M2, None)]
)
def test_float8_by_its_bits(values: Values, group: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on v6e, for rows of 8 bits, which are multiplied as bfloat16 there."""
    monkeypatch.setattr(matmul, "widens_by_bits", lambda: True)
    ordered = []

    def in_order(x: jax.Array, group: int | None) -> jax.Array:
        ordered.append(group)
        return even_columns_first(x, group)

    monkeypatch.setattr(matmul, "even_columns_first", in_order)
    kind = WeightType(values, group=group, activations=Activations.PER_TOKEN)
    inputs = make_inputs(QuantizedCase("bits", kind, 5, 256, 256))
    with pltpu.force_tpu_interpret_mode():
        found = np.asarray(inputs.call("tpu"))
    np.testing.assert_allclose(found, inputs.expected(), rtol=0, atol=tolerance(inputs))
    assert ordered == [group]


@pytest.mark.parametrize("kind", [WeightType(Values.CODES, code=INT4), _AWQ], ids=["int4", "awq"])
def test_rows_in_parts_of_float8(kind: WeightType, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on TPU7x."""
    inputs = make_inputs(QuantizedCase("parts", kind, 5, 256, 256))
    inputs = replace(inputs, x=inputs.x.astype(ml_dtypes.bfloat16))
    parted = []

    def recorded(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        parted.append(len(x))
        return split_float8(x)

    monkeypatch.setattr(kernel, "split_float8", recorded)
    monkeypatch.setattr(matmul, "target", lambda: Target("tpu7x", 64 << 20))
    with pltpu.force_tpu_interpret_mode():
        found = np.asarray(inputs.call("tpu"))
    np.testing.assert_allclose(found, inputs.expected(), rtol=0, atol=tolerance(inputs))
    assert parted == [16]


def test_parts_have_nearly_all_bits_of_a_row() -> None:
    x = np.random.default_rng(0).standard_normal((4, 512)) * np.logspace(0, [0, 3, 9, 30], 512).T
    x = np.concatenate([x, np.zeros((1, 512))]).astype(ml_dtypes.bfloat16).astype(np.float64)
    rows, scales = (np.asarray(part, np.float64) for part in split_float8(jnp.asarray(x, jnp.bfloat16)))
    found = (rows * scales).reshape(2, *x.shape).sum(axis=0)
    assert (np.abs(found - x) <= 2.0**-21 * np.abs(x).max(axis=1, keepdims=True)).all()


@pytest.mark.parametrize("code", [INT4, UINT4, FP4, NF4], ids=["int4", "uint4", "fp4", "nf4"])
@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
def test_codes(code: tuple[float, ...], dtype: type) -> None:
    kept = levels(pack_codes(np.arange(16, dtype=np.uint8)[None]), code).astype(ml_dtypes.int4)
    found = np.asarray(decode(jnp.asarray(kept), code, jnp.dtype(dtype)), np.float32) + code_bias(code)
    np.testing.assert_array_equal(found[0], np.asarray(code, dtype).astype(np.float32))


def test_scales_of_every_device_are_padded() -> None:
    kind = WeightType(Values.INT8, group=16)
    layout = Strips((128, 96), kind, across=2)
    scales = layout.arrays()["scales"]
    assert scales.layout.array_shape == (1, 32, 128)
    packed = np.full(scales.layout.array_shape, 7, np.float32)
    tensor = np.arange(768, dtype=np.float32).reshape(128, 6)
    scales.layout.pack_into(packed, tensor)
    np.testing.assert_array_equal(packed[0, :3], tensor[:, :3].T)
    np.testing.assert_array_equal(packed[0, 16:19], tensor[:, 3:].T)
    assert not packed[0, [*range(3, 16), *range(19, 32)]].any()
    np.testing.assert_array_equal(scales.layout.pack(jnp.asarray(tensor)), packed)


@pytest.mark.parametrize("code", [INT4, FP4], ids=["int4", "fp4"])
def test_codes_are_packed_alike_on_host_and_device(code: tuple[float, ...]) -> None:
    tensor = np.random.default_rng(0).integers(0, 256, (2, 256, 16), np.uint8)
    layout = Strips((256, 32), WeightType(Values.CODES, code=code)).arrays()["values"].layout
    packed = np.empty((2, *layout.array_shape), ml_dtypes.int4)
    for array, own in zip(packed, tensor, strict=True):
        layout.pack_into(array, own)
    on_device = jax.jit(layout.pack)(tensor)
    assert on_device.dtype == jnp.int4
    np.testing.assert_array_equal(on_device, packed)
