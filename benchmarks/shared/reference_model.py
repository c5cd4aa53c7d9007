"""The model that benchmarks run: Llama's architecture with 125 million random parameters."""

import json
from pathlib import Path
from typing import Any

VOCAB_SIZE = 32000
HIDDEN, FEED_FORWARD, QUERY_HEADS, KV_HEADS, HEAD_SIZE = 768, 2048, 12, 4, 64

BILLION = {
    "layers": 16, "hidden_size": 2048, "intermediate_size": 8192, "num_attention_heads": 32, "num_key_value_heads": 8,
}  # fmt: skip
"""Values with which the model has 1.1 billion parameters."""


def layer_parameters() -> int:
    """Weights of one layer's matrices."""
    return HIDDEN * (2 * QUERY_HEADS * HEAD_SIZE + 2 * KV_HEADS * HEAD_SIZE + 3 * FEED_FORWARD)


def write_reference_model(
    folder: Path, *, layers: int = 12, vocab_size: int = VOCAB_SIZE, max_position_embeddings: int = 4096, **others: Any
) -> Path:
    """Write the configuration (no weights: load it with `load_format="dummy"`) and return the folder.

    `others` are other values of the configuration, see `BILLION`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": vocab_size,
        "hidden_size": HIDDEN,
        "intermediate_size": FEED_FORWARD,
        "num_hidden_layers": layers,
        "num_attention_heads": QUERY_HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_SIZE,
        "max_position_embeddings": max_position_embeddings,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": False,
        "hidden_act": "silu",
        "rope_theta": 10000.0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "torch_dtype": "float32",
        **others,
    }
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    return folder


def write_reference_tokenizer(folder: Path) -> None:
    """Write a tokenizer of that vocabulary alongside it: every token is a word with a space before it, or a byte."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    pieces = ["<unk>", "<s>", "</s>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    # As in byte-level BPE, Ġ stands for a space.
    pieces += [f"Ġw{number}" for number in range(VOCAB_SIZE - len(pieces))]
    tokenizer = Tokenizer(models.BPE({piece: number for number, piece in enumerate(pieces)}, [], unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
