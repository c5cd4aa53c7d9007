"""A small Llama checkpoint made with numpy alone, to be damaged by the tests of loading."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from jaxllm.models.attention_plan import AttentionPlan, RopeConfig
from jaxllm.models.checkpoint.weight_files import INDEX_FILE, SINGLE_FILE
from jaxllm.models.config import ModelConfig
from jaxllm.models.plan import LayerPlan

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 24,
    "hidden_size": 16,
    "intermediate_size": 20,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "dtype": "float32",
}

MODEL = ModelConfig(
    architecture="LlamaForCausalLM",
    vocab_size=24,
    hidden_size=16,
    num_heads=4,
    num_kv_heads=2,
    head_size=4,
    intermediate_size=20,
    layers=(LayerPlan(attention=AttentionPlan(rope=RopeConfig(trained_length=64))),) * 2,
    max_position_embeddings=64,
)


def alike(config: ModelConfig, layers: int = 2, **changes: Any) -> ModelConfig:
    """The model with so many layers, all like the first one of `config` but for the `changes`.

    They go to the attention, the MLP or the layer, whichever has such a field.
    """
    plan = config.layers[0]
    inside: dict[str, Any] = {"attention": plan.attention, "mlp": plan.mlp}
    for name, part in inside.items():
        fields = {field.name for field in dataclasses.fields(part)}
        own = {key: changes.pop(key) for key in list(changes) if key in fields}
        inside[name] = dataclasses.replace(part, **own)
    return dataclasses.replace(config, layers=(dataclasses.replace(plan, **inside, **changes),) * layers)


def tensors() -> dict[str, np.ndarray]:
    """Random float32 tensors under their Hugging Face names."""
    random = np.random.default_rng(0)
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (24, 16),
        "model.norm.weight": (16,),
        "lm_head.weight": (24, 16),
    }
    for layer in range(2):
        parts: dict[str, tuple[int, ...]] = {
            "input_layernorm": (16,),
            "self_attn.q_proj": (16, 16),
            "self_attn.k_proj": (8, 16),
            "self_attn.v_proj": (8, 16),
            "self_attn.o_proj": (16, 16),
            "post_attention_layernorm": (16,),
            "mlp.gate_proj": (20, 16),
            "mlp.up_proj": (20, 16),
            "mlp.down_proj": (16, 20),
        }
        shapes |= {f"model.layers.{layer}.{name}.weight": shape for name, shape in parts.items()}
    return {name: random.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


def save(folder: Path, values: dict[str, np.ndarray] | None = None, config: dict[str, Any] | None = None) -> Path:
    """Write configuration and weights into `folder`, in one file."""
    (folder / "config.json").write_text(json.dumps(CONFIG if config is None else config))
    save_file(tensors() if values is None else values, folder / SINGLE_FILE)
    return folder


def save_sharded(folder: Path, shards: int) -> Path:
    """Write the weights as `shards` files with an index."""
    (folder / "config.json").write_text(json.dumps(CONFIG))
    values = tensors()
    weight_map = {
        name: f"model-{index % shards + 1:05}-of-{shards:05}.safetensors" for index, name in enumerate(values)
    }
    for file in set(weight_map.values()):
        save_file({name: values[name] for name in values if weight_map[name] == file}, folder / file)
    (folder / INDEX_FILE).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return folder
