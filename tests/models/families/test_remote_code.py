"""Families that transformers does not have, against models it has and that compute the same.

ALiBi comes to these as a mask with a row of biases for each head.
"""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import save_file
from torch import nn

from jaxllm.models.checkpoint.model_config import read_config
from jaxllm.models.errors import ModelError
from jaxllm.models.families import baichuan
from tests.models.families.test_decoders import Case, check, save

Tensors = dict[str, torch.Tensor]

LIKE = {
    "BaiChuanForCausalLM": "Llama",
    "BaichuanForCausalLM": "Llama",
    "ChatGLMForConditionalGeneration": "Glm",
    "ChatGLMModel": "Glm",
    "JAISLMHeadModel": "GPT2",
}
"""The architecture that each is compared with here."""


class WithAlibi(nn.Module):
    """A model with biases by distance on its attention."""

    def __init__(self, model: Any, num_heads: int) -> None:
        super().__init__()
        self.model = model
        # As the paper has them where the number of heads is a power of two.
        self.slopes = 2.0 ** (-8.0 * torch.arange(1, num_heads + 1) / num_heads)

    def forward(self, ids: torch.Tensor) -> SimpleNamespace:
        """As the model's."""
        places = torch.arange(ids.shape[1])
        distance = places[:, None] - places[None, :]
        biases = torch.where(distance >= 0, -self.slopes[:, None, None] * distance, torch.finfo(torch.float32).min)
        return SimpleNamespace(logits=self.model(ids, attention_mask=biases[None]).logits)


def rewrite(folder: Path, values: dict[str, Any], tensors: Tensors, absent: tuple[str, ...] = ()) -> None:
    """Replace the checkpoint in a folder; `absent` are options that its configuration does not have."""
    path = folder / "config.json"
    there = {key: value for key, value in json.loads(path.read_text()).items() if key not in absent}
    path.write_text(json.dumps({**there, **values}))
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")


def packed(model: nn.Module) -> Tensors:
    """Llama's tensors with queries, keys and values in one, as Baichuan has them."""
    tensors = dict(model.state_dict())
    for name in [name for name in tensors if "q_proj" in name]:
        parts = [tensors.pop(name.replace("q_proj", f"{part}_proj")) for part in "qkv"]
        tensors[name.replace("q_proj", "W_pack")] = torch.cat(parts)
    return tensors


@pytest.mark.parametrize("is_second", [False, True])
def test_baichuan_7b(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_second: bool) -> None:
    model = save(tmp_path, Case(LIKE["BaiChuanForCausalLM"], {"num_key_value_heads": 4}))
    rewrite(tmp_path, {"architectures": ["BaiChuanForCausalLM"], "model_max_length": 64}, packed(model))
    if is_second:
        monkeypatch.setattr(baichuan, "NORMALISED_VOCABULARY", 128)
        with torch.no_grad():
            model.lm_head.weight.copy_(nn.functional.normalize(model.lm_head.weight))
    check(tmp_path, model, both_stacks=False)


def test_baichuan_13b(tmp_path: Path) -> None:
    model = save(tmp_path, Case(LIKE["BaichuanForCausalLM"], {"num_key_value_heads": 4}))
    values = {"architectures": ["BaichuanForCausalLM"], "model_max_length": 64}
    rewrite(tmp_path, values, packed(model), ("max_position_embeddings", "rope_parameters"))
    model.model.rotary_emb.inv_freq.zero_()
    check(tmp_path, WithAlibi(model, 4), both_stacks=False)


CHATGLM = {
    "embed_tokens": "embedding.word_embeddings",
    "layers": "encoder.layers",
    "o_proj": "dense",
    "self_attn": "self_attention",
    "down_proj": "dense_4h_to_h",
    "gate_up_proj": "dense_h_to_4h",
    "model.norm": "model.encoder.final_layernorm",
    "lm_head": "model.output_layer",
    "model.": "transformer.",
}


