"""Gemma 3, PaliGemma and Gemma 4."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from PIL import Image
from transformers import (
    Gemma3Config,
    Gemma3ForConditionalGeneration,
    Gemma3Processor,
    Gemma4Config,
    Gemma4ForConditionalGeneration,
    Gemma4Processor,
    PaliGemmaConfig,
    PaliGemmaForConditionalGeneration,
    PaliGemmaProcessor,
)
from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil
from transformers.models.gemma4.image_processing_pil_gemma4 import Gemma4ImageProcessorPil
from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil

from tests.e2e.images.families.case import VISION, PartsProcessor, SeeingCase, processed

TEXT: Mapping[str, Any] = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 32, "max_position_embeddings": 512, "pad_token_id": 0, "bos_token_id": 1,
    "eos_token_id": 2, "tie_word_embeddings": False,
}  # fmt: skip
SIGLIP = {**VISION, "model_type": "siglip_vision_model", "vision_use_head": False, "image_size": 112}
LAYERS = {"sliding_window": 20, "layer_types": ["sliding_attention", "full_attention"]}
HALVES = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}
OLDER = {"vision_tower.": "vision_tower.vision_model."}
NEWER = {
    "language_model.model.": "model.language_model.",
    "language_model.lm_head.": "lm_head.",
    "vision_tower.": "model.vision_tower.vision_model.",
    "multi_modal_projector.": "model.multi_modal_projector.",
}
MARKS = ("<image>", "<start_of_image>", "<end_of_image>")


def named(tokenizer: Any, **tokens: str) -> Any:
    """A tokenizer whose tokens have names, as those of the published models have."""
    tokenizer.init_kwargs.update(tokens)
    for name, text in tokens.items():
        setattr(tokenizer, name, text)
        setattr(tokenizer, f"{name}_id", tokenizer.convert_tokens_to_ids(text))
    return tokenizer


def gemma3_config(vocab_size: int, ids: Mapping[str, int]) -> Any:
    text = {**TEXT, **LAYERS, "vocab_size": vocab_size, "query_pre_attn_scalar": 32}
    return Gemma3Config(
        text_config=text, vision_config=SIGLIP, mm_tokens_per_image=16, image_token_index=ids["<image>"],
        tie_word_embeddings=False,
    )  # fmt: skip


def gemma3_processor(tokenizer: Any, **fields: Any) -> Any:
    images = Gemma3ImageProcessorPil(size={"height": 112, "width": 112}, **HALVES, **fields)
    tokens = dict(zip(("image_token", "boi_token", "eoi_token"), MARKS, strict=True))
    return Gemma3Processor(images, named(tokenizer, **tokens), image_seq_length=16)


def paligemma_config(vocab_size: int, ids: Mapping[str, int], **text: Any) -> Any:
    return PaliGemmaConfig(
        text_config={**TEXT, **text, "vocab_size": vocab_size}, vision_config={**SIGLIP, "image_size": 56},
        projection_dim=64, image_token_index=ids["<image>"], tie_word_embeddings=False,
    )  # fmt: skip


def paligemma_processor(tokenizer: Any) -> Any:
    images = SiglipImageProcessorPil(size={"height": 56, "width": 56}, **HALVES)
    images.image_seq_length = 16
    return PaliGemmaProcessor(images, named(tokenizer, image_token="<image>"))


def paligemma_inputs(processor: Any, text: str, images: list[Image.Image]) -> dict[str, Any]:
    """Without tensors: the processor makes an array of them in a way that is deprecated."""
    found = processor(text=text, images=images)
    pixels = np.stack([np.asarray(each) for each in found["pixel_values"]])
    ids = torch.tensor(found["input_ids"])
    types = torch.tensor(found["token_type_ids"])
    return {
        "input_ids": ids,
        "attention_mask": torch.tensor(found["attention_mask"]),
        "token_type_ids": types,
        "pixel_values": torch.from_numpy(pixels),
    }


def gemma4_config(spans: str | None, clips: bool, size: int) -> Callable[..., Any]:
    def make(vocab_size: int, ids: Mapping[str, int]) -> Any:
        vision = {
            "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
            "head_dim": 8, "intermediate_size": 48, "position_embedding_size": 64, "patch_size": 14,
            "pooling_kernel_size": 2, "use_clipped_linears": clips, "standardize": clips,
        }  # fmt: skip
        text = {
            **TEXT, **LAYERS, "vocab_size": vocab_size, "vocab_size_per_layer_input": vocab_size,
            "use_bidirectional_attention": spans, "hidden_size_per_layer_input": size,
        }  # fmt: skip
        own = {f"{kind}_token_id": vocab_size + number for number, kind in enumerate(("video", "audio"))}
        return Gemma4Config(
            text_config=text, vision_config=vision, audio_config=None, image_token_id=ids["<image>"],
            tie_word_embeddings=False, **own,
        )  # fmt: skip

    return make


def gemma4_processor(tokenizer: Any) -> Any:
    images = Gemma4ImageProcessorPil(patch_size=14, max_soft_tokens=70, pooling_kernel_size=2)
    texts = dict(zip(("image_token", "boi_token", "eoi_token"), MARKS, strict=True))
    return PartsProcessor(Gemma4Processor, images, named(tokenizer, **texts), texts)


def gemma4_inputs(processor: Any, text: str, images: list[Image.Image]) -> dict[str, Any]:
    found = processed(processor, text, images)
    token = processor.tokenizer.convert_tokens_to_ids("<image>")
    types = (found["input_ids"] == token).to(torch.int64)
    found.pop("num_soft_tokens_per_image", None)
    return {**found, "mm_token_type_ids": types}


CASES = {
    "gemma3": SeeingCase(
        Gemma3ForConditionalGeneration,
        gemma3_config,
        gemma3_processor,
        tokens=MARKS,
        marker="<start_of_image>",
        engine={"max_num_batched_tokens": 32},
        renamed=(OLDER, NEWER),
        spread=0.2,
    ),
    "paligemma": SeeingCase(
        PaliGemmaForConditionalGeneration,
        partial(paligemma_config, model_type="gemma"),
        paligemma_processor,
        sizes=((56, 56), (80, 120)),
        inputs=paligemma_inputs,
        engine={"max_num_batched_tokens": 128},
        renamed=(OLDER,),
    ),
    "paligemma2": SeeingCase(
        PaliGemmaForConditionalGeneration,
        partial(paligemma_config, model_type="gemma2"),
        paligemma_processor,
        sizes=((56, 56),),
        inputs=paligemma_inputs,
        has_answers=False,
    ),
    "gemma4": SeeingCase(
        Gemma4ForConditionalGeneration,
        gemma4_config("vision", clips=True, size=0),
        gemma4_processor,
        tokens=MARKS,
        inputs=gemma4_inputs,
        engine={"max_num_batched_tokens": 128},
    ),
    "gemma4 with inputs of layers": SeeingCase(
        Gemma4ForConditionalGeneration,
        gemma4_config(None, clips=False, size=16),
        gemma4_processor,
        tokens=MARKS,
        inputs=gemma4_inputs,
    ),
}
