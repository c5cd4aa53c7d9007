"""Small checkpoints of drafters."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file


def save_eagle3(
    folder: Path, *, draft_vocab: int = 400, tokens: int = 1536, size: int = 128, nested: bool = False
) -> Path:
    """An EAGLE-3 head with random weights, for `demo` by default; `nested`: as the library `speculators` saves them."""
    rng = np.random.default_rng(0)
    heads, kv_heads, head_size, inner = 4, 2, 32, 96

    def draw(*shape: int) -> np.ndarray:
        return (rng.standard_normal(shape) / np.sqrt(shape[-1])).astype(np.float32)

    layer = "layers.0" if nested else "midlayer"
    chosen = np.sort(rng.choice(tokens, draft_vocab, replace=False))
    tensors = {
        "fc.weight": draw(size, 3 * size),
        f"{layer}.input_layernorm.weight": 1 + 0.1 * draw(size),
        f"{layer}.hidden_norm.weight": 1 + 0.1 * draw(size),
        f"{layer}.post_attention_layernorm.weight": 1 + 0.1 * draw(size),
        f"{layer}.self_attn.q_proj.weight": draw(heads * head_size, 2 * size),
        f"{layer}.self_attn.k_proj.weight": draw(kv_heads * head_size, 2 * size),
        f"{layer}.self_attn.v_proj.weight": draw(kv_heads * head_size, 2 * size),
        f"{layer}.self_attn.o_proj.weight": draw(size, heads * head_size),
        f"{layer}.mlp.gate_proj.weight": draw(inner, size),
        f"{layer}.mlp.up_proj.weight": draw(inner, size),
        f"{layer}.mlp.down_proj.weight": draw(size, inner),
        "norm.weight": 1 + 0.1 * draw(size),
        "lm_head.weight": draw(draft_vocab, size),
        "d2t": (chosen - np.arange(draft_vocab)).astype(np.int64),
        "t2d": np.isin(np.arange(tokens), chosen),
    }
    llama = {
        "hidden_size": size, "intermediate_size": inner, "num_attention_heads": heads, "num_key_value_heads": kv_heads,
        "head_dim": head_size, "num_hidden_layers": 1, "vocab_size": tokens, "rms_norm_eps": 1e-5,
        "max_position_embeddings": 2048, "rope_theta": 10000.0, "hidden_act": "silu", "tie_word_embeddings": False,
    }  # fmt: skip
    if nested:
        config = {
            "architectures": ["Eagle3DraftModel"], "speculators_model_type": "eagle3", "draft_vocab_size": draft_vocab,
            "norm_before_residual": True, "transformer_layer_config": {**llama, "model_type": "llama"},
            "eagle_aux_hidden_state_layer_ids": [1, 2, 3],
        }  # fmt: skip
    else:
        config = {
            **llama, "architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "torch_dtype": "float32",
            "draft_vocab_size": draft_vocab,
            "eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 2, 3], "use_aux_hidden_state": True},
        }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "model.safetensors")
    return folder


def save_mlp_speculator(
    folder: Path, *, stages: int = 4, inner: int = 64, is_tied: bool = False, scales: bool = False, **values: Any
) -> Path:
    """An MLP speculator with random weights, for `demo`, as its authors save it; `values` change its configuration.

    An `inner` size of 0 stands for that of the model.
    """
    rng = np.random.default_rng(0)
    tokens, size, own = 1536, 128, inner or 128

    def draw(*shape: int) -> np.ndarray:
        return (rng.standard_normal(shape) / np.sqrt(shape[-1])).astype(np.float32)

    tensors: dict[str, np.ndarray] = {}
    for stage in range(stages):
        # What stages share is there once, but for the projection.
        if stage == 0 or not is_tied:
            tensors[f"speculator.emb.{stage}.weight"] = draw(tokens, own)
            tensors[f"speculator.head.{stage}.weight"] = draw(tokens, own)
            tensors[f"speculator.ln.{stage}.weight"] = 1 + draw(own)
            tensors[f"speculator.ln.{stage}.bias"] = draw(own)
        if stage <= 1 or not is_tied:
            tensors[f"speculator.proj.{stage}.weight"] = draw(own, own if stage else size)
    config = {
        "architectures": ["MLPSpeculatorPreTrainedModel"], "model_type": "mlp_speculator", "vocab_size": tokens,
        "emb_dim": size, "inner_dim": inner, "n_predict": stages, "n_candidates": 5, "scale_input": scales,
        "tie_weights": is_tied, "top_k_tokens_per_head": [5, 4, 3, 2][:stages], "torch_dtype": "float16",
        "transformers_version": "4.41.2", **values,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "model.safetensors")
    return folder
