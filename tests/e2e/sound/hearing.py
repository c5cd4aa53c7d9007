"""A small Whisper, and the answers that transformers gives with it."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import WhisperConfig, WhisperForConditionalGeneration

from tests.e2e.sound.windows import BINS, FRAMES, START, VOCABULARY, Features


def save_small_model(folder: Path, **options: Any) -> None:
    """Write a model with random weights that answers differently to different windows."""
    torch.manual_seed(0)
    config = WhisperConfig(
        **{
            "vocab_size": VOCABULARY, "num_mel_bins": BINS, "d_model": 64, "encoder_layers": 2, "decoder_layers": 3,
            "encoder_attention_heads": 4, "decoder_attention_heads": 2, "encoder_ffn_dim": 96, "decoder_ffn_dim": 128,
            "max_source_positions": FRAMES // 2, "max_target_positions": 96, "pad_token_id": 0, "bos_token_id": 2,
            "eos_token_id": 2, "decoder_start_token_id": START, "begin_suppress_tokens": None, **options,
        }
    )  # fmt: skip
    model = WhisperForConditionalGeneration(config).eval()
    for name, parameter in model.named_parameters():
        # Positions are as loud as tokens, or all answers would end in one token, again and again.
        std = 2.0 if "decoder.embed_positions" in name else 0.3
        torch.nn.init.normal_(parameter, mean=float("norm.weight" in name), std=std)
    model.save_pretrained(folder)


def reference_in(folder: Path) -> Any:
    """The model of transformers."""
    return WhisperForConditionalGeneration.from_pretrained(folder).eval()


def expected_logits(model: Any, features: Features, token_ids: list[int]) -> np.ndarray:
    """The scores after each token, float32 [T, V]."""
    with torch.no_grad():
        found = model(torch.from_numpy(features)[None], decoder_input_ids=torch.tensor([token_ids]))
    return found.logits[0].numpy()


def expected(model: Any, features: Features, prompt: list[int], count: int) -> list[int]:
    """The tokens that transformers continues a prompt with, by the likeliest of each step."""
    token_ids = list(prompt)
    with torch.no_grad():
        encoded = model.model.encoder(torch.from_numpy(features)[None])
        for _ in range(count):
            found = model(encoder_outputs=encoded, decoder_input_ids=torch.tensor([token_ids]))
            token_ids.append(int(found.logits[0, -1].argmax()))
    return token_ids[len(prompt) :]
