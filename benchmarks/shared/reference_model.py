"""The model that benchmarks run: Llama's architecture with 125 million random parameters."""

import json
from pathlib import Path

VOCAB_SIZE = 32000


def write_reference_model(folder: Path, *, layers: int = 12, max_position_embeddings: int = 4096) -> Path:
    """Write the configuration (no weights: load it with `load_format="dummy"`) and return the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": VOCAB_SIZE,
        "hidden_size": 768,
        "intermediate_size": 2048,
        "num_hidden_layers": layers,
        "num_attention_heads": 12,
        "num_key_value_heads": 4,
        "head_dim": 64,
        "max_position_embeddings": max_position_embeddings,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": False,
        "hidden_act": "silu",
        "rope_theta": 10000.0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "torch_dtype": "float32",
    }
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    return folder
