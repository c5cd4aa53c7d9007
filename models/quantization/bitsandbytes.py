"""Checkpoints that bitsandbytes quantized: int8 with a scale for each output, or codes of 4 bits in blocks.

Format: https://github.com/bitsandbytes-foundation/bitsandbytes, functional.py, as transformers saves it. Blocks lie
one after another over all elements; where rows are not of whole blocks, they are rejected.
"""

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.checkpoint.safetensors_file import Tensor
from jaxllm.models.errors import ModelError
from jaxllm.models.quantization.format import Format, MatrixTensor
from jaxllm.models.quantization.module_names import is_in_block, is_named, read_names
from jaxllm.models.quantization.module_tensors import FLOATS, ModuleTensors, Needed
from jaxllm.pallas_kernels.linear.weight_type import QuantizedMatrix, Values, WeightType

_WEIGHT = ".weight"
_STATE = "weight.quant_state.bitsandbytes__"
_FOUR_BITS = ("weight", "weight.absmax", "weight.quant_map", "weight.nested_absmax", "weight.nested_quant_map")
_EIGHT_BITS = ("weight", "SCB", "weight_format")
MAX_STATE_BYTES = 65536


def _table(positive: tuple[float, ...]) -> tuple[float, ...]:
    return tuple(float(np.float32(number)) for number in positive)


NF4 = _table(
    (
        -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
        -0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725,
        0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
    )
)  # fmt: skip
"""NormalFloat4: arXiv 2305.14314, appendix E."""
_FP4 = (0.0, 0.0625 / 12, 8 / 12, 12 / 12, 4 / 12, 6 / 12, 2 / 12, 3 / 12)
FP4 = _table((*_FP4, *(-number for number in _FP4)))
"""Another FP4 than that of MXFP4, in other order, and divided by its largest number."""
CODES = {"nf4": NF4, "fp4": FP4}

INT8 = WeightType(Values.INT8)


@dataclass(frozen=True)
class Int8Matrix(MatrixTensor):
    """An int8 matrix, and the largest number of each output in `SCB`."""

    tensors: ModuleTensors

    def read(self) -> QuantizedMatrix:
        """See `MatrixTensor`."""
        scales = self.tensors.read_scales("SCB") / np.float32(127)
        return QuantizedMatrix(self.shape, self.kind, self.tensors.read("weight"), scales.reshape(-1, 1))


