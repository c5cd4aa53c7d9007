"""Matrices as AWQ checkpoints of version 'gemm' have them (arXiv 2306.00978): four bits, packed along the outputs.

`qweight` int32 [in, out / 8], `qzeros` int32 [G, out / 8], `scales` [G, out]. Among the eight outputs in a word, number
`_PLACES[i]` is in bits 4 i to 4 i + 3. Format: https://github.com/casper-hansen/AutoAWQ, awq/utils/packing_utils.py.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.errors import ModelError
from jaxllm.models.quantization.by_module import ByModule
from jaxllm.models.quantization.gptq import HOW_IT_WAS_MADE
from jaxllm.models.quantization.matrix_format import unpacked, values_of
from jaxllm.models.quantization.module_names import is_in_block, is_named, read_names
from jaxllm.models.quantization.module_tensors import FLOATS, ModuleTensors, Needed
from jaxllm.pallas_kernels.linear.weight_type import UINT4, QuantizedMatrix, Values, WeightType

_PLACES = (0, 2, 4, 6, 1, 3, 5, 7)
_BITS = 4


@dataclass(frozen=True)
class AwqMatrix:
    """With a scale and a zero for each `group` of inputs, or for all of an output."""

    group: int | None

    @property
    def kind(self) -> WeightType:
        """See `MatrixFormat`."""
        return WeightType(Values.CODES, self.group, True, UINT4)

    def shape_of(self, tensors: ModuleTensors) -> tuple[int, int]:
        """See `MatrixFormat`."""
        in_size, words = tensors.two_sizes("qweight")
        return words * 8, in_size

    def tensors(self, shape: tuple[int, int]) -> Sequence[Needed]:
        """See `MatrixFormat`."""
        out_size, in_size = shape
        if out_size % 8:
            raise ModelError(f"a matrix {list(shape)} cannot be packed by AWQ: 8 outputs share a word")
        groups = self.kind.scales_shape(shape)[1]
        note = f"groups of {self.group or in_size} in {list(shape)}"
        return (
            Needed(("qweight",), ((in_size, out_size // 8),), ("I32",), note=note),
            Needed(("scales",), ((groups, out_size),), FLOATS, note=note),
            Needed(("qzeros",), ((groups, out_size // 8),), ("I32",), note=note),
        )

    def read(self, tensors: ModuleTensors, shape: tuple[int, int]) -> QuantizedMatrix:
        """See `MatrixFormat`."""
        scales = np.ascontiguousarray(tensors.read_scales("scales").T)
        offsets = tensors.offsets("scales", -_unpack_words(tensors.read("qzeros")).T.astype(np.int32), scales)
        codes = np.ascontiguousarray(_unpack_words(tensors.read("qweight")).T)
        return QuantizedMatrix(shape, self.kind, values_of(codes, _BITS), scales, offsets)


def _unpack_words(words: npt.NDArray[np.int32]) -> npt.NDArray[np.uint8]:
    """Numbers [rows, out] of words [rows, out / 8]."""
    packed = unpacked(words, _BITS).reshape(*words.shape, 8)
    numbers = np.empty_like(packed)
    numbers[..., _PLACES] = packed
    return numbers.reshape(len(words), -1)


@dataclass(frozen=True)
class Awq(ByModule):
    """Matrices of the layers, but for those that are `ignored`."""

    format: AwqMatrix
    ignored: tuple[str, ...] = ()

    def format_of(self, module: str) -> AwqMatrix | None:
        """See `ByModule`."""
        if not is_in_block(module) or is_named(module, self.ignored):
            return None
        return self.format

    def format_found(self, module: str, endings: Collection[str]) -> AwqMatrix | None:
        """See `ByModule`: routers are quantized in some checkpoints."""
        return self.format_of(module) or (self.format if "qweight" in endings else None)


def read_format(section: ConfigFile) -> Awq:
    """From the section of config.json; keys may be those of llm-awq. Raises `ModelError`, which names the field."""
    section = section.reading({"bits": "w_bit", "group_size": "q_group_size"})
    # What transformers writes for GPTQ, too, does not matter here.
    section.ignore(*HOW_IT_WAS_MADE, "desc_act", "sym", "modules_in_block_to_quantize", "format")
    version = section.text("version", section.text("format", "gemm"))
    if version.lower() != "gemm":
        raise section.wrong("version", "'gemm'")
    if section.values.get("backend") == "llm-awq":
        raise section.wrong("backend", "'autoawq', since llm-awq has a different layout")
    if section.integer("bits", 4) != 4:
        raise section.wrong("bits", "4")
    if not section.boolean("zero_point", True):
        raise section.wrong("zero_point", "true")
    group = None if section.values.get("group_size") == -1 else section.integer("group_size", 128)
    section.ignore("group_size")
    return Awq(AwqMatrix(group), read_names(section, "modules_to_not_convert"))
