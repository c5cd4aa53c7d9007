"""Matrices in FP4 stand for what compressed-tensors decompresses, and errors name the tensor."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from safetensors.torch import save_file

from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.checkpoint.safetensors_file import read_header
from jaxllm.models.errors import ModelError
from jaxllm.models.quantization import compressed_tensors, modelopt
from jaxllm.models.quantization.format import Format
from jaxllm.pallas_kernels.linear.weight_type import QuantizedMatrix

Tensors = dict[str, torch.Tensor]
MODULE = "model.layers.0.self_attn.q_proj"
WEIGHTS: dict[str, Any] = {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16}
WEIGHTS |= {"symmetric": True, "dynamic": False, "observer": "minmax"}
INPUTS = {**WEIGHTS, "dynamic": "local"}


def dense() -> torch.Tensor:
    return torch.randn(32, 48, generator=torch.Generator().manual_seed(1))


def nvfp4() -> tuple[Tensors, np.ndarray]:
    weight = dense()
    whole = torch.tensor([448 * 6 / weight.abs().max()])
    scales = (weight.reshape(32, 3, 16).abs().amax(2) / 6 * whole).to(torch.float8_e4m3fn).to(torch.float32)
    scheme = QuantizationScheme(targets=["Linear"], weights=QuantizationArgs(**WEIGHTS))
    compressor = BaseCompressor.get_value_from_registry("nvfp4-pack-quantized")
    state = {"weight": weight, "weight_scale": scales, "weight_global_scale": whole}
    tensors = compressor.compress(state, scheme)
    wanted = compressor.decompress({**tensors, "weight_packed": tensors["weight_packed"]}, scheme)["weight"]
    return {**tensors, "input_global_scale": torch.tensor([3.0])}, wanted.double().numpy()


def section(**weights: Any) -> ConfigFile:
    group = {"targets": ["Linear"], "weights": {**WEIGHTS, **weights}, "input_activations": INPUTS}
    return ConfigFile({"format": "nvfp4-pack-quantized", "config_groups": {"group_0": group}, "ignore": ["lm_head"]})


def read(folder: Path, tensors: Tensors, form: Format) -> QuantizedMatrix:
    path = folder / "model.safetensors"
    save_file({f"{MODULE}.{ending}": tensor.contiguous() for ending, tensor in tensors.items()}, path)
    (found,) = form.matrices({each.name: each for each in read_header(path)}, {f"{MODULE}.weight"}).values()
    assert set(found.parts) == {f"{MODULE}.{ending}" for ending in tensors}
    return found.read()


def test_nvfp4_of_compressed_tensors(tmp_path: Path) -> None:
    tensors, wanted = nvfp4()
    file = section()
    form = compressed_tensors.read_format(file)
    file.check_all_used(())
    found = read(tmp_path, tensors, form)
    assert found.kind == form.weight_type(f"{MODULE}.weight")
    np.testing.assert_allclose(found.dequantized(), wanted, rtol=0, atol=0.005 * np.abs(wanted).max())
    exact = dense().double().numpy()
    assert np.abs(found.dequantized() - exact).max() < 0.2 * np.abs(exact).max()


def test_nvfp4_of_modelopt(tmp_path: Path) -> None:
    """The same numbers, but the scale of the whole matrix is the reciprocal."""
    tensors, _ = nvfp4()
    other = {
        "weight": tensors["weight_packed"],
        "weight_scale": tensors["weight_scale"],
        "weight_scale_2": (1 / tensors["weight_global_scale"]).reshape(()),
        "input_scale": torch.tensor(0.1),
    }
    values = {"quant_algo": "NVFP4", "ignore": ["lm_head", "model.layers.1*"], "producer": {"name": "modelopt"}}
    form = modelopt.read_format(ConfigFile(values))
    found = read(tmp_path, other, form)
    wanted = read(tmp_path, tensors, compressed_tensors.read_format(section()))
    np.testing.assert_allclose(found.dequantized(), wanted.dequantized(), rtol=1e-6)
    names = ("lm_head.weight", "model.layers.1.mlp.up_proj.weight", "model.layers.0.mlp.up_proj.weight")
    assert [form.weight_type(name) is not None for name in names] == [False, False, True]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"weight_global_scale": torch.tensor([0.0])}, r"weight_global_scale' is 0\.0; it must be positive"),
        ({"weight_global_scale": torch.tensor([torch.nan])}, "weight_global_scale' has scales that are not finite"),
        ({"weight_global_scale": torch.ones(2)}, r"weight_global_scale' is \[2\] of F32; it must be"),
        ({"weight_scale": torch.full((32, 3), torch.nan).to(torch.float8_e4m3fn)}, "weight_scale' has scales that"),
        ({"weight_scale": torch.ones(32, 4).to(torch.float8_e4m3fn)}, r"groups of 16 in \(32, 48\)"),
        ({"weight_packed": torch.ones(32, 24)}, r"weight_packed' is \[32, 24\] of F32"),
        ({"weight_zero_point": torch.ones(32, 3)}, "weight_zero_point' does not belong"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, changes: Tensors, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        read(tmp_path, {**nvfp4()[0], **changes}, compressed_tensors.read_format(section()))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"group_size": 32}, "'group_size' must be 16"),
        ({"symmetric": False}, "'symmetric'"),
        ({"num_bits": 8}, "'num_"),
    ],
)
def test_options(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        compressed_tensors.read_format(section(**changes))
    with pytest.raises(ModelError, match="'quant_algo' must be 'NVFP4' or 'FP8'"):
        modelopt.read_format(ConfigFile({"quant_algo": "W4A8_AWQ"}))
