"""Matrices of bitsandbytes compared with what that library dequantises, and everything wrong with them has a name."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import bitsandbytes.functional as library
import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.checkpoint.safetensors_file import read_header
from jaxllm.models.errors import ModelError
from jaxllm.models.quantization.bitsandbytes import BitsAndBytes, read_format
from jaxllm.pallas_kernels.linear.weight_type import QuantizedMatrix

Tensors = dict[str, torch.Tensor]
MODULE = "model.layers.0.mlp.down_proj"
NAME = f"{MODULE}.weight"
STATE = f"{NAME}.quant_state.bitsandbytes__nf4"


def four_bits(dense: torch.Tensor, code: str = "nf4", *, nested: bool = True) -> tuple[Tensors, np.ndarray]:
    packed, state = library.quantize_4bit(dense, quant_type=code, compress_statistics=nested, blocksize=64)
    tensors = {NAME: packed, **{f"{NAME}.{key}": value for key, value in state.as_dict(packed=True).items()}}
    return tensors, library.dequantize_4bit(packed, state).numpy()


def int8(dense: torch.Tensor) -> tuple[Tensors, np.ndarray]:
    values, scales, _ = library.int8_vectorwise_quant(dense.half())
    tensors = {NAME: values, f"{MODULE}.SCB": scales, f"{MODULE}.weight_format": torch.tensor(0, dtype=torch.uint8)}
    return tensors, library.int8_vectorwise_dequant(values, scales).numpy()


def read(folder: Path, tensors: Tensors, form: BitsAndBytes) -> QuantizedMatrix:
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")
    found = form.matrices({each.name: each for each in read_header(folder / "model.safetensors")}, {NAME})
    (matrix,) = found.values()
    assert set(matrix.parts) == set(tensors)
    return matrix.read()


def dense(columns: int = 192) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(0).normal(size=(96, columns)).astype(np.float32))


@pytest.mark.parametrize("code", ["nf4", "fp4"])
@pytest.mark.parametrize("nested", [True, False])
def test_four_bits(tmp_path: Path, code: str, nested: bool) -> None:
    tensors, wanted = four_bits(dense(), code, nested=nested)
    form = read_format(ConfigFile({"load_in_4bit": True, "bnb_4bit_quant_type": code}))
    found = read(tmp_path, tensors, form)
    assert found.kind == form.weight_type(NAME)
    np.testing.assert_allclose(found.dequantized(), wanted, rtol=1e-6, atol=1e-6)


def test_eight_bits(tmp_path: Path) -> None:
    tensors, wanted = int8(dense())
    form = read_format(ConfigFile({"load_in_8bit": True}))
    found = read(tmp_path, tensors, form)
    assert found.kind == form.weight_type(NAME)
    np.testing.assert_allclose(found.dequantized(), wanted, rtol=1e-6, atol=1e-6)


def state(tensors: Tensors, **changes: Any) -> Tensors:
    values = {**json.loads(bytes(tensors[STATE].tolist())), **changes}
    return {**tensors, STATE: torch.tensor(list(json.dumps(values).encode()), dtype=torch.uint8)}


def without(tensors: Tensors, ending: str) -> Tensors:
    return {name: tensor for name, tensor in tensors.items() if name != f"{NAME}.{ending}"}


WRONG: dict[str, tuple[Callable[[Tensors], Tensors], str]] = {
    "no state": (lambda t: without(t, "quant_state.bitsandbytes__nf4"), "quant_state.bitsandbytes__nf4 is missing"),
    "no scales": (lambda t: without(t, "absmax"), r"weight\.absmax' is missing"),
    "no code": (lambda t: without(t, "quant_map"), r"weight\.quant_map' is missing"),
    "no numbers of bytes": (lambda t: without(t, "nested_quant_map"), r"weight\.nested_quant_map' is missing"),
    "another code": (
        lambda t: {**t, f"{NAME}.quant_map": torch.zeros(16)},
        r"weight\.quant_map' is not the code given in the configuration",
    ),
    "scales that are not finite": (
        lambda t: {**t, f"{NAME}.nested_absmax": t[f"{NAME}.nested_absmax"] * torch.nan},
        r"weight\.nested_absmax' has scales that are not finite",
    ),
    "a shape": (lambda t: state(t, shape=[2**50, 64]), "has 'shape' = "),
    "a larger shape": (lambda t: state(t, shape=[2**30, 192]), r"weight' is \[9216, 1\] of U8; it must be"),
    "a block": (lambda t: state(t, blocksize=0), "has 'blocksize' = 0, not a positive integer"),
    "a block of blocks": (lambda t: state(t, nested_blocksize=7), r"weight\.nested_absmax' is "),
    "an offset": (lambda t: state(t, nested_offset="much"), "has 'nested_offset' = much, not a finite number"),
    "a type": (lambda t: state(t, quant_type="fp4"), "does not have the 'quant_type' 'nf4'"),
    "no JSON": (lambda t: {**t, STATE: torch.zeros(5, dtype=torch.uint8)}, "is not JSON"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_named(tmp_path: Path, name: str) -> None:
    change, message = WRONG[name]
    with pytest.raises(ModelError, match=message):
        read(tmp_path, change(four_bits(dense())[0]), BitsAndBytes("nf4"))


def test_blocks_over_several_rows_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"weight' has rows of 96, which is not a multiple of the block size 64"):
        read(tmp_path, four_bits(dense(96))[0], BitsAndBytes("nf4"))


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({}, "'load_in_4bit' must be true, or"),
        ({"load_in_4bit": True, "load_in_8bit": True}, "'load_in_4bit' must be true, or"),
        ({"load_in_8bit": True, "llm_int8_has_fp16_weight": True}, "'llm_int8_has_fp16_weight' must be false"),
        ({"load_in_4bit": True, "bnb_4bit_quant_storage": "bfloat16"}, "'bnb_4bit_quant_storage' must be 'uint8'"),
        ({"load_in_4bit": True, "bnb_4bit_quant_type": "int4"}, "'bnb_4bit_quant_type' must be 'nf4' or 'fp4'"),
    ],
)
def test_options(section: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        read_format(ConfigFile(section))


def test_scales_that_no_float_holds(tmp_path: Path) -> None:
    tensors, _ = four_bits(dense())
    tensors[f"{NAME}.nested_absmax"] = torch.full_like(tensors[f"{NAME}.nested_absmax"], 3e38)
    tensors[f"{NAME}.nested_quant_map"] = torch.full_like(tensors[f"{NAME}.nested_quant_map"], 100)
    with pytest.raises(ModelError, match=r"nested_absmax.* makes scales that are not finite"):
        read(tmp_path, tensors, BitsAndBytes("nf4"))


def test_skipped_modules() -> None:
    form = read_format(ConfigFile({"load_in_4bit": True, "llm_int8_skip_modules": ["lm_head", "mlp.up_proj"]}))
    names = ("model.layers.0.mlp.up_proj", MODULE, "lm_head", "model.layers.0.mlp.gate", "model.embed_tokens")
    assert [form.weight_type(f"{name}.weight") is not None for name in names] == [False, True, False, False, False]