@pytest.mark.parametrize("architecture", [name for name in LIKE if name.startswith("ChatGLM")])
def test_chatglm(tmp_path: Path, architecture: str) -> None:
    rope = {"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 0.5}
    model = save(tmp_path, Case(LIKE[architecture], {"head_dim": 16, "rms_norm_eps": 1e-5, "rope_parameters": rope}))
    tensors = dict(model.state_dict())
    for name in [name for name in tensors if "q_proj" in name]:
        parts = [tensors.pop(name.replace("q_proj", f"{part}_proj")) for part in "qkv"]
        tensors[name.replace("q_proj", "query_key_value")] = torch.cat(parts)
    for old, new in CHATGLM.items():
        tensors = {name.replace(old, new): tensor for name, tensor in tensors.items()}
    values = {
        "architectures": [architecture],
        "add_bias_linear": False,
        "add_qkv_bias": True,
        "apply_query_key_layer_scaling": True,
        "apply_residual_connection_post_layernorm": False,
        "ffn_hidden_size": 96,
        "hidden_size": 64,
        "kv_channels": 16,
        "layernorm_epsilon": 1e-5,
        "multi_query_attention": True,
        "multi_query_group_num": 2,
        "num_attention_heads": 4,
        "num_layers": 2,
        "original_rope": True,
        "padded_vocab_size": 128,
        "post_layer_norm": True,
        "rmsnorm": True,
        "rope_ratio": 0.05,
        "seq_length": 64,
    }
    rewrite(tmp_path, values, tensors, absent=tuple(json.loads((tmp_path / "config.json").read_text())))
    check(tmp_path, model, both_stacks=False)
    rewrite(tmp_path, {"position_encoding_2d": True}, tensors)
    with pytest.raises(ModelError, match="option 'position_encoding_2d' = true is not supported"):
        read_config(tmp_path)


class GatedMLP(nn.Module):
    """Jais' MLP, in place of GPT-2's."""

    def __init__(self, size: int, wide: int) -> None:
        super().__init__()
        conv = transformers.pytorch_utils.Conv1D
        self.c_fc, self.c_fc2, self.c_proj = conv(wide, size), conv(wide, size), conv(size, wide)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map hidden states."""
        out: torch.Tensor = self.c_proj(self.c_fc(x) * nn.functional.silu(self.c_fc2(x)))
        return out


@pytest.mark.parametrize("is_newer", [False, True])
def test_jais(tmp_path: Path, is_newer: bool) -> None:
    model = save(tmp_path, Case(LIKE["JAISLMHeadModel"], {"tie_word_embeddings": False}))
    with torch.no_grad():
        for block in model.transformer.h:
            block.mlp = GatedMLP(64, 96)
            block.attn.scaling = 1 / 16
            for parameter in block.mlp.parameters():
                parameter.copy_(torch.randn_like(parameter) * 0.15)
        tensors = {name: tensor.clone() for name, tensor in model.state_dict().items() if "wpe" not in name}
        tensors["transformer.relative_pe.slopes"] = torch.zeros(4, 1, 1)
        model.transformer.wpe.weight.zero_()
        model.transformer.wte.weight.mul_(3.0)
        model.lm_head.weight.mul_(0.6)
    names = ("mup_scale_qk_dot_by_d", "mup_embeddings_scale") if is_newer else ("scale_qk_dot_by_d", "embeddings_scale")
    width = {"mup_output_alpha": 1.2, "mup_width_scale": 0.5} if is_newer else {"width_scale": 0.6}
    values = {
        "architectures": ["JAISLMHeadModel"],
        "activation_function": "swiglu",
        "position_embedding_type": "alibi",
        "n_inner": 96,
        **dict(zip(names, (True, 3.0), strict=True)),
        **width,
    }
    rewrite(tmp_path, values, tensors)
    check(tmp_path, WithAlibi(model, 4), both_stacks=False)
