"""Encoders that transformers does not have, against ones it has that compute the same, with other names."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from jaxllm.config import EngineConfig
from jaxllm.errors import ConfigError
from jaxllm.load import load_engine
from tests.jaxllm.pooling.checkpoints import SMALL, VOCAB, hidden_states, save, unit
from tests.jaxllm.pooling.driving import engine_of, pool

random = np.random.default_rng(6)
TEXTS = [random.integers(3, VOCAB, length).tolist() for length in (1, 33, 7, 20, 2)]
THETA = {"rope_type": "default", "rope_theta": 500.0}


def _write(folder: Path, values: dict[str, Any]) -> None:
    (folder / "config.json").write_text(json.dumps(values))


JINA: dict[str, Any] = {
    **SMALL,
    "emb_pooler": None,
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-5,
    "load_trained_adapters": False,
    "lora_adaptations": None,
    "lora_alpha": 1,
    "lora_dropout_p": 0.0,
    "lora_main_params_trainable": False,
    "lora_rank": 4,
    "matryoshka_dimensions": None,
    "output_past": True,
    "pad_token_id": 1,
    "position_embedding_type": "rotary",
    "rotary_emb_base": 500.0,
    "truncate_dim": None,
    "type_vocab_size": 1,
    "use_flash_attn": True,
    "use_reentrant": False,
}
"""The options that https://huggingface.co/jinaai/xlm-roberta-flash-implementation reads."""


@pytest.mark.parametrize(
    "architecture", ["HF_ColBERT", pytest.param("ColBERTJinaRobertaModel", marks=pytest.mark.slow)]
)
def test_jina_colbert(tmp_path: Path, architecture: str) -> None:
    """jina-colbert-v2: Jina's XLM-RoBERTa, as transformers has it for their third embedder, and a layer after it."""
    model = save(tmp_path, "JinaEmbeddingsV3Model", type_vocab_size=1, rope_parameters=THETA, layer_norm_eps=1e-5)
    layer, path = nn.Linear(32, 12, bias=False), tmp_path / "model.safetensors"
    save_file({**load_file(path), "linear.weight": layer.weight.detach()}, path)
    _write(tmp_path, {**JINA, "architectures": [architecture]})
    with engine_of(tmp_path) as engine:
        assert engine.info.pooling is not None
        assert (engine.info.pooling.tasks, engine.info.pooling.size) == (("token_embed",), 12)
        found = pool(engine, TEXTS)
    for text, vectors in zip(TEXTS, found, strict=True):
        with torch.no_grad():
            wanted = layer(torch.tensor(hidden_states(model, text))).numpy()
        np.testing.assert_allclose(vectors, unit(wanted), atol=2e-5, rtol=0)
    _write(tmp_path, {**JINA, "architectures": [architecture], "lora_adaptations": ["retrieval.query"]})
    with pytest.raises(ConfigError, match="'lora_adaptations' must be null"):
        load_engine(EngineConfig.from_options({"model": str(tmp_path)}))


@pytest.mark.slow
def test_jinas_xlm_roberta(tmp_path: Path) -> None:
    """It has the architecture of the one with learned positions."""
    model = save(tmp_path, "JinaEmbeddingsV3Model", type_vocab_size=1, rope_parameters=THETA, layer_norm_eps=1e-5)
    _write(tmp_path, {**JINA, "architectures": ["XLMRobertaModel"]})
    with engine_of(tmp_path) as engine:
        found = pool(engine, TEXTS)
    for text, vector in zip(TEXTS, found, strict=True):
        np.testing.assert_allclose(vector, unit(hidden_states(model, text)[0]), atol=2e-5, rtol=0)


