"""DeepSeek-OCR's published configurations."""

import json
from pathlib import Path
from typing import Any

import pytest

from jaxllm.models.checkpoint.model_config import read_config
from jaxllm.models.errors import ModelError
from jaxllm.models.mlp_plan import ExpertsPlan
from jaxllm.models.towers.query_encoder import QueryEncoderPlan
from jaxllm.models.towers.second_vision import SecondVisionPlan

TEXT: dict[str, Any] = {
    "bos_token_id": 0, "eos_token_id": 1, "first_k_dense_replace": 1, "hidden_size": 1280, "intermediate_size": 6848,
    "kv_lora_rank": None, "lm_head": True, "max_position_embeddings": 8192, "moe_intermediate_size": 896, "n_group": 1,
    "n_routed_experts": 64, "n_shared_experts": 2, "num_attention_heads": 10, "num_experts_per_tok": 6,
    "num_hidden_layers": 12, "num_key_value_heads": 10, "q_lora_rank": None, "qk_nope_head_dim": 0,
    "qk_rope_head_dim": 0, "rm_head": False, "topk_group": 1, "topk_method": "greedy", "use_mla": False,
    "v_head_dim": 0, "vocab_size": 129280,
}  # fmt: skip
SAM = {
    "downsample_channels": [512, 1024],
    "global_attn_indexes": [2, 5, 8, 11],
    "heads": 12,
    "layers": 12,
    "width": 768,
}
CLIP = {"heads": 16, "image_size": 224, "layers": 24, "patch_size": 14, "width": 1024}


def published(name: str, encoder: dict[str, Any], **text: Any) -> dict[str, Any]:
    """Of deepseek-ai/DeepSeek-OCR; that of DeepSeek-OCR-2 differs in the second encoder."""
    vision = {"image_size": 1024, "mlp_ratio": 3.7362, "model_name": "deeplip_b_l", "model_type": "vision"}
    projector = {"input_dim": 2048, "model_type": "mlp_projector", "n_embed": 1280, "projector_type": "linear"}
    return {
        "_name_or_path": "deepseek-ai/DeepSeek-OCR", "architectures": [name], "model_type": "deepseek_vl_v2",
        "candidate_resolutions": [[1024, 1024]], "global_view_pos": "head", "tile_tag": "2D", **TEXT,
        "language_config": {**TEXT, "architectures": ["DeepseekV2ForCausalLM"], "torch_dtype": "bfloat16", **text},
        "projector_config": projector, "torch_dtype": "bfloat16",
        "vision_config": {**vision, "width": {**encoder, "sam_vit_b": SAM}},
    }  # fmt: skip


def read(folder: Path, config: dict[str, Any]) -> Any:
    (folder / "config.json").write_text(json.dumps(config))
    return read_config(folder)


@pytest.mark.parametrize(
    ("name", "encoder", "sizes", "rows"),
    [
        ("DeepseekOCRForCausalLM", {"clip-l-14-224": CLIP}, (1600, 4096), (102, 258)),
        ("DeepseekOCR2ForCausalLM", {"qwen2-0-5b": {"dim": 896}}, (2304, 4096), (145, 257)),
    ],
)
def test_published(
    tmp_path: Path, name: str, encoder: dict[str, Any], sizes: tuple[int, ...], rows: tuple[int, ...]
) -> None:
    config = read(tmp_path, published(name, encoder))
    assert (config.num_layers, config.hidden_size, config.num_kv_heads, config.head_size) == (12, 1280, 10, 128)
    dense, *others = config.layers
    assert not isinstance(dense.mlp, ExpertsPlan)
    assert all(layer.mlp.count == 64 and layer.mlp.per_token == 6 and layer.mlp.size == 896 for layer in others)
    tower = config.tower
    assert tower.sizes == sizes
    assert tuple(map(tower.rows_of, sizes)) == rows
    assert tower.token_id == 128815
    assert (tower.vision.inner_size, tower.vision.intermediate_size) == (768, 3072)
    projector = tower.projector
    assert projector.num_layers == 24
    if isinstance(projector, QueryEncoderPlan):
        assert (projector.size, projector.head_size, projector.num_kv_heads, projector.rope.theta) == (896, 64, 2, 1e6)
    else:
        assert isinstance(projector, SecondVisionPlan)
        assert (projector.hidden_size, projector.intermediate_size, projector.side) == (1024, 4096, 16)


def test_what_is_not_supported(tmp_path: Path) -> None:
    name, encoder = "DeepseekOCRForCausalLM", {"clip-l-14-224": CLIP}
    with pytest.raises(ModelError, match="'use_mla' must be false"):
        read(tmp_path, published(name, encoder, use_mla=True))
    with pytest.raises(ModelError, match="'downsample_channels' must be two numbers, the second being 512"):
        read(tmp_path, published(name, {"clip-l-14-224": {**CLIP, "width": 512}}))
