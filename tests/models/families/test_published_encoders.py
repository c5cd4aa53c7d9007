"""Configurations of embedders and classifiers as they are published: every key is known, and sizes are read."""

import json
from pathlib import Path
from typing import Any

import pytest

from jaxllm.models.checkpoint.model_config import read_config
from jaxllm.models.errors import ModelError

BERT: dict[str, Any] = {
    "architectures": ["BertModel"],
    "attention_probs_dropout_prob": 0.1,
    "classifier_dropout": None,
    "gradient_checkpointing": False,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "hidden_size": 384,
    "initializer_range": 0.02,
    "intermediate_size": 1536,
    "layer_norm_eps": 1e-12,
    "max_position_embeddings": 512,
    "model_type": "bert",
    "num_attention_heads": 12,
    "num_hidden_layers": 6,
    "pad_token_id": 0,
    "position_embedding_type": "absolute",
    "transformers_version": "4.8.2",
    "type_vocab_size": 2,
    "use_cache": True,
    "vocab_size": 30522,
}
XLM: dict[str, Any] = {
    **BERT,
    "architectures": ["XLMRobertaModel"],
    "bos_token_id": 0,
    "eos_token_id": 2,
    "layer_norm_eps": 1e-05,
    "max_position_embeddings": 8194,
    "output_past": True,
    "pad_token_id": 1,
    "type_vocab_size": 1,
    "vocab_size": 250002,
}
PUBLISHED: dict[str, tuple[dict[str, Any], int]] = {
    "albert/albert-base-v2": (
        {
            "architectures": ["AlbertForMaskedLM"],
            "attention_probs_dropout_prob": 0,
            "bos_token_id": 2,
            "classifier_dropout_prob": 0.1,
            "down_scale_factor": 1,
            "embedding_size": 128,
            "eos_token_id": 3,
            "gap_size": 0,
            "hidden_act": "gelu_new",
            "hidden_dropout_prob": 0,
            "hidden_size": 768,
            "initializer_range": 0.02,
            "inner_group_num": 1,
            "intermediate_size": 3072,
            "layer_norm_eps": 1e-12,
            "max_position_embeddings": 512,
            "model_type": "albert",
            "net_structure_type": 0,
            "num_attention_heads": 12,
            "num_hidden_groups": 1,
            "num_hidden_layers": 12,
            "num_memory_blocks": 0,
            "pad_token_id": 0,
            "type_vocab_size": 2,
            "vocab_size": 30000,
        },
        512,
    ),
    "google/electra-small-discriminator": (
        {
            "architectures": ["ElectraForPreTraining"],
            "attention_probs_dropout_prob": 0.1,
            "embedding_size": 128,
            "hidden_act": "gelu",
            "hidden_dropout_prob": 0.1,
            "hidden_size": 256,
            "initializer_range": 0.02,
            "intermediate_size": 1024,
            "layer_norm_eps": 1e-12,
            "max_position_embeddings": 512,
            "model_type": "electra",
            "num_attention_heads": 4,
            "num_hidden_layers": 12,
            "pad_token_id": 0,
            "summary_activation": "gelu",
            "summary_last_dropout": 0.1,
            "summary_type": "first",
            "summary_use_proj": True,
            "type_vocab_size": 2,
            "vocab_size": 30522,
        },
        512,
    ),
    "cross-encoder/ms-marco-MiniLM-L6-v2": (
        {
            **BERT,
            "architectures": ["BertForSequenceClassification"],
            "id2label": {"0": "LABEL_0"},
            "label2id": {"LABEL_0": 0},
            "sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity",
        },
        512,
    ),
    "a cross-encoder of sentence-transformers 4": (
        {**BERT, "sentence_transformers": {"activation_fn": "torch.nn.modules.activation.Sigmoid", "version": "4.0.1"}},
        512,
    ),
    "sentence-transformers/LaBSE": (
        {
            **BERT,
            "directionality": "bidi",
            "pooler_fc_size": 768,
            "pooler_num_attention_heads": 12,
            "pooler_num_fc_layers": 3,
            "pooler_size_per_head": 128,
            "pooler_type": "first_token_transform",
        },
        512,
    ),
    "BAAI/bge-m3": (XLM, 8192),
    "an embedder with Matryoshka": ({**BERT, "is_matryoshka": True, "matryoshka_dimensions": [384, 128]}, 512),
    "answerdotai/ModernBERT-base": (
        {
            "architectures": ["ModernBertForMaskedLM"],
            "attention_bias": False,
            "attention_dropout": 0.0,
            "bos_token_id": 50281,
            "classifier_activation": "gelu",
            "classifier_bias": False,
            "classifier_dropout": 0.0,
            "classifier_pooling": "mean",
            "cls_token_id": 50281,
            "decoder_bias": True,
            "deterministic_flash_attn": False,
            "embedding_dropout": 0.0,
            "eos_token_id": 50282,
            "global_attn_every_n_layers": 3,
            "global_rope_theta": 160000.0,
            "gradient_checkpointing": False,
            "hidden_activation": "gelu",
            "hidden_size": 768,
            "initializer_cutoff_factor": 2.0,
            "initializer_range": 0.02,
            "intermediate_size": 1152,
            "layer_norm_eps": 1e-05,
            "local_attention": 128,
            "local_rope_theta": 10000.0,
            "max_position_embeddings": 8192,
            "mlp_bias": False,
            "model_type": "modernbert",
            "norm_bias": False,
            "norm_eps": 1e-05,
            "num_attention_heads": 12,
            "num_hidden_layers": 22,
            "position_embedding_type": "absolute",
            "sep_token_id": 50282,
            "tie_word_embeddings": True,
            "vocab_size": 50368,
        },
        8192,
    ),
    "nomic-ai/nomic-embed-text-v1.5": (
        {
            "activation_function": "swiglu",
            "architectures": ["NomicBertModel"],
            "attn_pdrop": 0.0,
            "auto_map": {"AutoModel": "nomic-ai/nomic-bert-2048--modeling_hf_nomic_bert.NomicBertModel"},
            "causal": False,
            "dense_seq_output": True,
            "embd_pdrop": 0.0,
            "fused_bias_fc": True,
            "fused_dropout_add_ln": True,
            "initializer_range": 0.02,
            "layer_norm_epsilon": 1e-12,
            "max_trained_positions": 2048,
            "mlp_fc1_bias": False,
            "mlp_fc2_bias": False,
            "model_type": "nomic_bert",
            "n_embd": 768,
            "n_head": 12,
            "n_inner": 3072,
            "n_layer": 12,
            "n_positions": 8192,
            "pad_vocab_size_multiple": 64,
            "parallel_block": False,
            "prenorm": False,
            "qkv_proj_bias": False,
            "resid_pdrop": 0.0,
            "rotary_emb_base": 1000,
            "rotary_emb_fraction": 1.0,
            "rotary_emb_interleaved": False,
            "rotary_emb_scale_base": None,
            "rotary_scaling_factor": None,
            "scale_attn_weights": True,
            "summary_activation": None,
            "summary_first_dropout": 0.0,
            "summary_proj_to_labels": True,
            "summary_type": "cls_index",
            "summary_use_proj": True,
            "type_vocab_size": 2,
            "use_cache": True,
            "use_flash_attn": True,
            "use_rms_norm": False,
            "use_xentropy": True,
            "vocab_size": 30528,
        },
        2048,
    ),
    "microsoft/deberta-v3-base": (
        {
            "architectures": ["DebertaV2Model"],
            "attention_probs_dropout_prob": 0.1,
            "hidden_act": "gelu",
            "hidden_dropout_prob": 0.1,
            "hidden_size": 768,
            "initializer_range": 0.02,
            "intermediate_size": 3072,
            "layer_norm_eps": 1e-7,
            "max_position_embeddings": 512,
            "max_relative_positions": -1,
            "model_type": "deberta-v2",
            "norm_rel_ebd": "layer_norm",
            "num_attention_heads": 12,
            "num_hidden_layers": 12,
            "pad_token_id": 0,
            "pooler_dropout": 0,
            "pooler_hidden_act": "gelu",
            "pooler_hidden_size": 768,
            "pos_att_type": "p2c|c2p",
            "position_biased_input": False,
            "position_buckets": 256,
            "relative_attention": True,
            "share_att_key": True,
            "type_vocab_size": 0,
            "vocab_size": 128100,
        },
        512,
    ),
    "Alibaba-NLP/gte-base-en-v1.5": (
        {
            **BERT,
            "architectures": ["NewModel"],
            "layer_norm_type": "layer_norm",
            "logn_attention_clip1": False,
            "logn_attention_scale": False,
            "max_position_embeddings": 8192,
            "model_type": "new",
            "pack_qkv": True,
            "position_embedding_type": "rope",
            "rope_scaling": {"factor": 2.0, "type": "ntk"},
            "rope_theta": 500000,
            "type_vocab_size": 0,
            "unpad_inputs": False,
            "use_memory_efficient_attention": False,
        },
        8192,
    ),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_configurations(tmp_path: Path, name: str) -> None:
    values, positions = PUBLISHED[name]
    (tmp_path / "config.json").write_text(json.dumps({**values, "dtype": "float32"}))
    config = read_config(tmp_path)
    assert config.context_length == positions
    assert config.num_layers == values.get("num_hidden_layers", values.get("n_layer"))


def test_overrides_come_before_the_file(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**PUBLISHED["Alibaba-NLP/gte-base-en-v1.5"][0]}))
    overrides = {"num_hidden_layers": 2, "rope_scaling": {"factor": 4.0}}
    config = read_config(tmp_path, overrides)
    assert config.num_layers == 2
    assert config.rope is not None
    assert config.rope.theta == 2_000_000


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"pos_att_type": "p2p"}, "'pos_att_type' must be of c2p and p2c"),
        ({"relative_attention": False}, "'relative_attention' must be true"),
        ({"position_buckets": 2}, "'position_buckets' must be at least 4"),
        ({"norm_rel_ebd": "rms"}, "'norm_rel_ebd' must be none or layer_norm"),
        ({"conv_kernel_size": 3}, "'conv_kernel_size' = 3 is unknown"),
        ({"pooler_hidden_act": "tanh"}, "'pooler_hidden_act' must be gelu"),
        ({"embedding_size": 8}, "'embedding_size' must be the hidden size"),
    ],
)
def test_what_deberta_does_not_have(tmp_path: Path, values: dict[str, Any], message: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**PUBLISHED["microsoft/deberta-v3-base"][0], **values}))
    with pytest.raises(ModelError, match=message):
        read_config(tmp_path)
