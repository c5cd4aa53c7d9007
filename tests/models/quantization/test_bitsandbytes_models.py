"""Models that bitsandbytes quantised give the logits of their dequantised matrices in transformers."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.models.quantization.test_bitsandbytes import four_bits, int8
from tests.models.test_families import Case, check, save

SECTIONS: dict[str, dict[str, Any]] = {
    "nf4": {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": True},
    "int8": {"load_in_8bit": True, "llm_int8_threshold": 6.0, "llm_int8_skip_modules": ["lm_head"]},
}


@pytest.mark.parametrize("method", SECTIONS)
def test_bitsandbytes(tmp_path: Path, method: str) -> None:
    model = save(tmp_path, Case("Llama", {"intermediate_size": 128}))
    values = load_file(tmp_path / "model.safetensors")
    for name, dense in list(values.items()):
        if "proj" not in name:
            continue
        made, wanted = four_bits(dense) if method == "nf4" else int8(dense)
        module = name.removesuffix(".weight")
        del values[name]
        values |= {key.replace("model.layers.0.mlp.down_proj", module): value for key, value in made.items()}
        model.get_parameter(name).data.copy_(torch.from_numpy(wanted))
    save_file({name: value.contiguous().clone() for name, value in values.items()}, tmp_path / "model.safetensors")
    path = tmp_path / "config.json"
    section = {"quant_method": "bitsandbytes", **SECTIONS[method]}
    path.write_text(json.dumps({**json.loads(path.read_text()), "quantization_config": section}))
    check(tmp_path, model)
