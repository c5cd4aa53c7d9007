"""Tiny random checkpoints of pooling models, made with transformers, and what transformers says of texts."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from safetensors.torch import save_file

VOCAB = 96
SMALL: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 66,
}
DECODER: dict[str, Any] = {**SMALL, "num_key_value_heads": 2, "head_dim": 8, "bos_token_id": None, "eos_token_id": None}
DISTIL: dict[str, Any] = {
    "vocab_size": VOCAB,
    "dim": 32,
    "n_layers": 2,
    "n_heads": 4,
    "hidden_dim": 48,
    "max_position_embeddings": 64,
}
DEBERTA: dict[str, Any] = {
    **SMALL,
    "relative_attention": True,
    "position_buckets": 8,
    "pos_att_type": ["p2c", "c2p"],
    "norm_rel_ebd": "layer_norm",
    "share_att_key": True,
    "position_biased_input": False,
    "pooler_hidden_size": 32,
}
"""As the third version has it."""
CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "Albert": ("AlbertConfig", {**SMALL, "num_hidden_layers": 3, "num_hidden_groups": 2, "embedding_size": 24}),
    "Bert": ("BertConfig", SMALL),
    "DebertaV2": ("DebertaV2Config", DEBERTA),
    "Electra": ("ElectraConfig", {**SMALL, "embedding_size": 24}),
    "Roberta": ("RobertaConfig", SMALL),
    "XLMRoberta": ("XLMRobertaConfig", SMALL),
    "DistilBert": ("DistilBertConfig", DISTIL),
    "ModernBert": (
        "ModernBertConfig",
        {
            **SMALL,
            "num_hidden_layers": 4,
            "local_attention": 9,
            **{f"{name}_token_id": 0 for name in ("pad", "bos", "eos", "cls", "sep")},
        },
    ),
    "Gemma3Text": (
        "Gemma3TextConfig",
        {
            **DECODER,
            "num_hidden_layers": 3,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            "sliding_window": 8,
            "query_pre_attn_scalar": 8,
            "use_bidirectional_attention": True,
        },
    ),
    "NomicBert": ("NomicBertConfig", {**SMALL, "bos_token_id": None, "eos_token_id": None}),
    "Gte": ("GteConfig", {**SMALL, "bos_token_id": None, "eos_token_id": None}),
    "JinaEmbeddingsV3": ("JinaEmbeddingsV3Config", {**SMALL, "pad_token_id": 1}),
    "EuroBert": (
        "EuroBertConfig",
        {**DECODER, **{f"{name}_token_id": 0 for name in ("pad", "bos", "eos", "mask")}},
    ),
    "Bloom": ("BloomConfig", {"vocab_size": VOCAB, "hidden_size": 32, "n_layer": 2, "n_head": 4}),
    "GPT2": ("GPT2Config", {"vocab_size": VOCAB, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 66}),
    "Llama": ("LlamaConfig", {**DECODER, "pad_token_id": None}),
    "Mistral": ("MistralConfig", {**DECODER, "sliding_window": 5}),
    "Qwen2": ("Qwen2Config", {**DECODER, "pad_token_id": None}),
    "Qwen3": ("Qwen3Config", {**DECODER, "pad_token_id": None}),
}


def save(folder: Path, architecture: str, **options: Any) -> torch.nn.Module:
    """A random model of this class in `folder`, with large enough weights that everything changes the result."""
    name = next(name for name in sorted(CONFIGS, reverse=True) if architecture.startswith(name))
    config_class, values = CONFIGS[name]
    config = getattr(transformers, config_class)(**{**values, **options})
    torch.manual_seed(0)
    model = getattr(transformers, architecture)(config).eval()
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            one = "norm" in parameter_name.lower() and parameter_name.endswith("weight")
            parameter.copy_(torch.randn_like(parameter) * 0.2 + (1.0 if one else 0.0))
    model.save_pretrained(folder)
    return model


def save_modules(folder: Path, mode: str, *, normalize: bool, max_length: int | None = None) -> None:
    """Write the files that sentence-transformers writes alongside a model."""
    modules = [("", "Transformer"), ("1_Pooling", "Pooling"), *((("2_Normalize", "Normalize"),) if normalize else ())]
    (folder / "modules.json").write_text(
        json.dumps(
            [
                {"idx": index, "name": str(index), "path": path, "type": f"sentence_transformers.models.{kind}"}
                for index, (path, kind) in enumerate(modules)
            ]
        )
    )
    (folder / "1_Pooling").mkdir()
    modes = {
        name: name == f"pooling_mode_{mode}"
        for name in (
            "pooling_mode_cls_token",
            "pooling_mode_mean_tokens",
            "pooling_mode_max_tokens",
            "pooling_mode_lasttoken",
        )
    }
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"word_embedding_dimension": 32, **modes}))
    if max_length is not None:
        (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": max_length}))


def save_dense(folder: Path, layers: Sequence[torch.nn.Linear], activations: Sequence[str], **change: Any) -> None:
    """Dense layers after the pooling that `save_modules` wrote, with their configuration changed by `change`."""
    path = folder / "modules.json"
    first, second, *rest = json.loads(path.read_text())
    added = []
    for index, (layer, activation) in enumerate(zip(layers, activations, strict=True), start=2):
        name = f"{index}_Dense"
        added.append({"idx": index, "name": name, "path": name, "type": "sentence_transformers.models.Dense"})
        (folder / name).mkdir()
        config = {
            "in_features": layer.in_features,
            "out_features": layer.out_features,
            "bias": layer.bias is not None,
            "activation_function": activation,
        }
        (folder / name / "config.json").write_text(json.dumps({**config, **change}))
        tensors = {f"linear.{key}": value.detach().contiguous() for key, value in layer.named_parameters()}
        save_file(tensors, folder / name / "model.safetensors")
    path.write_text(json.dumps([first, second, *added, *rest]))


def hidden_states(model: torch.nn.Module, token_ids: Sequence[int], **inputs: Any) -> np.ndarray:
    """Last hidden states [length, D] by transformers."""
    base: Any = model
    for name in ("model", "bert", "roberta", "distilbert", "nomic_bert", "gte", "deberta"):
        base = getattr(base, name, base)
    with torch.no_grad():
        return base(torch.tensor([list(token_ids)]), **inputs).last_hidden_state[0].numpy()


def logits(model: torch.nn.Module, token_ids: Sequence[int], **inputs: Any) -> np.ndarray:
    """Scores [labels] of a classifier by transformers."""
    with torch.no_grad():
        return model(torch.tensor([list(token_ids)]), **inputs).logits[0].numpy()


def unit(vector: np.ndarray) -> np.ndarray:
    """Scaled to length 1."""
    return vector / np.linalg.norm(vector, axis=-1, keepdims=True)
