"""Matrices as GPTQ checkpoints have them (arXiv 2210.17323): packed along the inputs.

`qweight` int32 [in * bits / 32, out] has input 0 in the lowest bits of the first word. `qzeros` int32
[G, out * bits / 32] are packed along the outputs; in checkpoint format 'gptq' a 1 was taken from every number in a
word, by one subtraction that may borrow, and in 'gptq_v2' it was not. `scales` [G, out]; `g_idx` int32 [in] is the
group of each input. Formats: https://github.com/ModelCloud/GPTQModel, utils/model.py.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.errors import ModelError
from jaxllm.models.quantization.by_module import ByModule
from jaxllm.models.quantization.matrix_format import order_of_groups, unpacked, values_of
from jaxllm.models.quantization.module_names import check_names, is_in_block, matches
from jaxllm.models.quantization.module_tensors import FLOATS, ModuleTensors, Needed
from jaxllm.pallas_kernels.linear.weight_type import INT4, UINT4, QuantizedMatrix, Values, WeightType


@dataclass(frozen=True)
class GptqMatrix:
    """A matrix of `bits` 4 or 8; symmetric ones have all zero points in the middle of the range."""

    bits: int
    group: int | None
    is_symmetric: bool
    is_reordered: bool
    is_v2: bool = False

    @property
    def kind(self) -> WeightType:
        """See `MatrixFormat`."""
        code = None if self.bits == 8 else INT4 if self.is_symmetric else UINT4
        values = Values.INT8 if code is None else Values.CODES
        return WeightType(values, self.group, not self.is_symmetric, code, is_reordered=self.is_reordered)

    def shape_of(self, tensors: ModuleTensors) -> tuple[int, int]:
        """See `MatrixFormat`."""
        words, out_size = tensors.two_sizes("qweight")
        return out_size, words * 32 // self.bits

    def tensors(self, shape: tuple[int, int]) -> Sequence[Needed]:
        """See `MatrixFormat`."""
        return list(self._tensors(shape))

    def _tensors(self, shape: tuple[int, int]) -> Iterator[Needed]:
        (out_size, in_size), per_word = shape, 32 // self.bits
        if in_size % per_word or out_size % per_word:
            raise ModelError(f"a matrix {list(shape)} cannot be packed by GPTQ: {per_word} numbers share a word")
        groups = self.kind.scales_shape(shape)[1]
        note = f"{self.bits} bits and groups of {self.group or in_size} in {list(shape)}"
        yield Needed(("qweight",), ((in_size // per_word, out_size),), ("I32",), note=note)
        yield Needed(("scales",), ((groups, out_size),), FLOATS, note=note)
        yield Needed(("qzeros",), ((groups, out_size // per_word),), ("I32",), note=note)
        yield Needed(("g_idx",), ((in_size,),), ("I32", "I64"), is_optional=not self.is_reordered)

    def read(self, tensors: ModuleTensors, shape: tuple[int, int]) -> QuantizedMatrix:
        """See `MatrixFormat`."""
        scales = np.ascontiguousarray(tensors.read_scales("scales").T)
        offsets, order = self._offsets(tensors, scales), self._order(tensors, shape[1])
        numbers = np.ascontiguousarray(unpacked(tensors.read("qweight").T, self.bits))
        return QuantizedMatrix(shape, self.kind, values_of(numbers, self.bits, order), scales, offsets, order)

    def _offsets(
        self, tensors: ModuleTensors, scales: npt.NDArray[np.float32]
    ) -> npt.NDArray[np.float32] | None:  # fmt: skip
        """The offsets to add to the values times the scales [out, G]."""
        words, middle = tensors.read("qzeros").view(np.uint32), 2 ** (self.bits - 1)
        ones = np.uint32(0 if self.is_v2 else 0x01010101 if self.bits == 8 else 0x11111111)
        zeros = unpacked((words + ones).view(np.int32), self.bits).T.astype(np.int32)
        if self.is_symmetric:
            if (zeros != middle).any():
                raise tensors.error("qzeros", f"has zero points other than {middle}, but the configuration sets 'sym'")
            return None
        # Codes of four bits stand for 0 to 15, those of eight are kept with the middle taken from them.
        kept = middle if self.bits == 8 else 0
        return tensors.offsets("scales", kept - zeros, scales)

    def _order(self, tensors: ModuleTensors, in_size: int) -> npt.NDArray[np.int32] | None:
        if "g_idx" not in tensors.tensors:
            return None
        order = order_of_groups(tensors, "g_idx", self.group, in_size)
        if self.is_reordered:
            return order
        if not np.array_equal(order, np.arange(in_size)):
            raise tensors.error("g_idx", "reorders inputs, but the configuration does not set 'desc_act'")
        return None


HOW_IT_WAS_MADE = (
    "act_group_aware",
    "backend",
    "batch_size",
    "block_name_to_quantize",
    "cache_block_outputs",
    "damp_auto_increment",
    "damp_percent",
    "dataset",
    "do_fuse",
    "exllama_config",
    "fuse_max_seq_len",
    "hyb_act",
    "max_input_length",
    "meta",
    "model_file_base_name",
    "model_name_or_path",
    "model_seqlen",
    "modules_to_fuse",
    "module_name_preceding_first_block",
    "mse",
    "pack_impl",
    "pad_token_id",
    "quantizer",
    "static_groups",
    "tokenizer",
    "true_sequential",
    "use_cuda_fp16",
    "use_exllama",
)
"""Fields that change nothing about what the numbers mean."""


@dataclass(frozen=True)
class Override:
    """Modules whose names begin with an expression have another format, or none."""

    expression: str
    format: GptqMatrix | None


@dataclass(frozen=True)
class Gptq(ByModule):
    """Matrices of the layers, and maybe the output layer.

    The first of `overrides` that means a module counts. `only` are ends of names, if not all matrices of a layer are
    quantized.
    """

    format: GptqMatrix
    overrides: tuple[Override, ...] = ()
    only: tuple[str, ...] = ()
    has_head: bool = False

    def format_of(self, module: str) -> GptqMatrix | None:
        """See `ByModule`."""
        if not (is_in_block(module) or (self.has_head and module.endswith("lm_head"))):
            return None
        if self.only and is_in_block(module) and not any(module.endswith(f".{name}") for name in self.only):
            return None
        for override in self.overrides:
            if matches(override.expression, module):
                return override.format
        return self.format

    def format_found(self, module: str, endings: Collection[str]) -> GptqMatrix | None:
        """See `ByModule`: routers are quantized in some checkpoints."""
        return self.format_of(module) or (self.format if "qweight" in endings else None)


def read_format(section: ConfigFile) -> Gptq:
    """From the section of config.json. Raises `ModelError`, which names the field."""
    section.ignore(*HOW_IT_WAS_MADE)
    name = section.text("checkpoint_format", section.text("format", "gptq")).lower()
    section.ignore("format")
    if name not in ("gptq", "gptq_v2"):
        raise section.wrong("checkpoint_format", "'gptq' or 'gptq_v2'")
    if section.text("pack_dtype", "int32") != "int32":
        raise section.wrong("pack_dtype", "'int32'")
    common = _read_matrix(section, GptqMatrix(4, 128, True, False, name == "gptq_v2"), required=True)
    dynamic, only = section.section("dynamic"), section.array("modules_in_block_to_quantize", [])
    overrides = [] if dynamic is None else [_read_override(dynamic, key, common) for key in dynamic.values]
    check_names(section, "dynamic", [override.expression for override in overrides])
    inner = [name for group in only for name in (group if isinstance(group, list) else [group])]
    if not all(isinstance(name, str) for name in inner):
        raise section.wrong("modules_in_block_to_quantize", "lists of names")
    return Gptq(common, tuple(overrides), tuple(inner), section.boolean("lm_head", False))


def _read_override(dynamic: ConfigFile, key: str, common: GptqMatrix) -> Override:
    """`-:expression` means modules that are not quantized; others begin with `+:`, or nothing."""
    own = dynamic.section(key)
    if key.startswith("-:"):
        if own is not None:
            own.ignore("*")
        return Override(key.removeprefix("-:"), None)
    return Override(key.removeprefix("+:"), common if own is None else _read_matrix(own, common))


def _read_matrix(section: ConfigFile, common: GptqMatrix, *, required: bool = False) -> GptqMatrix:
    """The value of a section, or else `common`."""
    bits = section.integer("bits", None if required else common.bits)
    if bits not in (4, 8):
        raise section.wrong("bits", "4 or 8")
    group = common.group
    if section.has("group_size"):
        group = None if section.values["group_size"] == -1 else section.integer("group_size")
    elif required:
        group = section.integer("group_size", 128)
    return replace(
        common,
        bits=bits,
        group=group,
        is_symmetric=section.boolean("sym", common.is_symmetric),
        is_reordered=section.boolean("desc_act", common.is_reordered),
    )
