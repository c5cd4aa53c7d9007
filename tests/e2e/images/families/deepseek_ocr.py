"""DeepSeek-OCR and DeepSeek-OCR 2.

transformers has Unlimited-OCR in place of the first, which computes the same as long as few tokens are generated: a
token there sees all of the prompt, and the last ones of the answer.
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from transformers import (
    DeepseekOcr2Config,
    DeepseekOcr2ForConditionalGeneration,
    DeepseekOcr2Processor,
    UnlimitedOcrConfig,
    UnlimitedOcrForConditionalGeneration,
    UnlimitedOcrProcessor,
)
from transformers.models.deepseek_ocr2.image_processing_pil_deepseek_ocr2 import DeepseekOcr2ImageProcessorPil

from jaxllm.serving.media.image_processors.arithmetic import normalised
from jaxllm.serving.media.image_processors.registry import ConfiguredProcessor
from tests.e2e.images.families.case import LLAMA, PartsProcessor, SeeingCase

TEXT = {
    **{name: value for name, value in LLAMA.items() if name != "model_type"}, "num_key_value_heads": 4,
    "max_position_embeddings": 2048, "n_routed_experts": 4, "n_shared_experts": 2, "num_experts_per_tok": 2,
    "moe_intermediate_size": 24, "mlp_layer_types": ["dense", "sparse"],
}  # fmt: skip
# Windows of 11 reach beyond the edges of 64, 48 and 40 patches.
SAM = {
    "hidden_size": 48, "output_channels": 20, "num_hidden_layers": 3, "num_attention_heads": 3, "window_size": 11,
    "global_attn_indexes": [1],
}  # fmt: skip
ENCODER = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
# The second is cut into two rows of two tiles.
SIZES = ((300, 200), (660, 700))
STEPS = {"max_model_len": 1536, "max_num_batched_tokens": 64}


def config(vocab_size: int, ids: Mapping[str, int], patch_size: int = 2, channels: int = 24, **encoder: Any) -> Any:
    inner = {**ENCODER, "intermediate_size": 48, "num_key_value_heads": 2, **encoder}
    size = {"patch_size": patch_size, "image_size": 64 * patch_size}
    sam = {**SAM, **size, "downsample_channels": [channels, inner["hidden_size"]]}
    return DeepseekOcr2Config(
        vision_config={"sam_config": sam, "encoder_config": inner},
        text_config={**TEXT, "vocab_size": vocab_size},
        image_token_id=ids["<image>"],
        tie_word_embeddings=False,
    )


def processor(tokenizer: Any) -> PartsProcessor:
    images = DeepseekOcr2ImageProcessorPil(size={"height": 128, "width": 128}, tile_size=96, max_patches=3)
    fields = {"patch_size": 2, "downsample_ratio": 4}
    return PartsProcessor(DeepseekOcr2Processor, images, tokenizer, {"image_token": "<image>"}, **fields)


def first_config(vocab_size: int, ids: Mapping[str, int]) -> Any:
    return UnlimitedOcrConfig(
        vision_config={
            "sam_config": {**SAM, "downsample_channels": [512, 32], "mlp_dim": 192},
            "encoder_config": {**ENCODER, "intermediate_size": 128, "image_size": 224, "patch_size": 14},
        },
        text_config={**TEXT, "vocab_size": vocab_size},
        image_token_id=ids["<image>"],
        tie_word_embeddings=False,
    )


class Published(PartsProcessor):
    """With the files of the authors' checkpoints, which say nothing of images."""

    def save_pretrained(self, folder: Path) -> None:
        """Write them."""
        self.tokenizer.save_pretrained(folder)


