"""The numbers of a quantised matrix mean what arithmetic written out says."""

import numpy as np
import pytest

from jaxllm.pallas_kernels.linear.weight_type import (
    FP4,
    INT4,
    UINT4,
    Activations,
    QuantizedMatrix,
    Values,
    WeightType,
    pack_codes,
)  # fmt: skip


def test_groups_offsets_and_order() -> None:
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 16, (3, 8), dtype=np.uint8)
    scales, offsets = (rng.standard_normal((3, 2)).astype(np.float32) for _ in range(2))
    order = rng.permutation(8).astype(np.int32)
    kind = WeightType(Values.CODES, group=4, has_offsets=True, code=UINT4, is_reordered=True)
    assert (kind.values_shape((3, 8)), kind.scales_shape((3, 8))) == ((3, 4), (3, 2))
    matrix = QuantizedMatrix((3, 8), kind, pack_codes(codes), scales, offsets, order)
    dense = matrix.dequantized()
    for row in range(3):
        for column in range(8):
            wanted = float(codes[row, column]) * float(scales[row, column // 4]) + float(offsets[row, column // 4])
            assert dense[row, order[column]] == wanted


def test_an_odd_number_of_inputs() -> None:
    codes = np.array([[0, 8, 15]], np.uint8)
    kind = WeightType(Values.CODES, code=INT4)
    assert kind.values_shape((1, 3)) == (1, 2)
    matrix = QuantizedMatrix((1, 3), kind, pack_codes(codes), np.array([[2.0]], np.float32))
    np.testing.assert_array_equal(matrix.dequantized(), [[-16, 0, 14]])


@pytest.mark.parametrize("values", [Values.INT8, Values.FLOAT8_E4M3, Values.FLOAT8_E5M2])
def test_scales_of_outputs(values: Values) -> None:
    kind = WeightType(values, scales="float16")
    numbers = np.array([[-3, 0, 2], [1, 1, 4]]).astype(kind.array_type)
    matrix = QuantizedMatrix((2, 3), kind, numbers, np.array([[0.5], [2]], np.float16))
    np.testing.assert_array_equal(matrix.dequantized(np.float32), np.array([[-1.5, 0, 1], [2, 2, 8]], np.float32))


@pytest.mark.parametrize(
    "wrong",
    [
        {"values": Values.INT8, "code": INT4},
        {"values": Values.CODES},
        {"values": Values.CODES, "code": (0.0, 1.0)},
        {"values": Values.INT8, "group": 0},
        {"values": Values.CODES, "code": FP4, "activations": Activations.PER_TOKEN},
    ],
)
def test_what_cannot_be(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"code|group|table"):
        WeightType(**wrong)  # type: ignore[arg-type]
