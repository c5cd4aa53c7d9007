"""The names of llama.cpp's architectures elsewhere, and what is different in their tensors."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches

from jaxllm.models.errors import ModelError
from jaxllm.models.quantization.gguf.file import GgufFile

_LEAVES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
"""Modules of a layer, by llama.cpp's names."""

_SANDWICH = {
    **_LEAVES,
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}


@dataclass(frozen=True)
class Architecture:
    """One of llama.cpp's: the class in transformers, and `leaves` of its layers, and `experts`, by llama.cpp's names.

    `is_permuted`: rows of queries and keys are in the order that rotates neighbours. `has_shifted_norms`: 1 was added
    to the weights of norms.
    """

    model: str
    leaves: Mapping[str, str] = field(default_factory=lambda: _LEAVES)
    experts: Mapping[str, str] = field(default_factory=dict)
    is_permuted: bool = False
    has_shifted_norms: bool = False


_LLAMA = Architecture("LlamaForCausalLM", is_permuted=True)
_MIXTRAL = Architecture(
    "MixtralForCausalLM",
    {**_LEAVES, "ffn_gate_inp": "block_sparse_moe.gate"},
    {
        "ffn_gate_exps": "block_sparse_moe.experts.{expert}.w1",
        "ffn_up_exps": "block_sparse_moe.experts.{expert}.w3",
        "ffn_down_exps": "block_sparse_moe.experts.{expert}.w2",
    },
    is_permuted=True,
)
"""Files of the architecture llama that have experts."""

ARCHITECTURES = {
    "gemma": Architecture("GemmaForCausalLM", has_shifted_norms=True),
    "gemma2": Architecture("Gemma2ForCausalLM", _SANDWICH, has_shifted_norms=True),
    "gemma3": Architecture("Gemma3ForCausalLM", _SANDWICH, has_shifted_norms=True),
    "llama": _LLAMA,
    "phi3": Architecture(
        "Phi3ForCausalLM", {**_LEAVES, "attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"}
    ),
    "qwen2": Architecture("Qwen2ForCausalLM"),
    "qwen3": Architecture("Qwen3ForCausalLM"),
    "qwen3moe": Architecture(
        "Qwen3MoeForCausalLM",
        {**_LEAVES, "ffn_gate_inp": "mlp.gate"},
        {
            "ffn_gate_exps": "mlp.experts.{expert}.gate_proj",
            "ffn_up_exps": "mlp.experts.{expert}.up_proj",
            "ffn_down_exps": "mlp.experts.{expert}.down_proj",
        },
    ),
}


def architecture_of(file: GgufFile) -> Architecture:
    """The architecture of a file. Raises `ModelError` for an unknown one, with the nearest names."""
    name = file.architecture
    if name not in ARCHITECTURES:
        nearest = get_close_matches(name, ARCHITECTURES, n=3)
        named = f"; the nearest names are {', '.join(nearest)}" if nearest else ""
        raise ModelError(
            f"{file.path}: 'general.architecture' is {name[:80]!r}, which is not supported in GGUF{named} (known: "
            f"{', '.join(ARCHITECTURES)}); give the folder or Hub ID of the original model"
        )
    return _MIXTRAL if name == "llama" and file.metadata.get("llama.expert_count") else ARCHITECTURES[name]
