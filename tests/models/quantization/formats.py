"""Quantised matrices as checkpoints have them, made from dense ones, each with what it stands for.

Those of compressed-tensors are made by that library, and stand for what it decompresses. For GPTQ and AWQ, whose
libraries want a GPU, packing is written out bit by bit.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from compressed_tensors.quantization.utils import calculate_qparams

Tensors = dict[str, torch.Tensor]
Dense = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True)
class Made:
    """Tensors by what follows the module's name, and the matrix [out, in] that they are."""

    tensors: Tensors
    dense: Dense


@dataclass(frozen=True)
class Format:
    """The section of config.json, and how a module's tensors are made from a dense matrix [out, in]."""

    section: dict[str, Any]
    make: Callable[[torch.Tensor], Made]
    rounds_activations: bool = False


GROUP = 8
"""Inputs that share a scale."""


def compressed(name: str, weights: dict[str, Any], inputs: dict[str, Any] | None = None) -> Format:
    """A format of compressed-tensors."""
    group = {"targets": ["Linear"], "weights": weights, "input_activations": inputs, "output_activations": None}
    section = {
        "quant_method": "compressed-tensors",
        "format": name,
        "quantization_status": "compressed",
        "ignore": ["lm_head"],
        "kv_cache_scheme": None,
        "global_compression_ratio": None,
        "config_groups": {"group_0": group},
    }
    scheme = QuantizationScheme(
        targets=["Linear"],
        weights=QuantizationArgs(**weights),
        input_activations=None if inputs is None else QuantizationArgs(**inputs),
    )
    is_static = inputs is not None and not inputs["dynamic"]

    def make(weight: torch.Tensor) -> Made:
        assert scheme.weights is not None
        scale, zero = calculate_qparams(*_extremes(weight, scheme.weights), scheme.weights)
        state = {"weight": weight.clone(), "weight_scale": scale, "weight_zero_point": zero.to(torch.int8)}
        compressor = BaseCompressor.get_value_from_registry(name)
        tensors = compressor.compress(state, scheme)
        dense = compressor.decompress(dict(tensors), scheme)["weight"]
        tensors = {ending: tensor.contiguous() for ending, tensor in tensors.items()}
        if is_static:
            tensors["input_scale"] = torch.tensor([0.04])
        return Made(tensors, dense.double().numpy())

    return Format(section, make, rounds_activations=inputs is not None and weights["strategy"] != "block")


