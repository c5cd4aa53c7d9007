"""Folders of adapters for `demo`, with random matrices, as PEFT writes them."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from jaxllm.models.checkpoint.checkpoint import Checkpoint
from jaxllm.models.checkpoint.find_model import find_model

MODULES = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def write_adapter(
    folder: Path, seed: int = 0, rank: int = 8, scale: float = 0.1, modules: tuple[str, ...] = MODULES, **config: Any
) -> Path:
    """An adapter of these modules in every layer; with `scale` 0 its matrices are zeros.

    With `use_dora` it has magnitudes between 0.5 and 1.5.
    """
    random, tensors = np.random.default_rng(seed), {}
    for tensor in Checkpoint(find_model("demo")).tensors:
        module = tensor.name.removesuffix(".weight")
        if module.endswith(modules):
            out, size = tensor.shape
            for half, shape in (("A", (rank, size)), ("B", (out, rank))):
                values = random.standard_normal(shape).astype(np.float32) * np.float32(scale)
                tensors[f"base_model.model.{module}.lora_{half}.weight"] = values
            if config.get("use_dora"):
                values = random.uniform(0.5, 1.5, out).astype(np.float32)
                tensors[f"base_model.model.{module}.lora_magnitude_vector"] = values
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "adapter_model.safetensors")
    settings = {"peft_type": "LORA", "r": rank, "lora_alpha": 2 * rank, "target_modules": list(modules), **config}
    (folder / "adapter_config.json").write_text(json.dumps(settings))
    return folder