class OwnPixels:
    """Our image processor with its results as transformers' has them, which needs torchvision."""

    size, tile_size = {"height": 1024, "width": 1024}, 640

    def __call__(self, images: list[Image.Image], return_tensors: str) -> dict[str, Any]:
        """Pixels of whole images, and of all tiles; how many an image has, and the grid of them."""
        fields = {"image_processor_type": "UnlimitedOcrImageProcessor", "max_patches": 9}
        made = ConfiguredProcessor.make(fields, "preprocessor_config.json").processor
        found = [made.process(np.asarray(image)) for image in images]
        crops = [
            [torch.from_numpy(normalised(crop, made.normalisation)).permute(2, 0, 1) for crop in each.crops]
            for each in found
        ]
        tiles = [tile for each in crops for tile in each[:-1]]
        return {
            "pixel_values": torch.stack([each[-1] for each in crops]),
            **({"pixel_values_local": torch.stack(tiles)} if tiles else {}),
            "num_local_patches": [len(each) - 1 for each in crops],
            "patches_grid": [[each.columns or 1, each.rows or 1] for each in found],
        }


def published(images: Any, kind: type[Any], tokenizer: Any) -> Published:
    return Published(kind, images, tokenizer, {"image_token": "<image>"}, patch_size=16, downsample_ratio=4)


def model(kind: type[Any], name: str, encoder: Mapping[str, Any], config: Any) -> Any:
    """A model that is written as its authors do it."""
    made = kind(config)
    made.save_pretrained = partial(save, made, name, encoder)
    return made


def save(made: Any, name: str, encoder: Mapping[str, Any], folder: Path) -> None:
    """Write the files of a checkpoint."""
    type(made).save_pretrained(made, folder)
    given = json.loads((folder / "config.json").read_text())
    text = {**given["text_config"], "first_k_dense_replace": 1, "use_mla": False, "v_head_dim": 0, "lm_head": True}
    for key in ("mlp_layer_types", "layer_types", "sliding_window", "rope_parameters", "model_type"):
        text.pop(key, None)
    sam = {"width": 48, "heads": 3, "layers": 3, "window_size": 11, "output_channels": 20, "global_attn_indexes": [1]}
    vision = {
        "image_size": 1024, "mlp_ratio": 3.7362, "model_name": "deeplip_b_l", "model_type": "vision",
        "width": {"sam_vit_b": {**sam, "downsample_channels": [512, 32]}, **encoder},
    }  # fmt: skip
    found = {
        **text, "architectures": [name], "model_type": "deepseek_vl_v2", "language_config": text,
        "candidate_resolutions": [[1024, 1024]], "global_view_pos": "head", "tile_tag": "2D", "vision_config": vision,
        "projector_config": {"input_dim": 64, "model_type": "mlp_projector", "n_embed": 64, "projector_type": "linear"},
        "image_token_id": given["image_token_id"], "torch_dtype": "float32",
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(found))


SECOND = SeeingCase(DeepseekOcr2ForConditionalGeneration, config, processor, sizes=((80, 60), (60, 140)), engine=STEPS)
QWEN: dict[str, Any] = {
    "patch_size": 16, "channels": 512, "hidden_size": 56, "intermediate_size": 4864, "num_hidden_layers": 24,
    "num_attention_heads": 14, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
}  # fmt: skip
CLIP = {"heads": 4, "image_size": 224, "layers": 2, "patch_size": 14, "width": 32}
CASES: dict[str, SeeingCase] = {
    "deepseek-ocr 2": SECOND,
    "deepseek-ocr 2 published": replace(
        SECOND,
        model=partial(
            model, DeepseekOcr2ForConditionalGeneration, "DeepseekOCR2ForCausalLM", {"qwen2-0-5b": {"dim": 56}}
        ),
        config=partial(config, **QWEN),
        processor=partial(published, DeepseekOcr2ImageProcessorPil(), DeepseekOcr2Processor),
        sizes=((300, 200), (500, 900)),
        has_answers=False,
        # Errors grow with each of the 24 layers.
        spread=0.05,
    ),
    "deepseek-ocr": replace(
        SECOND,
        model=partial(model, UnlimitedOcrForConditionalGeneration, "DeepseekOCRForCausalLM", {"clip-l-14-224": CLIP}),
        config=first_config,
        processor=partial(published, OwnPixels(), UnlimitedOcrProcessor),
        sizes=SIZES,
    ),
}