def _extremes(weight: torch.Tensor, args: QuantizationArgs) -> tuple[torch.Tensor, torch.Tensor]:
    """The least and the largest of what shares a scale."""
    out_size, in_size = weight.shape
    if args.strategy == "tensor":
        parts = weight.reshape(1, -1)
        return parts.amin(1), parts.amax(1)
    if args.strategy == "block":
        assert args.block_structure is not None
        rows, columns = args.block_structure
        pad = torch.nn.functional.pad(weight, (0, -in_size % columns, 0, -out_size % rows))
        parts = pad.reshape(len(pad) // rows, rows, -1, columns)
        return parts.amin((1, 3)), parts.amax((1, 3))
    parts = weight.reshape(out_size, -1, args.group_size or in_size)
    return parts.amin(2), parts.amax(2)


def _grid(weight: np.ndarray, bits: int, group: np.ndarray, is_symmetric: bool) -> tuple[np.ndarray, ...]:
    """Numbers [out, in], scales in float16 and zeros [out, G], for the group of each input."""
    count = group.max() + 1
    scales, zeros = np.empty((len(weight), count), np.float16), np.empty((len(weight), count), np.int64)
    for number in range(count):
        part = weight[:, group == number]
        low, high = np.minimum(part.min(1), 0), np.maximum(part.max(1), 0)
        if is_symmetric:
            high = np.maximum(high, -low)
            low = -high
        scales[:, number] = np.maximum((high - low) / (2**bits - 1), 1e-4)
        exact = 2 ** (bits - 1) if is_symmetric else np.round(-low / scales[:, number].astype(float))
        zeros[:, number] = np.clip(exact, 0, 2**bits - 1)
    numbers = np.round(weight / scales[:, group].astype(float)) + zeros[:, group]
    return np.clip(numbers, 0, 2**bits - 1).astype(np.int64), scales, zeros


def _packed(numbers: np.ndarray, bits: int, places: tuple[int, ...] | None = None) -> np.ndarray:
    """Numbers [rows, n] in int32 [rows, n * bits / 32]."""
    per_word = 32 // bits
    words = np.zeros((len(numbers), numbers.shape[1] // per_word), np.int64)
    for word in range(words.shape[1]):
        for i in range(per_word):
            place = i if places is None else places[i]
            words[:, word] |= numbers[:, word * per_word + place] << (bits * i)
    return words.astype(np.uint32).view(np.int32)


def gptq(bits: int, *, sym: bool, desc_act: bool, form: str = "gptq", group: int = GROUP) -> Format:
    """As AutoGPTQ packs it, nn_modules/qlinear/qlinear_cuda.py (MIT), and GPTQModel for 'gptq_v2'."""
    section = {
        "quant_method": "gptq",
        "bits": bits,
        "group_size": group,
        "sym": sym,
        "desc_act": desc_act,
        "checkpoint_format": form,
        "damp_percent": 0.1,
        "true_sequential": True,
        "static_groups": False,
        "model_name_or_path": None,
    }

    def make(weight: torch.Tensor) -> Made:
        dense = weight.double().numpy()
        in_size = dense.shape[1]
        of_input = np.arange(in_size) // (in_size if group == -1 else group)
        if desc_act:
            # One for all matrices of as many inputs, as it is for those that multiply the same activations.
            of_input = np.random.default_rng(in_size).permutation(of_input)
        numbers, scales, zeros = _grid(dense, bits, of_input, sym)
        words = _packed(zeros.T, bits)
        if form == "gptq":
            ones = sum(1 << shift for shift in range(0, 32, bits))
            words = (words.view(np.uint32) - np.uint32(ones)).view(np.int32)
        tensors = {
            "qweight": torch.from_numpy(np.ascontiguousarray(_packed(numbers, bits).T)),
            "qzeros": torch.from_numpy(words),
            "scales": torch.from_numpy(np.ascontiguousarray(scales.T)),
            "g_idx": torch.from_numpy(of_input.astype(np.int32)),
        }
        return Made(tensors, scales.astype(float)[:, of_input] * (numbers - zeros[:, of_input]))

    return Format(section, make)


def awq(group: int = GROUP) -> Format:
    """As AutoAWQ packs it, modules/linear/gemm.py (MIT)."""
    section = {"quant_method": "awq", "bits": 4, "group_size": group, "zero_point": True, "version": "gemm"}

    def make(weight: torch.Tensor) -> Made:
        dense, places = weight.double().numpy(), (0, 2, 4, 6, 1, 3, 5, 7)
        of_input = np.arange(dense.shape[1]) // group
        numbers, scales, zeros = _grid(dense, 4, of_input, is_symmetric=False)
        tensors = {
            "qweight": torch.from_numpy(_packed(numbers.T, 4, places)),
            "qzeros": torch.from_numpy(_packed(zeros.T, 4, places)),
            "scales": torch.from_numpy(np.ascontiguousarray(scales.T)),
        }
        return Made(tensors, scales.astype(float)[:, of_input] * (numbers - zeros[:, of_input]))

    return Format(section, make)


def pack_reordered(weight: torch.Tensor) -> Made:
    """'pack-quantized' with groups of inputs that are not neighbours, as compressed-tensors wrote it before 0.17."""
    of_input = np.random.default_rng(weight.shape[1]).permutation(np.arange(weight.shape[1]) // GROUP)
    numbers, scales, zeros = _grid(weight.double().numpy(), 4, of_input, is_symmetric=True)
    tensors = {
        "weight_packed": torch.from_numpy(_packed(numbers, 4)),
        "weight_scale": torch.from_numpy(scales),
        "weight_shape": torch.tensor(weight.shape),
        "weight_g_idx": torch.from_numpy(of_input.astype(np.int32)),
    }
    return Made(tensors, scales.astype(float)[:, of_input] * (numbers - zeros[:, of_input]))


def fp8(block: tuple[int, int] | None, scheme: str = "dynamic", scale: str = "weight_scale_inv") -> Format:
    """Method 'fp8'."""
    sizes = block and list(block)
    section = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": scheme, "weight_block_size": sizes}

    def make(weight: torch.Tensor) -> Made:
        rows, columns = block or weight.shape
        scales = np.empty((-(-weight.shape[0] // rows), -(-weight.shape[1] // columns)), np.float32)
        values, dense = torch.empty(weight.shape, dtype=torch.float8_e4m3fn), np.empty(weight.shape)
        for i, j in np.ndindex(*scales.shape):
            part = slice(i * rows, i * rows + rows), slice(j * columns, j * columns + columns)
            scales[i, j] = weight[part].abs().max() / 448
            values[part] = (weight[part] / float(scales[i, j])).to(torch.float8_e4m3fn)
            dense[part] = values[part].double().numpy() * float(scales[i, j])
        own = torch.from_numpy(scales) if block else torch.tensor(scales.item())
        found = {"weight": values, scale: own}
        if scheme == "static":
            found["activation_scale" if scale.endswith("inv") else "input_scale"] = torch.tensor(0.03)
        return Made(found, dense)

    return Format(section, make, rounds_activations=block is None)


def modelopt_fp8() -> Format:
    """As modelopt exports it: the same tensors as of method 'fp8' with static scales."""
    group = {"input_activations": {"dynamic": False, "num_bits": 8, "type": "float"}, "targets": ["Linear"]}
    groups = {"group_0": {**group, "weights": group["input_activations"]}}
    section = {"quant_method": "modelopt", "quant_algo": "FP8", "ignore": ["lm_head"], "config_groups": groups}
    return Format(section, fp8(None, "static", "weight_scale").make, rounds_activations=True)


def fbgemm() -> Format:
    """As transformers writes it: a scale for each output, and the bound on activations alongside each matrix."""
    section = {"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0, "modules_to_not_convert": ["lm_head"]}

    def make(weight: torch.Tensor) -> Made:
        scales = weight.abs().amax(1, keepdim=True) / 448
        values = (weight / scales).to(torch.float8_e4m3fn)
        tensors = {"weight": values, "weight_scale": scales, "input_scale_ub": torch.tensor([1200.0])}
        return Made(tensors, values.double().numpy() * scales.double().numpy())

    return Format(section, make, rounds_activations=True)


FP4_NUMBERS = (0, 0.5, 1, 1.5, 2, 3, 4, 6)
"""E2M1 of OCP Microscaling Formats (MX) 1.0, section 5.3.3, without the sign in the highest bit."""


def nvfp4(method: str) -> Format:
    """As compressed-tensors packs it, and as modelopt writes the same numbers.

    The library decompresses to scales of 8 bits of precision, so what they are is computed here.
    """
    weights: dict[str, Any] = {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16}
    weights |= {"symmetric": True, "dynamic": False}
    plain = compressed("nvfp4-pack-quantized", weights)
    scheme = QuantizationScheme(targets=["Linear"], weights=QuantizationArgs(**weights))

    def make(weight: torch.Tensor) -> Made:
        rows, columns = weight.shape
        whole = torch.tensor([448 * 6 / weight.abs().max()])
        scales = (weight.reshape(rows, -1, 16).abs().amax(2) / 6 * whole).to(torch.float8_e4m3fn)
        state = {"weight": weight.clone(), "weight_scale": scales.float(), "weight_global_scale": whole}
        tensors = BaseCompressor.get_value_from_registry("nvfp4-pack-quantized").compress(state, scheme)
        packed = tensors["weight_packed"].numpy()
        codes = np.stack((packed & 15, packed >> 4), axis=-1).reshape(rows, columns)
        numbers = np.array((*FP4_NUMBERS, *(-number for number in FP4_NUMBERS)))[codes]
        if method == "modelopt":
            tensors = {
                "weight": tensors["weight_packed"],
                "weight_scale": tensors["weight_scale"],
                "weight_scale_2": (1 / whole).reshape(()),
                "input_scale": torch.tensor(0.1),
            }
        return Made(dict(tensors), numbers * scales.double().numpy().repeat(16, axis=1) / whole.double().numpy())

    if method == "compressed-tensors":
        return Format(plain.section, make)
    section = {"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16, "ignore": ["lm_head"]}
    return Format({**section, "producer": {"name": "modelopt", "version": "0.33.0"}}, make)


INT = {"num_bits": 8, "type": "int", "symmetric": True, "dynamic": False, "observer": "minmax"}
PER_TOKEN = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "token", "dynamic": True, "observer": None}
STATIC = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "tensor", "dynamic": False}
FLOAT = {**INT, "type": "float"}
CHANNEL = {"strategy": "channel"}
TENSOR = {"strategy": "tensor"}
FOUR = {**INT, "num_bits": 4, "strategy": "group", "group_size": GROUP}
BLOCK = {"strategy": "block", "block_structure": [16, 8]}
OF_BLOCKS = {"num_bits": 8, "type": "float", "strategy": "group", "group_size": 8, "dynamic": True}
FLOAT_TOKEN, FLOAT_STATIC = {**PER_TOKEN, "type": "float"}, {**STATIC, "type": "float"}


def _reordered() -> Format:
    plain = compressed("pack-quantized", FOUR)
    (group,) = plain.section["config_groups"].values()
    groups = {"group_0": {**group, "weights": {**FOUR, "actorder": "group"}}}
    return Format({**plain.section, "config_groups": groups}, pack_reordered)


FORMATS: Mapping[str, Format] = {
    "int8 per channel, per token": compressed("int-quantized", {**INT, **CHANNEL}, PER_TOKEN),
    "int8 per tensor, static": compressed("int-quantized", {**INT, **TENSOR}, STATIC),
    "int8 in groups": compressed("naive-quantized", {**INT, "strategy": "group", "group_size": GROUP}),
    "int8 asymmetric": compressed("naive-quantized", {**INT, **CHANNEL, "symmetric": False}),
    "float8 per channel, per token": compressed("float-quantized", {**FLOAT, **CHANNEL}, FLOAT_TOKEN),
    "float8 per tensor, static": compressed("float-quantized", {**FLOAT, **TENSOR}, FLOAT_STATIC),
    "float8 per tensor": compressed("naive-quantized", {**FLOAT, **TENSOR}),
    "float8 in blocks": compressed("float-quantized", {**FLOAT, **BLOCK}, OF_BLOCKS),
    "W4A16 in groups": compressed("pack-quantized", FOUR),
    "W4A16 per channel": compressed("pack-quantized", {**FOUR, **CHANNEL, "group_size": None}),
    "W4A16 asymmetric": compressed("pack-quantized", {**FOUR, "symmetric": False}),
    "W4A16 reordered": _reordered(),
    "W4A8": compressed("pack-quantized", FOUR, PER_TOKEN),
    "W8A16 in groups": compressed("pack-quantized", {**FOUR, "num_bits": 8}),
    "W8A16 asymmetric": compressed("pack-quantized", {**FOUR, "num_bits": 8, "symmetric": False}),
    "AWQ": awq(),
    "GPTQ": gptq(4, sym=True, desc_act=False),
    "GPTQ per channel": gptq(4, sym=True, desc_act=False, group=-1),
    "GPTQ asymmetric": gptq(4, sym=False, desc_act=False),
    "GPTQ asymmetric v2": gptq(4, sym=False, desc_act=False, form="gptq_v2"),
    "GPTQ desc_act": gptq(4, sym=True, desc_act=True),
    "GPTQ 8 bits": gptq(8, sym=True, desc_act=False),
    "GPTQ 8 bits asymmetric desc_act": gptq(8, sym=False, desc_act=True),
    "fp8 in blocks": fp8((16, 8)),
    "fp8 in blocks of uneven size": fp8((24, 24)),
    "fp8 dynamic": fp8(None, scale="weight_scale"),
    "fp8 static": fp8(None, "static", "weight_scale"),
    "fp8 static, as transformers has it": fp8(None, "static"),
    "NVFP4": nvfp4("compressed-tensors"),
    "NVFP4 of modelopt": nvfp4("modelopt"),
    "float8 of modelopt": modelopt_fp8(),
    "float8 of fbgemm": fbgemm(),
}
