"""The public shape of Llama 3 8B, as a folder with nothing but config.json."""

import json
from pathlib import Path
from typing import Any

LLAMA_3_8B: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 128256,
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "max_position_embeddings": 8192,
    "rope_theta": 500000.0,
    "rms_norm_eps": 1e-5,
    "torch_dtype": "bfloat16",
    "eos_token_id": 128001,
}

LLAMA_3_8B_WEIGHTS = 2 * 8_030_261_248
"""Bytes in bfloat16, from the model card's 8.03 billion parameters, to the last one."""


def write_model(folder: Path, **changes: Any) -> str:
    """The folder, with changes to the configuration."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps({**LLAMA_3_8B, **changes}))
    return str(folder)
