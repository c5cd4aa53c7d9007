"""The tokenizer of a GGUF file, saved as other checkpoints have it."""

import os
from pathlib import Path
from typing import Any

from jaxllm.models.errors import ModelError, is_failure
from jaxllm.models.quantization.gguf.file import GgufFile

_PLAIN_SPLITS = ("gpt-2", "phi-2", "default")
"""Tokenizers that cut as GPT-2's, which is what the library does with names that it does not know, too."""
_CLASS = {"tokenizer_class": "PreTrainedTokenizerFast"}
_SPECIAL = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}


def save_tokenizer(file: GgufFile, folder: Path) -> None:
    """Write tokenizer.json, its options and the chat template into `folder`.

    `transformers` knows how each kind of vocabulary becomes a tokenizer; it gets what this package read, since its own
    reader needs PyTorch. Raises `ModelError` for vocabularies that it does not know.
    """
    kind = file.metadata.get("tokenizer.ggml.model")
    if not isinstance(kind, str) or kind in ("none", "no_vocab"):
        raise ModelError(f"{file.path}: contains no tokenizer ('tokenizer.ggml.model'): give tokenizer=...")
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    try:
        from transformers import PreTrainedTokenizerFast
        from transformers.integrations.gguf import gguf_tokenizer_mapping as library
    except ImportError:
        raise ModelError(
            "the tokenizer of a GGUF file needs transformers 5.23 or later: install it, or give tokenizer=..."
        ) from None
    tokens = _strings(file, "tokens")
    split = file.metadata.get("tokenizer.ggml.pre", "default")
    if kind == "gpt2" and split not in library.GGUF_PRE_TOKENIZER_SPLITS and split not in _PLAIN_SPLITS:
        raise ModelError(
            f"{file.path}: 'tokenizer.ggml.pre' is {str(split)[:80]!r}, an unknown pre-tokenizer; give the original "
            "model's tokenizer with tokenizer=..."
        )
    options: dict[str, Any] = {
        **{theirs: _token(file, tokens, ours) for theirs, ours in _SPECIAL.items()},
        "chat_template": file.metadata.get("tokenizer.chat_template"),
        "add_bos_token": bool(file.metadata.get("tokenizer.ggml.add_bos_token", kind == "llama")),
        "add_eos_token": bool(file.metadata.get("tokenizer.ggml.add_eos_token", False)),
    }
    mapping = library.GGUF_TOKENIZER_MAPPING["tokenizer"]
    given = {
        theirs: value.tolist() if hasattr(value, "tolist") else value
        for ours, theirs in mapping.items()
        if (value := file.metadata.get(f"tokenizer.{ours}")) is not None
    }
    try:
        backend, more = library.convert_gguf_tokenizer(file.architecture, given)
        PreTrainedTokenizerFast(tokenizer_object=backend, **options, **more).save_pretrained(str(folder))
    # Whatever a broken vocabulary makes the library raise, it is the file's fault.
    except BaseException as error:
        if not is_failure(error):
            raise
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise ModelError(f"{file.path}: cannot build a tokenizer from its 'tokenizer.ggml' keys: {reason}") from error


def _strings(file: GgufFile, key: str) -> list[str]:
    found = file.metadata.get(f"tokenizer.ggml.{key}")
    if not isinstance(found, list):
        raise file.wrong(f"tokenizer.ggml.{key}", "a list of strings")
    return found


def _token(file: GgufFile, tokens: list[str], name: str) -> str | None:
    """The text of a token that the file names."""
    key = f"tokenizer.ggml.{name}_token_id"
    number = file.metadata.get(key)
    if number is None:
        return None
    if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number < len(tokens):
        raise file.wrong(key, f"the id of one of {len(tokens)} tokens")
    return tokens[number]
