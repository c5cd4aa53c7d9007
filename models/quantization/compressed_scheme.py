"""How a matrix of few bits is written as a checkpoint of compressed-tensors has it.

Where activations stay as they are, numbers of 8 bits are packed as well: vLLM multiplies with 'int-quantized' ones only
where activations are rounded, too.
Format: https://github.com/vllm-project/compressed-tensors, quantization/quant_args.py and compressors.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from jaxllm.models.checkpoint.safetensors_writer import Entry
from jaxllm.models.quantization.online import METHODS
from jaxllm.pallas_kernels.linear.weight_type import Activations, QuantizedMatrix, Values, WeightType

GROUPS = (128, 64, 32)
"""Inputs that share a scale in 4 bits: the most that divide those of all matrices, of what vLLM's kernels know."""

FORMATS = {
    "int8": "pack-quantized",
    "int4": "pack-quantized",
    "fp8": "float-quantized",
    "int8_w8a8": "int-quantized",
}
"""Schemes of compressed-tensors, by method; those of other methods are not written."""


@dataclass(frozen=True)
class Scheme:
    """How matrices of a type are written. Scales are float32."""

    kind: WeightType

    @property
    def bits(self) -> int:
        """Bits of a value."""
        return 4 if self.kind.values == Values.CODES else 8

    @property
    def weights(self) -> dict[str, Any]:
        """Their description in config.json."""
        return {
            "num_bits": self.bits,
            "type": "float" if self.kind.values == Values.FLOAT8_E4M3 else "int",
            "symmetric": True,
            "strategy": "channel" if self.kind.group is None else "group",
            "group_size": self.kind.group,
            "dynamic": False,
        }

    @property
    def input_activations(self) -> dict[str, Any] | None:
        """Its options for activations; None: they stay as they are."""
        if self.kind.activations == Activations.AS_THEY_ARE:
            return None
        return {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "token", "dynamic": True}

    @property
    def plain_type(self) -> str | None:
        """Type of the tensor of values, as in safetensors; None if they are packed into words."""
        if self.kind.values == Values.FLOAT8_E4M3:
            return "F8_E4M3"
        return None if self.kind.activations == Activations.AS_THEY_ARE else "I8"

    def entries(self, module: str, shape: tuple[int, int]) -> list[Entry]:
        """The tensors of a matrix of `shape` (out, in)."""
        scales = self.kind.scales_shape(shape)
        found = [Entry(f"{module}.weight_scale", "F32", scales, 4 * scales[0] * scales[1])]
        if self.plain_type:
            return [Entry(f"{module}.weight", self.plain_type, shape, shape[0] * shape[1]), *found]
        words = (shape[0], -(-shape[1] * self.bits // 32))
        return [
            Entry(f"{module}.weight_packed", "I32", words, 4 * words[0] * words[1]),
            *found,
            Entry(f"{module}.weight_shape", "I64", (2,), 16),
        ]

    def arrays(self, module: str, matrix: QuantizedMatrix) -> Iterator[tuple[str, np.ndarray]]:
        """Their values."""
        assert matrix.kind == self.kind
        yield f"{module}.weight_scale", matrix.scales
        if self.plain_type:
            yield f"{module}.weight", matrix.values
            return
        yield f"{module}.weight_packed", _words(matrix.values, self.bits)
        yield f"{module}.weight_shape", np.asarray(matrix.shape, np.int64)


def can_write(method: str, in_size: int) -> bool:
    """Whether a matrix with so many inputs can be written."""
    return METHODS[method].group is None or in_size % GROUPS[-1] == 0


def scheme_for(method: str, in_sizes: Collection[int]) -> Scheme:
    """The one scheme of matrices with these numbers of inputs; `can_write` allows each of them.

    vLLM finds the scheme of its merged matrices by their class, so schemes of single modules would be overlooked.
    """
    kind = METHODS[method]
    if kind.group is None:
        return Scheme(kind)
    return Scheme(replace(kind, group=next(group for group in GROUPS if not any(size % group for size in in_sizes))))


def _words(values: npt.NDArray[np.generic], bits: int) -> npt.NDArray[np.int32]:
    """int32 [out, in * bits / 32], the lowest bits of a word first; numbers have half of their range added."""
    # Codes of four bits lie like that already.
    raw = values.view(np.uint8) if bits == 4 else values.view(np.uint8) ^ np.uint8(128)
    return np.ascontiguousarray(np.pad(raw, ((0, 0), (0, -raw.shape[1] % 4)))).view(np.int32)
