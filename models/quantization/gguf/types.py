"""How tensors of GGUF files are kept: blocks of neighbouring inputs, each with its scale.

A block of an output's inputs becomes values, scales and offsets without loss. Layouts: ggml-common.h of
https://github.com/ggml-org/ggml.
"""

from collections.abc import Callable
from dataclasses import dataclass

import ml_dtypes
import numpy as np
import numpy.typing as npt

from jaxllm.pallas_kernels.linear.weight_type import FP4, INT4, UINT4, Values, WeightType, pack_codes

Bytes = npt.NDArray[np.uint8]
Array = npt.NDArray[np.generic]

IQ4 = tuple(float(value) for value in (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113))
"""The code of IQ4_NL and IQ4_XS."""


@dataclass(frozen=True)
class Blocks:
    """The meaning of the blocks of a type.

    Each function takes blocks [n, bytes] and returns [n, elements] values (codes are one each), [n, groups] scales or
    offsets.
    """

    weight: WeightType
    values: Callable[[Bytes], Array]
    scales: Callable[[Bytes], Array]
    offsets: Callable[[Bytes], Array] | None = None

    def values_of(self, blocks: Bytes, rows: int) -> Array:
        """Values [rows, in], or codes [rows, in / 2], of the blocks of whole rows."""
        values = self.values(blocks)
        if self.weight.values == Values.CODES:
            values = pack_codes(values.astype(np.uint8))
        return values.reshape(rows, -1)


@dataclass(frozen=True)
class TensorType:
    """A type of tensors: so many elements in so many bytes; without `blocks` they are numbers of `dtype`."""

    name: str
    block: int
    bytes: int
    dtype: str = ""
    blocks: Blocks | None = None


def _halves(packed: Bytes) -> Bytes:
    """Split each run of bytes [..., B]: all lower halves, then all upper ones: [..., 2 B]."""
    return np.concatenate([packed & np.uint8(15), packed >> np.uint8(4)], axis=-1)


def _float16(blocks: Bytes, at: int) -> npt.NDArray[np.float16]:
    """[n, 1], from two bytes of each block."""
    return np.ascontiguousarray(blocks[:, at : at + 2]).view(np.float16)


def _wide(blocks: Bytes, at: int) -> npt.NDArray[np.float32]:
    return _float16(blocks, at).astype(np.float32)


def _fifth_bits(blocks: Bytes, at: int) -> Bytes:
    """The fifth bits of 32 elements, in place: [n, 32]."""
    return np.unpackbits(blocks[:, at : at + 4], axis=-1, bitorder="little") << np.uint8(4)


def _scales_of_k(blocks: Bytes, at: int = 4) -> tuple[Bytes, Bytes]:
    """Eight scales and eight minima of six bits each, from twelve bytes."""
    low, middle, high = (blocks[:, at + 4 * part : at + 4 * part + 4] for part in range(3))
    scales = np.concatenate([low & 63, high & 15 | low >> 2 & 48], axis=-1)
    return scales, np.concatenate([middle & 63, high >> 4 | middle >> 2 & 48], axis=-1)


def _k_scales(blocks: Bytes) -> Array:
    return _wide(blocks, 0) * _scales_of_k(blocks)[0].astype(np.float32)


def _k_offsets(blocks: Bytes) -> Array:
    return -(_wide(blocks, 2) * _scales_of_k(blocks)[1].astype(np.float32))


def _q4_k(blocks: Bytes) -> Array:
    return _halves(blocks[:, 16:].reshape(-1, 4, 32)).reshape(-1, 256)


def _q5_k(blocks: Bytes) -> Array:
    low = _halves(blocks[:, 48:].reshape(-1, 4, 32)).reshape(-1, 8, 32)
    bits = blocks[:, None, 16:48] >> np.arange(8, dtype=np.uint8)[:, None] & np.uint8(1)
    return (low | bits << np.uint8(4)).reshape(-1, 256).astype(np.int8)


def _q6_k(blocks: Bytes) -> Array:
    low = _halves(blocks[:, :128].reshape(-1, 2, 64)).reshape(-1, 2, 4, 32)
    shifts = np.array([0, 2, 4, 6], np.uint8)[:, None]
    high = blocks[:, 128:192].reshape(-1, 2, 1, 32) >> shifts & np.uint8(3)
    return ((low | high << np.uint8(4)).astype(np.int8) - np.int8(32)).reshape(-1, 256)


def _q6_k_scales(blocks: Bytes) -> Array:
    return _wide(blocks, 208) * np.ascontiguousarray(blocks[:, 192:208]).view(np.int8).astype(np.float32)


def _two_bits(packed: Bytes) -> Bytes:
    """[n, 64] as [n, 256]: of each 32 bytes the lowest two bits, then the next, ..."""
    shifts = np.array([0, 2, 4, 6], np.uint8)[:, None]
    return (packed.reshape(-1, 2, 1, 32) >> shifts & np.uint8(3)).reshape(-1, 256)


def _q3_k(blocks: Bytes) -> Array:
    """Numbers from -4 to 3, as codes of `INT4`."""
    bits = blocks[:, None, :32] >> np.arange(8, dtype=np.uint8)[:, None] & np.uint8(1)
    return _two_bits(blocks[:, 32:96]) + (bits.reshape(-1, 256) << np.uint8(2)) + np.uint8(4)


