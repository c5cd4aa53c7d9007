"""Weights in MXFP4 are those that transformers' own dequantiser gives, and everything wrong with them has a name."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from jaxllm.models.causal_lm import load_model
from jaxllm.models.checkpoint.checkpoint import Checkpoint
from jaxllm.models.checkpoint.model_config import read_config
from jaxllm.models.checkpoint.safetensors_file import read_header
from jaxllm.models.errors import ModelError
from jaxllm.models.options import ForwardOptions
from jaxllm.models.quantization.mxfp4 import Mxfp4
from tests.models.test_expert_families import CASES
from tests.models.test_families import check, save

Tensors = dict[str, np.ndarray]
EXPERTS = "model.layers.0.mlp.experts"
QUANTISED = (f"{EXPERTS}.gate_up_proj", f"{EXPERTS}.down_proj", "model.layers.1.mlp.experts.gate_up_proj")
"""The other matrices are not converted, as the configuration says."""
METHOD = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.1.mlp.experts.down_proj", "lm_head"]}


def quantised(folder: Path, model: torch.nn.Module) -> Tensors:
    """Give a model random weights of MXFP4, and its checkpoint their blocks and scales."""
    random = np.random.default_rng(3)
    values = load_file(folder / "model.safetensors")
    for name in QUANTISED:
        experts, columns, rows = values.pop(name).shape
        blocks = random.integers(0, 256, (experts, rows, columns // 32, 16), np.uint8)
        scales = random.integers(121, 125, blocks.shape[:-1], np.uint8)
        wide = convert_moe_packed_tensors(torch.tensor(blocks), torch.tensor(scales), dtype=torch.float32)
        model.get_parameter(name).data.copy_(wide)
        values |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
    return values


def write(folder: Path, values: Tensors, **config: Any) -> None:
    save_file(values, folder / "model.safetensors")
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "quantization_config": METHOD, **config}))


def test_logits(tmp_path: Path) -> None:
    model = save(tmp_path, CASES["gpt_oss"])
    write(tmp_path, quantised(tmp_path, model))
    check(tmp_path, model)


def test_every_number(tmp_path: Path) -> None:
    """All bytes with all scales but the largest."""
    blocks = np.arange(253 * 256, dtype=np.uint32).astype(np.uint8).reshape(1, 253, 16, 16)
    scales = np.repeat(np.arange(253, dtype=np.uint8)[None, :, None], 16, axis=2)
    save_file({"w_blocks": blocks, "w_scales": scales}, tmp_path / "one.safetensors")
    tensors = {tensor.name: tensor for tensor in read_header(tmp_path / "one.safetensors")}
    (matrix,) = Mxfp4().matrices(tensors, {"w"}).values()
    wanted = convert_moe_packed_tensors(torch.tensor(blocks), torch.tensor(scales), dtype=torch.float64).numpy()
    np.testing.assert_array_equal(matrix.read().dequantized().T[None], wanted)


NAME = f"{EXPERTS}.down_proj"


def _blocks(values: Tensors) -> np.ndarray:
    return values[f"{NAME}_blocks"]


WRONG: dict[str, tuple[Callable[[Tensors], Tensors], str]] = {
    "scales that are missing": (
        lambda values: {name: value for name, value in values.items() if name != f"{NAME}_scales"},
        "down_proj_blocks' has no scales: .*down_proj_scales' is missing",
    ),
    "scales of another shape": (
        lambda values: {**values, f"{NAME}_scales": values[f"{NAME}_scales"][:, :-1]},
        r"down_proj_scales' has shape \[8, 63, 3\], expected one for each block, \[8, 64, 3\]",
    ),
    "blocks of another size": (
        lambda values: {**values, f"{NAME}_blocks": _blocks(values)[..., :8]},
        r"down_proj_blocks' has shape \[8, 64, 3, 8\], expected blocks of 16 bytes",
    ),
    "too few experts": (
        lambda values: {
            **values,
            f"{NAME}_blocks": _blocks(values)[:7],
            f"{NAME}_scales": values[f"{NAME}_scales"][:7],
        },
        r"down_proj' has shape \[(7, 96, 64|448, 96)\], expected \[(8, 96, 64|512, 96)\]",
    ),
    "blocks that are not bytes": (
        lambda values: {**values, f"{NAME}_blocks": _blocks(values).astype(np.float32)},
        "down_proj_blocks' of type F32 does not hold bytes",
    ),
    "a scale that is no number": (
        lambda values: {**values, f"{NAME}_scales": np.full_like(values[f"{NAME}_scales"], 255)},
        "down_proj_scales' has scale 255",
    ),
    "both": (
        lambda values: {**values, NAME: np.zeros((8, 96, 64), np.float32)},
        "2 unexpected tensors .*down_proj_blocks, .*down_proj_scales",
    ),
}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Tensors]:
    folder = tmp_path_factory.mktemp("quantised")
    return folder, quantised(folder, save(folder, CASES["gpt_oss"]))


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_named(saved: tuple[Path, Tensors], name: str) -> None:
    folder, values = saved
    change, message = WRONG[name]
    write(folder, {key: np.ascontiguousarray(value) for key, value in change(values).items()})
    with pytest.raises(ModelError, match=message):
        load_model(Checkpoint(folder), read_config(folder), ForwardOptions(), "float32")


def test_other_fields_are_refused(saved: tuple[Path, Tensors]) -> None:
    folder, values = saved
    write(folder, values, quantization_config={**METHOD, "dequantize_to": "int8"})
    with pytest.raises(ModelError, match="option 'dequantize_to'"):
        read_config(folder)
