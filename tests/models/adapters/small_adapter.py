"""A small adapter of the small Llama, made with numpy alone, to be damaged and renamed."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

CONFIG: dict[str, Any] = {"peft_type": "LORA", "r": 2, "lora_alpha": 6, "target_modules": ["q_proj", "down_proj"]}
PREFIX = "base_model.model."
SHAPES = {"self_attn.q_proj": (16, 16), "mlp.down_proj": (16, 20)}
"""(out, in) of the modules, in each layer."""

Tensors = dict[str, np.ndarray]


def tensors(prefix: str = PREFIX, infix: str = "") -> Tensors:
    """Random A and B under PEFT's names."""
    random = np.random.default_rng(5)
    made: Tensors = {}
    for layer in range(2):
        for module, (rows, columns) in SHAPES.items():
            name = f"{prefix}model.layers.{layer}.{module}"
            made[f"{name}.lora_A{infix}.weight"] = random.normal(size=(2, columns)).astype(np.float32)
            made[f"{name}.lora_B{infix}.weight"] = random.normal(size=(rows, 2)).astype(np.float32)
    return made


def save(folder: Path, values: Tensors | None = None, **changes: Any) -> Path:
    """Write the adapter into a folder, with other tensors and fields if there are such."""
    folder.mkdir(exist_ok=True)
    (folder / "adapter_config.json").write_text(json.dumps({**CONFIG, **changes}))
    save_file(tensors() if values is None else values, folder / "adapter_model.safetensors")
    return folder
