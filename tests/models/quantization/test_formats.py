"""Matrices of every format stand for what the formats' libraries make of them, and errors name the tensor."""

import re
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from jaxllm.models.checkpoint.config_file import ConfigFile, quantization_of
from jaxllm.models.checkpoint.safetensors_file import read_header
from jaxllm.models.errors import ModelError
from jaxllm.models.quantization.by_module import ByModule
from jaxllm.models.quantization.matrix_format import MatrixFormat
from jaxllm.models.quantization.module_tensors import ModuleTensors
from jaxllm.pallas_kernels.linear.weight_type import QuantizedMatrix
from tests.models.quantization.formats import FORMATS, Format

MODULE = "model.layers.0.self_attn.q_proj"
SHAPE = (32, 48)


def weight(out_size: int, in_size: int) -> torch.Tensor:
    # Shifted, so that zeros are not in the middle.
    return torch.randn(out_size, in_size, generator=torch.Generator().manual_seed(1)) + 0.3


def format_of(form: Format) -> MatrixFormat:
    file = ConfigFile({"quantization_config": form.section})
    section = file.section("quantization_config")
    assert section is not None
    module = import_module(f"jaxllm.models.quantization.{form.section['quant_method'].replace('-', '_')}")
    quantization = module.read_format(section)
    section.check_all_used(("quant_method",))
    assert isinstance(quantization, ByModule)
    assert hash(quantization)
    found = quantization.format_of(MODULE)
    assert found is not None
    assert quantization.format_of("lm_head") is None
    return found


def written(folder: Path, tensors: dict[str, torch.Tensor]) -> ModuleTensors:
    path = folder / "model.safetensors"
    save_file({f"{MODULE}.{ending}": tensor.contiguous() for ending, tensor in tensors.items()}, path)
    found = {tensor.name.removeprefix(f"{MODULE}."): tensor for tensor in read_header(path)}
    return ModuleTensors(MODULE, found)


def read(form: Format, tensors: ModuleTensors, shape: tuple[int, int] = SHAPE) -> QuantizedMatrix:
    found = format_of(form)
    assert found.shape_of(tensors) == shape
    tensors.check(found.tensors(shape))
    return found.read(tensors, shape)


@pytest.mark.parametrize("name", FORMATS)
def test_a_matrix_is_what_its_library_says(tmp_path: Path, name: str) -> None:
    form = FORMATS[name]
    made = form.make(weight(*SHAPE))
    matrix = read(form, written(tmp_path, made.tensors))
    assert matrix.kind == format_of(form).kind
    assert matrix.values.shape == matrix.kind.values_shape(SHAPE)
    assert matrix.values.dtype == matrix.kind.array_type
    assert matrix.scales.shape == matrix.kind.scales_shape(SHAPE)
    assert (matrix.offsets is not None) == matrix.kind.has_offsets
    np.testing.assert_allclose(matrix.dequantized(), made.dense, rtol=0, atol=2e-6)


def test_an_odd_number_of_inputs(tmp_path: Path) -> None:
    form = FORMATS["W4A16 per channel"]
    made = form.make(weight(16, 13))
    matrix = read(form, written(tmp_path, made.tensors), (16, 13))
    assert not (matrix.values.view(np.uint8)[:, -1] >> 4).any()
    np.testing.assert_allclose(matrix.dequantized(), made.dense, rtol=0, atol=2e-6)


Damage = Callable[[dict[str, torch.Tensor]], Any]


def replaced(ending: str, change: Callable[[torch.Tensor], torch.Tensor]) -> Damage:
    def damage(tensors: dict[str, torch.Tensor]) -> None:
        tensors[ending] = change(tensors[ending])

    return damage


