"""Phi 1, 1.5 and 2: parallel blocks after one norm, half of each head rotated, biases everywhere."""

from jaxllm.models.attention_plan import AttentionPlan
from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.config import ModelConfig
from jaxllm.models.families import gpt
from jaxllm.models.families.family import LLAMA_NAMES, Family
from jaxllm.models.families.rotary import read_rope
from jaxllm.models.layers.activation import read_activation


def read_config(file: ConfigFile, architecture: str) -> ModelConfig:
    """Phi's configuration; queries and keys may be normalised."""
    names = {"layer_norm_epsilon": "layer_norm_eps"}
    defaults = {"max_position_embeddings": 2048, "partial_rotary_factor": 0.5, "bos_token_id": 1, "eos_token_id": 2}
    file = file.reading(names, **defaults)
    gpt.refuse(file, tie_word_embeddings=False)
    head_norm = gpt.read_layer_norm(file) if file.boolean("qk_layernorm", False) else None
    attention = AttentionPlan(rope=read_rope(file), qkv_bias=True, output_bias=True, norm=head_norm)
    return gpt.parallel_model(file, architecture, attention, read_activation(file, "hidden_act", "gelu_new"))


FAMILY = Family(
    read_config,
    weight_names={
        **LLAMA_NAMES,
        "norm": "model.final_layernorm",
        "layers.*.attention.output": "model.layers.*.self_attn.dense",
        "layers.*.attention.query_norm": "model.layers.*.self_attn.q_layernorm",
        "layers.*.attention.key_norm": "model.layers.*.self_attn.k_layernorm",
        "layers.*.mlp.up": "model.layers.*.mlp.fc1",
        "layers.*.mlp.down": "model.layers.*.mlp.fc2",
    },
)
