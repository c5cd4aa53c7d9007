"""The rows of B go the way that the rows of the whole product would go."""

import numpy as np
import pytest

from jaxllm.models.adapters.places import Place
from jaxllm.models.checkpoint.tensor_source import (
    Fused,
    HalvesSwapped,
    Interleaved,
    TensorTransform,
    Transposed,
    UnitRows,
    Whole,
    WithoutBias,
)
from jaxllm.models.checkpoint.weight_target import WeightTarget
from jaxllm.models.layers.parameter import Rows

TAKES: dict[str, TensorTransform] = {
    "whole": Whole(),
    "fused": Fused((8, 4, 4), 1),
    "fused in blocks": Fused((4, 2, 2), 2, blocks=2),
    "transposed": Transposed(),
    "transposed and fused": Transposed(Fused((8, 4, 4), 2)),
    "interleaved": Interleaved(2, 1),
    "halves swapped": HalvesSwapped(4),
    "without the bias": WithoutBias(6),
}
ROWS = {
    "as they are": Rows(),
    "repeated heads": Rows(group=2, times=3),
    "in the order of pairs": Rows(group=4, order=(0, 2, 1, 3)),
    "both": Rows(group=4, times=2, order=(3, 1, 2, 0)),
    "padded": Rows(padding=5),
}


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("take", TAKES)
def test_rows(take: str, rows: str) -> None:
    target = WeightTarget(("weight",), None, (4, 6), ROWS[rows], take=TAKES[take])
    place, random = Place(target, "linear"), np.random.default_rng(0)
    assert place.tensor_rows is not None
    a, b = random.normal(size=(3, 6)), random.normal(size=(place.tensor_rows, 3))
    product = b @ a
    whole = product.T if isinstance(TAKES[take], Transposed) else product
    assert whole.shape == target.tensor_shape
    expected = target.rows.expand(target.take(whole, target.shape))
    np.testing.assert_allclose(place.rows(b) @ a, expected, atol=1e-12)


def test_rows_that_are_divided_by_their_length_have_no_place() -> None:
    assert Place(WeightTarget(("weight",), None, (4, 6), Rows(), take=UnitRows()), "linear").tensor_rows is None
