"""Checkpoints of method 'bitnet' give what transformers computes with its layers in place of linear ones."""

import json
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from jaxllm.models.checkpoint.model_config import read_config
from jaxllm.models.errors import ModelError
from tests.models.quantization.checkpoints import SIZES
from tests.models.quantization.test_checkpoints import PROMPT, ROUNDED, logits
from tests.models.test_families import randomise

KINDS = {
    "packed": {"linear_class": "autobitlinear", "quantization_mode": "offline"},
    "packed, divided": {"linear_class": "bitlinear", "quantization_mode": "offline"},
    "unpacked": {"linear_class": "autobitlinear", "quantization_mode": "offline"},
    "ordinary": {"linear_class": "autobitlinear", "quantization_mode": "online"},
}
Tensors = dict[str, torch.Tensor]


def save(folder: Path, name: str) -> transformers.BitNetForCausalLM:
    """A random model with ordinary matrices in `folder`, whose configuration says that they are of a kind."""
    model = transformers.BitNetForCausalLM(transformers.BitNetConfig(**SIZES)).eval()
    randomise(model)
    model.save_pretrained(folder)
    path = folder / "config.json"
    section = {"quantization_config": {"quant_method": "bitnet", **KINDS[name]}}
    path.write_text(json.dumps({**json.loads(path.read_text()), **section}))
    return model


def rounded(tensors: Tensors, *, divides: bool) -> Tensors:
    """The tensors with -1, 0 and 1 in place of matrices, and scales."""
    made = dict(tensors)
    for name, tensor in tensors.items():
        if name.endswith("_proj.weight"):
            scale = tensor.abs().mean()
            made[name] = (tensor / scale).round().clamp(-1, 1)
            made[name.replace(".weight", ".weight_scale")] = torch.tensor([1 / scale if divides else scale])
    return made


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
def test_logits(tmp_path: Path, name: str) -> None:
    with warnings.catch_warnings():
        # The compiler that it imports has a decorator which is deprecated.
        warnings.simplefilter("ignore")
        from transformers.integrations.bitnet import pack_weights, replace_with_bitnet_linear

    model, divides = save(tmp_path, name), "divided" in name
    weights, section = tmp_path / "model.safetensors", transformers.BitNetQuantConfig(**KINDS[name])
    tensors = load_file(weights)
    values = dict(tensors) if name == "ordinary" else rounded(tensors, divides=divides)
    matrices = [key for key in values if key.endswith("_proj.weight")]
    packed = {**values, **{key: pack_weights(values[key].clone()) for key in matrices}} if "packed" in name else values
    save_file({**packed, **{key: values[key] for key in matrices}} if name == "unpacked" else packed, weights)
    buffers = {key: value.clone() for key, value in model.named_buffers()}
    replace_with_bitnet_linear(model, ["lm_head"], section)
    model.to_empty(device="cpu")
    model.load_state_dict({**buffers, **(packed if divides else values)}, strict=False)
    for key, value in model.named_buffers():
        if key in buffers:
            value.copy_(buffers[key])
    with torch.compiler.set_stance("force_eager"), torch.no_grad():
        expected = model(torch.tensor([PROMPT])).logits[0].numpy()
    assert expected.std() > 0.3
    found = logits(tmp_path)
    np.testing.assert_allclose(found, expected, rtol=0, atol=ROUNDED)
    # An activation that is on the edge may go either way, but few are.
    assert np.abs(found - expected).mean() < 2e-3


def test_norms_before_products_are_refused_by_name(tmp_path: Path) -> None:
    save(tmp_path, "packed")
    path = tmp_path / "config.json"
    values = json.loads(path.read_text())
    values["quantization_config"]["use_rms_norm"] = True
    path.write_text(json.dumps(values))
    with pytest.raises(ModelError, match=r"'use_rms_norm'.*norms before each product"):
        read_config(tmp_path)


def test_a_fourth_value_is_an_error_that_names_the_tensor(tmp_path: Path) -> None:
    save(tmp_path, "unpacked")
    weights, name = tmp_path / "model.safetensors", "model.layers.1.mlp.down_proj.weight"
    tensors = rounded(load_file(weights), divides=False)
    tensors[name][0, 0] = 2
    save_file(tensors, weights)
    with pytest.raises(ModelError, match=rf"{name}.*other values than -1, 0 and 1"):
        logits(tmp_path)
