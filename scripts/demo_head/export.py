"""The head as a folder in the format of EAGLE-3's authors, and back."""

from __future__ import annotations

import json
from pathlib import Path

import jax.numpy as jnp
import ml_dtypes
import numpy as np
from safetensors import safe_open
from safetensors.numpy import save_file

from scripts.demo_head.network import HeadShape
from scripts.demo_model.network import Params, Shape

WEIGHTS = "model.safetensors"
_TAPS = "eagle_aux_hidden_state_layer_ids"


def save(params: Params, shape: Shape, own: HeadShape, folder: Path, run: dict[str, str]) -> None:
    """Writes configuration and weights, in bfloat16 as (out, in) matrices; the file's metadata notes the run."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "vocab_size": shape.vocab,
        "draft_vocab_size": shape.vocab,
        "hidden_size": shape.hidden,
        "intermediate_size": own.feed_forward,
        "num_hidden_layers": 1,
        "num_attention_heads": own.heads,
        "num_key_value_heads": own.kv_heads,
        "head_dim": own.head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": shape.norm_eps,
        "rope_theta": shape.rope_theta,
        "rope_scaling": None,
        "max_position_embeddings": shape.max_positions,
        "tie_word_embeddings": False,
        "eagle_config": {_TAPS: list(own.taps), "use_aux_hidden_state": True},
        "torch_dtype": "bfloat16",
    }
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    tensors = {
        name: np.ascontiguousarray(np.asarray(array).T).astype(ml_dtypes.bfloat16)
        for name, array in sorted(params.items())
    }
    unfinished = folder / (WEIGHTS + ".part")
    save_file(tensors, unfinished, metadata={"format": "pt"} | run)
    unfinished.replace(folder / WEIGHTS)


def load(folder: Path) -> tuple[Params, HeadShape, dict[str, str]]:
    """The exported head: weights as float32, its shape and the note of the run."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    own = HeadShape(
        taps=tuple(config["eagle_config"][_TAPS]),
        heads=config["num_attention_heads"],
        kv_heads=config["num_key_value_heads"],
        head_dim=config["head_dim"],
        feed_forward=config["intermediate_size"],
    )
    params: Params = {}
    with safe_open(folder / WEIGHTS, framework="numpy") as file:
        for name in file.keys():  # noqa: SIM118 (not a mapping: it has no iterator)
            params[name] = jnp.asarray(file.get_tensor(name).astype(np.float32).T)
        run = {key: value for key, value in file.metadata().items() if key != "format"}
    return params, own, run