def _infinite(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.float().index_fill(0, torch.tensor([0]), torch.inf)


DAMAGES: list[tuple[str, Damage, str]] = [
    ("W4A16 in groups", lambda tensors: tensors.pop("weight_scale"), "'{}.weight_scale' is missing"),
    ("W4A16 in groups", replaced("weight_scale", _infinite), "'{}.weight_scale' has scales that are not finite"),
    ("W4A16 in groups", replaced("weight_scale", lambda t: t[:, :3]), "'{}.weight_scale' is [32, 3] of F32; it must"),
    ("W4A16 in groups", replaced("weight_packed", lambda t: t[:, :3]), "of each are [32, 3] words"),
    ("W4A16 in groups", replaced("weight_packed", lambda t: t.float()), "'{}.weight_packed' is [32, 6] of F32"),
    ("W4A16 in groups", replaced("weight_shape", lambda t: t + 1), "'{}.weight_shape' is [33, 49], but the 4 bits"),
    ("W4A16 in groups", lambda tensors: tensors.update(weight_zero_point=torch.zeros(4, 6, dtype=torch.int32)),
     "'{}.weight_zero_point' does not belong"),
    ("W4A16 asymmetric", lambda tensors: tensors.pop("weight_zero_point"), "'{}.weight_zero_point' is missing"),
    ("W4A16 reordered", replaced("weight_g_idx", lambda t: t + 1), "'{}.weight_g_idx' has group indices out"),
    ("W4A16 reordered", replaced("weight_g_idx", lambda t: t - 1), "'{}.weight_g_idx' has group indices outside"),
    ("W4A16 reordered", replaced("weight_g_idx", lambda t: t * 0), "'{}.weight_g_idx' does not assign 8 inputs to"),
    ("GPTQ", replaced("qzeros", lambda t: t + 1), "'{}.qzeros' has zero points other than 8"),
    ("GPTQ", replaced("g_idx", lambda t: t.flip(0)), "'{}.g_idx' reorders inputs"),
    ("GPTQ desc_act", lambda tensors: tensors.pop("g_idx"), "'{}.g_idx' is missing"),
    ("GPTQ desc_act", replaced("g_idx", lambda t: t[:40]), "'{}.g_idx' is [40] of I32; it must be [48]"),
    ("AWQ", replaced("qzeros", lambda t: t[:, :2]), "'{}.qzeros' is [6, 2] of I32; it must be [6, 4]"),
    ("AWQ", replaced("scales", lambda t: t.int()), "'{}.scales' is [6, 32] of I32; it must be [6, 32] of F64 or"),
    ("fp8 static", replaced("input_scale", lambda t: -t), "'{}.input_scale' is -0.0"),
    ("fp8 static", replaced("input_scale", lambda t: t * torch.nan), "'{}.input_scale' has scales that are not"),
    ("fp8 static", lambda tensors: tensors.update(weight_scale_inv=torch.tensor(1.0)), "repeats"),
    ("fp8 in blocks", replaced("weight_scale_inv", lambda t: t.T), "'{}.weight_scale_inv' is [6, 2] of F32; it"),
    ("fp8 in blocks", replaced("weight", lambda t: t.float()), "'{}.weight' is [32, 48] of F32"),
    ("fp8 in blocks", replaced("weight", lambda t: (t.float() * torch.nan).to(t.dtype)), "'{}.weight' has values that"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "damage", "message"), DAMAGES)
def test_what_does_not_fit_is_named(tmp_path: Path, name: str, damage: Damage, message: str) -> None:
    form = FORMATS[name]
    tensors = dict(form.make(weight(*SHAPE)).tensors)
    damage(tensors)
    with pytest.raises(ModelError, match=re.escape(message.format(MODULE))):
        read(form, written(tmp_path, tensors))


def test_a_language_model_may_say_how_it_is_quantized() -> None:
    """As that of Kimi-K2.5 does."""
    section = {"quant_method": "compressed-tensors"}
    for values in (
        {"quantization_config": section},
        {"compression_config": section},
        {"text_config": {"quantization_config": section}, "quantization_config": None},
    ):
        found = quantization_of(ConfigFile(values, "config.json"))
        assert found is not None
        assert found.values == section
    assert quantization_of(ConfigFile({"text_config": {}}, "config.json")) is None
