"""A small Qwen2-Audio, requests about sound in place of tokens, and the tokens of transformers."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import Qwen2AudioConfig, Qwen2AudioForConditionalGeneration

from jaxllm.requests.media import MediaItem, PromptMedia
from jaxllm.requests.request import Request
from tests.e2e.driving import request
from tests.e2e.sound.windows import BINS, FRAMES, window

SOUND = 150

Part = int | tuple[int, int]
"""A token, or a seed of a window and how many of its frames are sound."""


def save_model(folder: Path) -> None:
    """Write one with drawn weights."""
    torch.manual_seed(0)
    config = Qwen2AudioConfig(
        audio_config={
            "model_type": "qwen2_audio_encoder", "d_model": 64, "encoder_layers": 2, "encoder_attention_heads": 4,
            "encoder_ffn_dim": 96, "num_mel_bins": BINS, "max_source_positions": FRAMES // 2,
        },
        text_config={
            "model_type": "qwen2", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
            "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 160, "max_position_embeddings": 512,
            "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "tie_word_embeddings": False,
        },
        audio_token_index=SOUND,
    )  # fmt: skip
    model = Qwen2AudioForConditionalGeneration(config).eval()
    for name, parameter in model.named_parameters():
        torch.nn.init.normal_(parameter, mean=float("norm" in name and "weight" in name), std=0.3)
    model.save_pretrained(folder)


def token_ids_of(parts: list[Part]) -> list[int]:
    """The tokens of a prompt, with all of each window."""
    found: list[int] = []
    for part in parts:
        found += [part] if isinstance(part, int) else [SOUND] * ((part[1] + 1) // 4)
    return found


def hearing_rows(name: object, parts: list[Part], block_size: int = 16, **params: object) -> Request:
    """A request for a prompt, as the engine takes it."""
    made = request(name, token_ids_of(parts), **{"temperature": 0, "ignore_eos": True, **params})
    windows = [part for part in parts if not isinstance(part, int)]
    items = tuple(MediaItem.of_sound(window(seed), count, (count + 1) // 4) for seed, count in windows)
    made.media = PromptMedia.of(items, made.prompt_token_ids, SOUND, block_size)
    return made


def expected(model: Any, parts: list[Part]) -> list[int]:
    """What transformers continues a prompt with."""
    token_ids = token_ids_of(parts)
    heard = [part for part in parts if not isinstance(part, int)]
    windows = [window(seed) for seed, _ in heard]
    masks = [np.arange(FRAMES) < count for _, count in heard]
    ids = torch.tensor([token_ids])
    sound = {}
    if windows:
        sound["input_features"] = torch.from_numpy(np.stack(windows))
        sound["feature_attention_mask"] = torch.from_numpy(np.stack(masks).astype(np.int64))
    with torch.no_grad():
        found = model.generate(
            input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=8, do_sample=False, eos_token_id=None,
            **sound,
        )  # fmt: skip
    return [int(token) for token in found[0][len(token_ids) :]]