def _q3_k_scales(blocks: Bytes) -> Array:
    low = _halves(blocks[:, 96:104])
    shifts = np.array([0, 2, 4, 6], np.uint8)[:, None]
    high = (blocks[:, None, 104:108] >> shifts & np.uint8(3)).reshape(-1, 16)
    return _wide(blocks, 108) * ((low | high << np.uint8(4)).astype(np.float32) - 32)


def _iq4_xs_scales(blocks: Bytes) -> Array:
    high = np.ascontiguousarray(blocks[:, 2:4]).view(np.uint16) >> (2 * np.arange(8, dtype=np.uint16)) & 3
    low = np.stack([blocks[:, 4:8] & np.uint8(15), blocks[:, 4:8] >> np.uint8(4)], axis=-1).reshape(-1, 8)
    return _wide(blocks, 0) * ((low | high << 4).astype(np.float32) - 32)


def _e8m0(blocks: Bytes) -> Array:
    """Powers of two, from their exponents plus 127; 255, which stands for NaN, is one."""
    scales = np.ldexp(np.float32(1), blocks[:, :1].astype(np.int32) - 127).astype(ml_dtypes.bfloat16)
    return np.where(blocks[:, :1] == 255, ml_dtypes.bfloat16(np.nan), scales)


def _integers(group: int, scales: str, *, offsets: bool = False) -> WeightType:
    return WeightType(Values.INT8, group, offsets, scales=scales)


def _codes(group: int, scales: str, code: tuple[float, ...], *, offsets: bool = False) -> WeightType:
    return WeightType(Values.CODES, group, offsets, code, scales)


def _first(blocks: Bytes) -> Array:
    return _float16(blocks, 0)


def _second(blocks: Bytes) -> Array:
    return _float16(blocks, 2)


_HALF = "float16"

TENSOR_TYPES = {
    0: TensorType("F32", 1, 4, "F32"),
    1: TensorType("F16", 1, 2, "F16"),
    2: TensorType("Q4_0", 32, 18, blocks=Blocks(_codes(32, _HALF, INT4), lambda b: _halves(b[:, 2:]), _first)),
    3: TensorType(
        "Q4_1",
        32,
        20,
        blocks=Blocks(_codes(32, _HALF, UINT4, offsets=True), lambda b: _halves(b[:, 4:]), _first, _second),
    ),
    6: TensorType(
        "Q5_0",
        32,
        22,
        blocks=Blocks(
            _integers(32, _HALF),
            lambda b: (_halves(b[:, 6:]) | _fifth_bits(b, 2)).astype(np.int8) - np.int8(16),
            _first,
        ),
    ),
    7: TensorType(
        "Q5_1",
        32,
        24,
        blocks=Blocks(
            _integers(32, _HALF, offsets=True),
            lambda b: (_halves(b[:, 8:]) | _fifth_bits(b, 4)).astype(np.int8),
            _first,
            _second,
        ),
    ),
    8: TensorType("Q8_0", 32, 34, blocks=Blocks(_integers(32, _HALF), lambda b: b[:, 2:].view(np.int8), _first)),
    10: TensorType(
        "Q2_K",
        256,
        84,
        blocks=Blocks(
            _codes(16, "float32", UINT4, offsets=True),
            lambda b: _two_bits(b[:, 16:80]),
            lambda b: _wide(b, 80) * (b[:, :16] & np.uint8(15)).astype(np.float32),
            lambda b: -(_wide(b, 82) * (b[:, :16] >> np.uint8(4)).astype(np.float32)),
        ),
    ),
    11: TensorType("Q3_K", 256, 110, blocks=Blocks(_codes(16, "float32", INT4), _q3_k, _q3_k_scales)),
    12: TensorType(
        "Q4_K", 256, 144, blocks=Blocks(_codes(32, "float32", UINT4, offsets=True), _q4_k, _k_scales, _k_offsets)
    ),
    13: TensorType(
        "Q5_K", 256, 176, blocks=Blocks(_integers(32, "float32", offsets=True), _q5_k, _k_scales, _k_offsets)
    ),
    14: TensorType("Q6_K", 256, 210, blocks=Blocks(_integers(16, "float32"), _q6_k, _q6_k_scales)),
    20: TensorType("IQ4_NL", 32, 18, blocks=Blocks(_codes(32, _HALF, IQ4), lambda b: _halves(b[:, 2:]), _first)),
    23: TensorType(
        "IQ4_XS",
        256,
        136,
        blocks=Blocks(
            _codes(32, "float32", IQ4), lambda b: _halves(b[:, 8:].reshape(-1, 8, 16)).reshape(-1, 256), _iq4_xs_scales
        ),
    ),
    30: TensorType("BF16", 1, 2, "BF16"),
    39: TensorType("MXFP4", 32, 17, blocks=Blocks(_codes(32, "bfloat16", FP4), lambda b: _halves(b[:, 1:]), _e8m0)),
}
"""By the number that files have for them."""

TYPE_NAMES = {
    9: "Q8_1", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 21: "IQ3_S", 22: "IQ2_S",
    24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64", 29: "IQ1_M", 34: "TQ1_0", 35: "TQ2_0", 40: "NVFP4",
}  # fmt: skip
"""Names of types that are not supported, for errors."""

TYPES_BY_NAME = {kind.name: kind for kind in TENSOR_TYPES.values()}
