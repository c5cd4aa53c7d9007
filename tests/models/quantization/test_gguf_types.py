"""Types of GGUF's tensors compared with the `gguf` package's own dequantisation."""

import gguf
import ml_dtypes
import numpy as np
import pytest

from jaxllm.models.quantization.gguf.types import TENSOR_TYPES, TensorType
from jaxllm.pallas_kernels.linear.weight_type import QuantizedMatrix
from tests.models.quantization.gguf_files import random_bytes

ROWS, IN = 6, 512
QUANTISED = [kind for kind in TENSOR_TYPES.values() if kind.blocks is not None]


def matrix(kind: TensorType, raw: np.ndarray) -> QuantizedMatrix:
    """The matrix in the form that all formats share."""
    assert kind.blocks is not None
    rows, blocks = len(raw), raw.reshape(-1, kind.bytes)
    offsets = None if kind.blocks.offsets is None else kind.blocks.offsets(blocks).reshape(rows, -1)
    shape = (rows, raw.shape[1] // kind.bytes * kind.block)
    scales = kind.blocks.scales(blocks).reshape(rows, -1)
    return QuantizedMatrix(shape, kind.blocks.weight, kind.blocks.values_of(blocks, rows), scales, offsets)


@pytest.mark.parametrize("kind", QUANTISED, ids=lambda kind: kind.name)
def test_numbers_are_those_of_the_gguf_package(kind: TensorType) -> None:
    raw = random_bytes(kind, ROWS, IN)
    found = matrix(kind, raw)
    wanted = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType[kind.name])
    assert found.values.shape == found.kind.values_shape(found.shape)
    assert found.values.dtype == found.kind.array_type
    assert found.scales.shape == found.kind.scales_shape(found.shape)
    assert found.scales.dtype == np.dtype(getattr(ml_dtypes, found.kind.scales, found.kind.scales))
    # The package computes in float32: an offset that is subtracted rounds the result.
    np.testing.assert_allclose(found.dequantized(), wanted, rtol=1e-6, atol=1e-6 * np.abs(wanted).max())


@pytest.mark.parametrize("kind", QUANTISED, ids=lambda kind: kind.name)
def test_sizes_are_those_of_the_gguf_package(kind: TensorType) -> None:
    assert gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind.name]] == (kind.block, kind.bytes)