class Experts(nn.Module):
    """Nomic's mixture: the softmax of all logits, the best of it as it is, and one bias for all experts."""

    def __init__(self, size: int, wide: int, count: int, per_token: int) -> None:
        super().__init__()
        self.router, self.per_token = nn.Linear(size, count, bias=False), per_token
        self.wide, self.narrow = (
            nn.Parameter(torch.empty(count, wide, size)),
            nn.Parameter(torch.empty(count, wide, size)),
        )
        self.bias = nn.Parameter(torch.empty(size))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map [..., D]."""
        scores = self.router(x).softmax(-1)
        best = scores.topk(self.per_token, dim=-1)
        weights = torch.zeros_like(scores).scatter(-1, best.indices, best.values)
        each = nn.functional.gelu(torch.einsum("...d,efd->...ef", x, self.wide))
        return torch.einsum("...ef,efd,...e->...d", each, self.narrow, weights) + self.bias


NOMIC: dict[str, Any] = {
    "activation_function": "gelu",
    "add_pooling_layer": False,
    "architectures": ["NomicBertModel"],
    "causal": False,
    "dense_seq_output": True,
    "expert_choice_router": False,
    "ffn_div": 1,
    "fused_bias_fc": True,
    "fused_dropout_add_ln": True,
    "layer_norm_epsilon": 1e-5,
    "max_trained_positions": 66,
    "mlp_fc1_bias": True,
    "mlp_fc2_bias": True,
    "model_type": "nomic_bert",
    "moe_every_n_layers": 2,
    "moe_impl": "megablocks",
    "moe_normalize_expert_weights": False,
    "moe_resid_pdrop": 0.0,
    "moe_top_k": 2,
    "n_embd": 32,
    "n_head": 4,
    "n_inner": 48,
    "n_layer": 4,
    "n_positions": 66,
    "num_experts": 5,
    "num_shared_experts": 0,
    "pad_token_id": 1,
    "pad_vocab_size_multiple": 64,
    "parallel_block": False,
    "prenorm": False,
    "qkv_proj_bias": True,
    "rotary_emb_base": 500.0,
    "rotary_emb_fraction": 1.0,
    "rotary_emb_interleaved": False,
    "rotary_emb_scale_base": None,
    "rotary_scaling_factor": None,
    "router_aux_loss_coef": 0.1,
    "scale_attn_weights": True,
    "type_vocab_size": 1,
    "use_cache": True,
    "use_flash_attn": True,
    "use_rms_norm": None,
    "use_xentropy": True,
    "vocab_size": VOCAB,
}
"""As nomic-ai/nomic-embed-text-v2-moe has them."""


def test_nomic_with_experts(tmp_path: Path) -> None:
    """Jina's encoder without gates, with experts in every second layer, under Nomic's names."""
    options = {"num_hidden_layers": 4, "type_vocab_size": 1, "rope_parameters": THETA, "layer_norm_eps": 1e-5}
    model: Any = save(tmp_path, "JinaEmbeddingsV3Model", **options)
    mixtures = {}
    with torch.no_grad():
        for number in (1, 3):
            experts = Experts(32, 48, 5, 2)
            for parameter in experts.parameters():
                parameter.copy_(torch.randn_like(parameter) * 0.2)
            mixtures[number] = model.layers[number].mlp = experts
    path = tmp_path / "model.safetensors"
    tensors = {
        name.replace("roberta.", "").replace(".mixer.", ".attn."): tensor for name, tensor in load_file(path).items()
    }
    for number, experts in mixtures.items():
        inside = f"encoder.layers.{number}.mlp."
        tensors = {name: tensor for name, tensor in tensors.items() if not name.startswith(inside)}
        tensors |= {
            f"{inside}router.layer.weight": experts.router.weight.detach(),
            f"{inside}experts.mlp.w1": experts.wide.detach().reshape(-1, 32),
            f"{inside}experts.mlp.w2": experts.narrow.detach().reshape(-1, 32),
            f"{inside}experts.bias": experts.bias.detach(),
        }
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path)
    _write(tmp_path, NOMIC)
    with engine_of(tmp_path) as engine:
        assert engine.info.max_model_len == 66
        found = pool(engine, TEXTS)
    for text, vector in zip(TEXTS, found, strict=True):
        np.testing.assert_allclose(vector, unit(hidden_states(model, text)[0]), atol=2e-5, rtol=0)
