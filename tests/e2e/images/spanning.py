"""Small models whose image tokens see one another, prompts for them, and the answers of transformers."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import (
    AutoModelForImageTextToText,
    Gemma3Config,
    Gemma3ForConditionalGeneration,
    Gemma4Config,
    Gemma4ForConditionalGeneration,
    PaliGemmaConfig,
    PaliGemmaForConditionalGeneration,
)

from jaxllm.models.towers.patches import cut_patches
from jaxllm.requests.media import ImageCrop, MediaItem, PromptMedia
from jaxllm.requests.request import Request
from jaxllm.requests.spans import SpanKind
from tests.e2e.driving import request
from tests.e2e.images.prompts import Parts

IMAGE, VOCABULARY, PATCH = 290, 300, 14
_VISION = {
    "model_type": "siglip_vision_model", "hidden_size": 32, "patch_size": PATCH,
    "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48, "vision_use_head": False,
}  # fmt: skip
_TEXT = {
    "vocab_size": VOCABULARY, "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 32, "max_position_embeddings": 512, "tie_word_embeddings": False,
}  # fmt: skip


@dataclass(frozen=True)
class Spanning:
    """A model, the patches of a row each way, and its spans."""

    name: str
    side: int
    merge: int
    spans: SpanKind | None

    @property
    def is_fourth(self) -> bool:
        """Whether it is Gemma 4, whose files and inputs have other names."""
        return self.name.startswith("gemma4")

    @property
    def rows(self) -> int:
        """Rows of a crop."""
        return (self.side // self.merge) ** 2

    def pixels(self, seed: int, crops: int = 1) -> list[np.ndarray]:
        """The crops of a drawn image, uint8 [height, width, 3] each."""
        shape = (self.side * PATCH, self.side * PATCH, 3)
        drawn = np.random.default_rng(seed)
        return [drawn.integers(0, 256, shape, dtype=np.uint8) for _ in range(crops)]

    def save(self, folder: Path) -> None:
        """Write a model with random weights, which answers differently to different images."""
        torch.manual_seed(0)
        model = _MAKE[self.name]().eval()
        for name, parameter in model.named_parameters():
            # Gemma's norms have weights around zero, and its embeddings are scaled.
            std = 0.1 if "norm" in name else 0.02 if "embed_tokens" in name else 0.3
            # Those of the fourth, around one.
            torch.nn.init.normal_(parameter, std=std, mean=float(self.is_fourth and "norm" in name))
        # No answer has the tokens of images and sound, for which transformers' Gemma 4 puts padding.
        model.lm_head.weight.data[IMAGE : IMAGE + 3] = 0
        for name, buffer in model.named_buffers():
            if name.endswith(("put_min", "put_max", "std_bias", "std_scale")):
                buffer.copy_(_BUFFERS[name.rpartition("_")[2]] * (1 + 0.1 * torch.rand(buffer.shape)))
        model.save_pretrained(folder)
        if self.is_fourth:
            processor = {"max_soft_tokens": self.rows, "do_normalize": False}
            (folder / "preprocessor_config.json").write_text(json.dumps(processor))

    def seeing(self, name: object, prompt: Parts, block_size: int = 16, **params: object) -> Request:
        """A request for a prompt of token ids and images."""
        images = [self.item(part) for part in prompt if isinstance(part, list)]
        made = request(name, self.token_ids(prompt), **{"temperature": 0, "ignore_eos": True, **params})
        if images:
            made.media = PromptMedia.of(tuple(images), made.prompt_token_ids, IMAGE, block_size, self.spans)
        return made

    def item(self, crops: list[np.ndarray]) -> MediaItem:
        """An image as the engine takes it."""
        cut = tuple(ImageCrop(cut_patches(crop, PATCH, self.merge), self.side, self.side) for crop in crops)
        return MediaItem.of(cut, self.merge**2)

    def token_ids(self, prompt: Parts) -> list[int]:
        """The tokens of a prompt, with those that stand for images."""
        found: list[int] = []
        for part in prompt:
            found += [IMAGE] * (len(part) * self.rows) if isinstance(part, list) else [part]
        return found

    def pixel_inputs(self, crops: list[np.ndarray]) -> dict[str, Any]:
        """What transformers' vision model gets: whole images, or their patches and the columns and rows of these."""
        if not self.is_fourth:
            numbers = np.stack([(crop.astype(np.float32) / 255 - 0.5) / 0.5 for crop in crops])
            return {"pixel_values": torch.from_numpy(numbers.transpose(0, 3, 1, 2).astype(np.float32))}
        height, width = (length // PATCH for length in crops[0].shape[:2])
        places = np.stack(np.meshgrid(np.arange(width), np.arange(height)), axis=-1).reshape(1, -1, 2)
        patches = np.stack([cut_patches(crop, PATCH, 1) for crop in crops])
        return {
            "pixel_values": torch.from_numpy(patches.astype(np.float32) / 255),
            "image_position_ids": torch.from_numpy(np.repeat(places, len(crops), axis=0)),
        }

    def expected(self, model: Any, prompt: Parts, count: int) -> list[int]:
        """The tokens that transformers continues a prompt with."""
        ids = torch.tensor([self.token_ids(prompt)])
        crops = [crop for part in prompt if isinstance(part, list) for crop in part]
        given: dict[str, Any] = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        if crops:
            given |= self.pixel_inputs(crops)
        types = (ids == IMAGE).long()
        if self.is_fourth:
            given["mm_token_type_ids"] = types
        else:
            # All of PaliGemma's prompt, if there is an image in it.
            given["token_type_ids"] = types if self.spans == "images" else torch.full_like(ids, int(not crops))
        with torch.no_grad():
            found = model.generate(**given, max_new_tokens=count, do_sample=False, eos_token_id=None)
        return [int(token) for token in found[0][ids.shape[1] :]]


def _gemma3() -> Any:
    types = ["sliding_attention", "full_attention", "sliding_attention"]
    own = {"num_hidden_layers": 3, "layer_types": types, "sliding_window": 10, "query_pre_attn_scalar": 32}
    config = Gemma3Config(
        text_config={**_TEXT, **own}, vision_config={**_VISION, "image_size": 8 * PATCH}, mm_tokens_per_image=16,
        image_token_index=IMAGE, tie_word_embeddings=False,
    )  # fmt: skip
    return Gemma3ForConditionalGeneration(config)


def _paligemma(**text: object) -> Any:
    config = PaliGemmaConfig(
        text_config={**_TEXT, "num_hidden_layers": 2, **text}, vision_config={**_VISION, "image_size": 4 * PATCH},
        projection_dim=64, image_token_index=IMAGE, tie_word_embeddings=False,
    )  # fmt: skip
    return PaliGemmaForConditionalGeneration(config)


def _gemma4(*, sees_both_ways: bool, clips: bool, **text: object) -> Any:
    own = {"num_hidden_layers": 3, "sliding_window": 10, "vocab_size_per_layer_input": VOCABULARY, **text}
    own["layer_types"] = ["sliding_attention", "sliding_attention", "full_attention"]
    own["use_bidirectional_attention"] = "vision" if sees_both_ways else None
    vision = {
        "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
        "intermediate_size": 48, "position_embedding_size": 64, "patch_size": PATCH, "pooling_kernel_size": 2,
        "use_clipped_linears": clips, "standardize": clips,
    }  # fmt: skip
    config = Gemma4Config(
        text_config={**_TEXT, **own}, vision_config=vision, audio_config=None, image_token_id=IMAGE,
        video_token_id=IMAGE + 1, audio_token_id=IMAGE + 2, tie_word_embeddings=False,
    )  # fmt: skip
    return Gemma4ForConditionalGeneration(config)


_BUFFERS = {"min": -1.5, "max": 1.5, "bias": 0.3, "scale": 0.7}

_MAKE: dict[str, Callable[[], Any]] = {
    "gemma3": _gemma3,
    "paligemma": lambda: _paligemma(model_type="gemma"),
    "paligemma2": lambda: _paligemma(model_type="gemma2", sliding_window=64, query_pre_attn_scalar=32),
    "gemma4": lambda: _gemma4(sees_both_ways=True, clips=True, hidden_size_per_layer_input=0),
    "gemma4_small": lambda: _gemma4(sees_both_ways=False, clips=False, hidden_size_per_layer_input=16),
}
MODELS = (
    Spanning("gemma3", side=8, merge=2, spans="images"),
    Spanning("paligemma", side=4, merge=1, spans="prompt"),
    Spanning("paligemma2", side=4, merge=1, spans="prompt"),
    Spanning("gemma4", side=8, merge=2, spans="images"),
)
"""Each has 16 rows of an image; Gemma's windows are shorter, and PaliGemma 2's longer than its prompts here."""
CAUSAL = Spanning("gemma4_small", side=8, merge=2, spans=None)
"""One whose image tokens see none that is later, and whose layers have inputs by token."""


def load(folder: Path) -> Any:
    """The model of transformers."""
    return AutoModelForImageTextToText.from_pretrained(folder, attn_implementation="eager").eval()