@dataclass(frozen=True)
class CodesMatrix(MatrixTensor):
    """A matrix in codes. `nested` is what was taken from the scales before they became bytes, if they did."""

    tensors: ModuleTensors
    nested: float | None
    nested_block: int

    def read(self) -> QuantizedMatrix:
        """See `MatrixTensor`. Raises `ModelError` for another code than the configuration has."""
        tensors, (rows, columns) = self.tensors, self.shape
        assert self.kind.code is not None
        if not np.allclose(tensors.read_scales("weight.quant_map"), self.kind.code, rtol=1e-6, atol=1e-6):
            raise tensors.error("weight.quant_map", "is not the code given in the configuration")
        packed = tensors.read("weight").reshape(rows, columns // 2)
        values = packed >> np.uint8(4) | packed << np.uint8(4)  # The first one is in the upper half.
        return QuantizedMatrix(self.shape, self.kind, values, self._scales().reshape(rows, -1))

    def _scales(self) -> np.ndarray:
        if self.nested is None:
            return self.tensors.read_scales("weight.absmax")
        bytes_ = self.tensors.read("weight.absmax").reshape(-1)
        of_block = self.tensors.read_scales("weight.nested_absmax")[np.arange(bytes_.size) // self.nested_block]
        numbers = self.tensors.read_scales("weight.nested_quant_map")[bytes_]
        with np.errstate(over="ignore"):
            scales: np.ndarray = numbers * of_block + np.float32(self.nested)
        if not np.isfinite(scales).all():
            raise self.tensors.error("weight.nested_absmax", "makes scales that are not finite")
        return scales


@dataclass(frozen=True)
class BitsAndBytes(Format):
    """Matrices of the layers but for those `skipped`: of 4 bits in this `code`, or of 8."""

    code: str | None
    skipped: tuple[str, ...] = ()

    def weight_type(self, name: str) -> WeightType | None:
        """See `Format`."""
        module = name.removesuffix(_WEIGHT)
        if module == name or not is_in_block(module) or is_named(module, self.skipped):
            return None
        return INT8 if self.code is None else _codes(self.code, 64)

    def matrices(self, tensors: Mapping[str, Tensor], wanted: Collection[str]) -> Mapping[str, MatrixTensor]:
        """See `Format`."""
        found: dict[str, MatrixTensor] = {}
        endings = _EIGHT_BITS if self.code is None else (*_FOUR_BITS, *(_STATE + code for code in CODES))
        for name in wanted:
            module = name.removesuffix(_WEIGHT)
            if name == module or name not in tensors or tensors[name].dtype in FLOATS:
                continue
            names = {ending: f"{module}.{ending}" for ending in endings}
            own = ModuleTensors(module, {ending: tensors[each] for ending, each in names.items() if each in tensors})
            found[name] = _int8(name, own) if self.code is None else _four_bits(name, own, self.code)
        return found


def read_format(section: ConfigFile) -> BitsAndBytes:
    """From the section of config.json. Raises `ModelError`, which names the field."""
    section.ignore(
        "_load_in_4bit",
        "_load_in_8bit",
        "bnb_4bit_compute_dtype",
        "bnb_4bit_use_double_quant",  # Each matrix says it itself.
        "llm_int8_enable_fp32_cpu_offload",
        # Large activations are multiplied apart where others become int8. Here all stay as they are, which is closer.
        "llm_int8_threshold",
    )
    four, eight = section.boolean("load_in_4bit", False), section.boolean("load_in_8bit", False)
    if four == eight:
        raise section.wrong("load_in_4bit", "true, or else 'load_in_8bit', but not both")
    if section.boolean("llm_int8_has_fp16_weight", False):
        raise section.wrong("llm_int8_has_fp16_weight", "false")
    if section.text("bnb_4bit_quant_storage", "uint8") != "uint8":
        raise section.wrong("bnb_4bit_quant_storage", "'uint8'")
    code = section.text("bnb_4bit_quant_type", "fp4")
    if code not in CODES:
        raise section.wrong("bnb_4bit_quant_type", "'nf4' or 'fp4'")
    return BitsAndBytes(code if four else None, read_names(section, "llm_int8_skip_modules"))


def _codes(code: str, block: int) -> WeightType:
    return WeightType(Values.CODES, block, code=CODES[code])


def _int8(name: str, tensors: ModuleTensors) -> Int8Matrix:
    shape = tensors.two_sizes("weight")
    formats = Needed(("weight_format",), ((), (1,)), ("U8",), is_optional=True)
    tensors.check([Needed(("weight",), (shape,), ("I8",)), Needed(("SCB",), ((shape[0],),), ("F32",)), formats])
    if "weight_format" in tensors.tensors and tensors.read("weight_format").reshape(-1)[0] != 0:
        raise tensors.error("weight_format", "is not 0 (row-major order)")
    return Int8Matrix(name, tensors.tensors["weight"].path, shape, INT8, *_rest(tensors), tensors)


def _four_bits(name: str, tensors: ModuleTensors, code: str) -> CodesMatrix:
    state = _State(tensors, code)
    rows, columns = state.shape
    block, nested_block = state.integer("blocksize"), 1
    if columns % block or block % 2:
        raise tensors.error("weight", f"has rows of {columns}, which is not a multiple of the block size {block}")
    count = rows * columns // block
    needed = [
        Needed(("weight",), ((rows * columns // 2, 1), (rows * columns // 2,)), ("U8",)),
        Needed(("weight.quant_map",), ((16,),), FLOATS),
        Needed((state.ending,), ((state.size,),), ("U8",)),
    ]
    nested = state.nested
    if nested is None:
        needed.append(Needed(("weight.absmax",), ((count,),), FLOATS))
    else:
        nested_block = state.integer("nested_blocksize")
        needed.append(Needed(("weight.absmax",), ((count,),), ("U8",)))
        needed.append(Needed(("weight.nested_absmax",), ((-(-count // nested_block),),), FLOATS))
        needed.append(Needed(("weight.nested_quant_map",), ((256,),), FLOATS))
    tensors.check(needed)
    path = tensors.tensors["weight"].path
    return CodesMatrix(
        name, path, (rows, columns), _codes(code, block), *_rest(tensors), tensors, nested, nested_block
    )  # fmt: skip


def _rest(tensors: ModuleTensors) -> tuple[int, tuple[str, ...]]:
    """Bytes of all tensors, and their names."""
    every = tensors.tensors.values()
    return sum(tensor.end - tensor.start for tensor in every), tuple(tensor.name for tensor in every)


class _State:
    """The JSON description in a matrix of 4 bits."""

    def __init__(self, tensors: ModuleTensors, code: str) -> None:
        self._tensors, self.ending = tensors, _STATE + code
        if self.ending not in tensors.tensors:
            raise ModelError(f"quantized matrix {tensors.module!r}: tensor {tensors.module}.{self.ending} is missing")
        tensor = tensors.tensors[self.ending]
        self.size = tensor.size
        if tensor.dtype != "U8" or len(tensor.shape) != 1 or tensor.size > MAX_STATE_BYTES:
            raise tensors.error(self.ending, f"is {list(tensor.shape)} of {tensor.dtype}, not a short text")
        try:
            self._values: Any = json.loads(tensors.read(self.ending).tobytes())
        except (ValueError, RecursionError):
            raise tensors.error(self.ending, "is not JSON") from None
        if not isinstance(self._values, dict) or self._values.get("quant_type") != code:
            raise tensors.error(self.ending, f"does not have the 'quant_type' {code!r}")

    @property
    def shape(self) -> tuple[int, int]:
        found = self._values.get("shape")
        if not isinstance(found, list) or len(found) != 2 or not all(_is_size(size) for size in found):
            raise self._wrong("shape", "two positive integers")
        return found[0], found[1]

    @property
    def nested(self) -> float | None:
        if "weight.nested_absmax" not in self._tensors.tensors:
            return None
        found = self._values.get("nested_offset")
        if not isinstance(found, int | float) or isinstance(found, bool) or not abs(found) < 1e30:
            raise self._wrong("nested_offset", "a finite number")
        return float(found)

    def integer(self, key: str) -> int:
        found: Any = self._values.get(key)
        if not _is_size(found):
            raise self._wrong(key, "a positive integer")
        return int(found)

    def _wrong(self, key: str, expected: str) -> ModelError:
        return self._tensors.error(self.ending, f"has {key!r} = {str(self._values.get(key))[:80]}, not {expected}")


def _is_size(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value < 2**40
