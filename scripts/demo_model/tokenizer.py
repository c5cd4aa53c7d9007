"""The model's own byte-level BPE: every text has tokens and comes back unchanged."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from scripts.demo_model.chat import CALL_TOKENS, END, SEPARATOR, SPECIAL_TOKENS, TEMPLATE

_WORDS = Regex(r"\p{N}|\p{So}| ?\p{L}+| ?[^\s\p{L}\p{N}\p{So}]+|\s+")
"""Single digits, since arithmetic is learned digit by digit; single emoji; words and punctuation with their space."""


def train(texts: Iterable[str], size: int) -> Tokenizer:
    """Learns `size` tokens from texts: special tokens first, then the 256 bytes, then merges.

    Special tokens written out in the texts are taken out first, as they never take part in merges.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(_WORDS, "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=[*SPECIAL_TOKENS, *CALL_TOKENS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator((_plain(text, number) for number, text in enumerate(texts)), trainer)
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS])
    tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in CALL_TOKENS])
    return tokenizer


def _plain(text: str, number: int) -> str:
    """The text without special tokens, and mostly without other scripts, whose few words would crowd out English."""
    for token in (*SPECIAL_TOKENS, *CALL_TOKENS):
        text = text.replace(token, "\n")
    return text if number % 4 == 0 else text.encode("ascii", "ignore").decode()


def save(tokenizer: Tokenizer, folder: Path) -> None:
    """Writes `tokenizer.json`, `tokenizer_config.json` and `chat_template.jinja` as transformers reads them."""
    document = json.loads(tokenizer.to_str())
    for token in document["added_tokens"]:
        token["special"] = token["content"] in SPECIAL_TOKENS
    (folder / "tokenizer.json").write_text(json.dumps(document, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": SEPARATOR,
        "eos_token": END,
        "pad_token": SEPARATOR,
        "add_bos_token": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": 2048,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    (folder / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
