"""What a prompt has in place of an image, as text: the tokens of its features, and those around them.

Each class writes what transformers' processor of that name writes.
"""

import math
import re
from collections.abc import Callable, Mapping
from typing import Final

from jaxllm.errors import quoted
from jaxllm.serving.media.arranged_rows import LLaVANextRows, PhiRows, SeparatedRows
from jaxllm.serving.media.image_processors.base import ProcessedImage
from jaxllm.serving.media.image_processors.cohere2_vision import Cohere2Vision
from jaxllm.serving.media.image_processors.deepseek_ocr import DeepSeekOCR2
from jaxllm.serving.media.image_processors.gemma4 import Gemma4
from jaxllm.serving.media.image_processors.lfm2_vl import LFM2VL
from jaxllm.serving.media.image_processors.llava_next import LLaVANext
from jaxllm.serving.media.image_processors.minicpmv import MERGE, MiniCPMV
from jaxllm.serving.media.image_processors.phi3_vision import PATCH, Phi3Vision
from jaxllm.serving.media.image_processors.phi4_multimodal import Phi4Multimodal
from jaxllm.serving.media.image_processors.pixtral import Pixtral
from jaxllm.serving.media.image_processors.qwen2_vl import Qwen2VL
from jaxllm.serving.media.placeholder import Model, Placeholder
from jaxllm.serving.media.prompt_forms import (
    NUMBERED,
    NamedImages,
    PaliGemmaPrompt,
    PixtralRows,
    SlicedImages,
    TokenPerFeature,
)
from jaxllm.serving.media.tile_texts import (
    AyaTiles,
    Cohere2Tiles,
    Gemma3Crops,
    Idefics2Pieces,
    Idefics3Tiles,
    LFM2Tiles,
    Llama4Tiles,
)

IMAGE: Final = "<image>"
INTERNVL_TOKEN: Final = "<IMG_CONTEXT>"
"""InternVL's, in the format of its authors."""


def _idefics3(model: Model) -> Placeholder:
    length = model.settings.integer("image_seq_len", 169)
    return Idefics3Tiles(length, "<fake_token_around_image>", IMAGE, "<global-img>")


def _smolvlm(model: Model) -> Placeholder:
    return Idefics3Tiles(
        model.settings.integer("image_seq_len", 169),
        model.token("fake_image_token", "<fake_token_around_image>"),
        model.token("image_token", IMAGE),
        model.token("global_image_token", "<global-img>"),
    )


def _idefics2(model: Model) -> Placeholder:
    fake = model.token("image_boundary_token", "<fake_token_around_image>")
    return Idefics2Pieces(model.settings.integer("image_seq_len", 64), fake, model.token("image_token", IMAGE))


def _strategy(model: Model) -> int:
    """What LLaVA's processor adds to the number of patches."""
    added = model.settings.integer("num_additional_image_tokens", 0, 0, 64)
    return added - (model.settings.text("vision_feature_select_strategy", "full") == "default")


def _patch_size(model: Model) -> int:
    if not model.settings.given("patch_size"):
        raise model.settings.fail("patch_size is missing: it tells how many tokens an image has")
    return model.settings.integer("patch_size", 14, 1, 256)


def _llava(model: Model) -> Placeholder:
    size, added = _patch_size(model), _strategy(model)

    def count(image: ProcessedImage) -> int:
        height, width = image.crops[0].shape[:2]
        return height // size * (width // size) + added

    token = model.token("image_token", model.settings.text("image_token", IMAGE))
    return TokenPerFeature(token, token, count)


def llava_side(model: Model) -> tuple[int, int]:
    """Rows and columns of patches of a tile of LLaVA-NeXT."""
    size, processor = _patch_size(model), model.image_processor(LLaVANext)
    side = processor.crop or processor.size
    height = side.get("height") or side["shortest_edge"]
    return height // size, (side.get("width") or height) // size


def _llava_next(model: Model, before: int = 0) -> Placeholder:
    """Of each tile, so many rows come before those of patches, besides the learned one."""
    token = model.token("image_token", model.settings.text("image_token", IMAGE))
    processor = model.image_processor(LLaVANext)
    rows = LLaVANextRows(processor, llava_side(model), _strategy(model), None, 1 + before)
    return TokenPerFeature(token, token, rows.count, arranged=rows.arranged)


def _llava_next_video(model: Model) -> Placeholder:
    """Rows of videos come first: each is of four patches."""
    height, width = llava_side(model)
    return _llava_next(model, (height // 2) * (width // 2))


def _one_vision(model: Model) -> Placeholder:
    length = model.settings.integer("num_image_tokens", 729)
    side = math.isqrt(length)
    ratio = model.settings.text("vision_aspect_ratio", "anyres_max_9").removeprefix("anyres_max_")
    if not ratio.isdecimal() or int(ratio) < 1:
        raise model.settings.fail(f"vision_aspect_ratio={quoted(ratio)}: expected anyres_max_ and a number")
    added = _strategy(model) + length - side * side
    token = model.token("image_token", model.settings.text("image_token", IMAGE))
    rows = LLaVANextRows(model.image_processor(LLaVANext), (side, side), added, int(ratio))
    return TokenPerFeature(token, token, rows.count, arranged=rows.arranged)


def _pixtral(model: Model) -> Placeholder:
    texts = (("image_token", "[IMG]"), ("image_break_token", "[IMG_BREAK]"), ("image_end_token", "[IMG_END]"))
    return PixtralRows(model.image_processor(Pixtral), *(model.settings.text(name, default) for name, default in texts))


def _lighton(model: Model) -> Placeholder:
    side = model.settings.integer("patch_size", 14, 1, 256) * model.settings.integer("spatial_merge_size", 2, 1, 16)
    token = model.token("image_token")

    def count(image: ProcessedImage) -> int:
        height, width = image.crops[0].shape[:2]
        return height // side * (width // side)

    return TokenPerFeature(token, token, count)


def _gemma3(model: Model) -> Placeholder:
    names = ("boi_token", "image_token", "eoi_token")
    return Gemma3Crops(model.settings.integer("image_seq_length", 256), *map(model.token, names))


def _paligemma(model: Model) -> Placeholder:
    length, token = model.image_fields.get("image_seq_length"), model.token("image_token", IMAGE)
    if not isinstance(length, int) or length < 1:
        raise model.settings.fail(f"image_seq_length={quoted(length)} of the image processor: expected an integer")
    bos = model.token("bos_token", "<bos>")
    return PaliGemmaPrompt(marker=token, feature=token, count=lambda image: length, bos=bos)


def _merged(default: str | None) -> Callable[[Model], Placeholder]:
    def make(model: Model) -> Placeholder:
        processor = model.image_processor(Qwen2VL)
        token = model.token("image_token", default)
        return TokenPerFeature(token, token, lambda image: image.rows * image.columns // processor.merge_size**2)

    return make


def _internvl(model: Model) -> Placeholder:
    length, token = model.settings.integer("image_seq_length", 256), model.token("context_image_token")
    start, end = model.token("start_image_token"), model.token("end_image_token")
    return TokenPerFeature(token, token, lambda image: length * len(image.crops), start, end)


def _internvl_chat(model: Model) -> Placeholder:
    length, token = model.settings.integer("image_seq_length", 256), INTERNVL_TOKEN
    return NamedImages(
        marker=token,
        feature=token,
        count=lambda image: length * len(image.crops),
        before="<img>",
        after="</img>",
        names=re.compile(re.escape(IMAGE)),
    )


def _qianfan(model: Model) -> Placeholder:
    """As with InternVL, but prompts have `<image>`, which need not be a token."""
    length, token = model.settings.integer("image_seq_length", 256), model.token("context_image_token")
    return NamedImages(
        marker=token,
        feature=token,
        count=lambda image: length * len(image.crops),
        before=model.token("start_image_token"),
        after=model.token("end_image_token"),
        names=re.compile(re.escape(model.settings.text("image_placeholder_token", IMAGE))),
    )


def _aya(model: Model) -> Placeholder:
    settings = model.settings
    patch = settings.integer("patch_size", 28) * settings.integer("downsample_factor", 1, 1, 16)
    texts = (
        ("image_token", IMAGE), ("img_patch_token", "<|IMG_PATCH|>"), ("start_of_img_token", "<|START_OF_IMG|>"),
        ("end_of_img_token", "<|END_OF_IMG|>"), ("tile_token", "TILE"), ("tile_global_token", "TILE_GLOBAL"),
    )  # fmt: skip
    length = (settings.integer("img_size", 364) // patch) ** 2
    return AyaTiles(length, *(settings.text(name, default) for name, default in texts))


def _llama4(model: Model) -> Placeholder:
    size = model.settings.integer("patch_size", 14, 1, 256)
    area = round(1 / model.settings.number("pixel_shuffle_ratio", 0.5, 0.05, 1) ** 2)

    def length(image: ProcessedImage) -> int:
        height, width = image.crops[0].shape[:2]
        return (height // size) * (width // size) // area

    return Llama4Tiles(model.settings.text("image_token", "<|image|>"), length)


def _cohere2_vision(model: Model) -> Placeholder:
    length = model.image_processor(Cohere2Vision).tokens_each_way ** 2
    return Cohere2Tiles(length, *map(model.token, ("image_token", "boi_token", "img_line_break_token", "eoi_token")))


def _deepseek_ocr(*, ends_lines: bool) -> Callable[[Model], Placeholder]:
    def make(model: Model) -> Placeholder:
        model.image_processor(DeepSeekOCR2)
        side = model.settings.integer("patch_size", 16, 1, 256) * model.settings.integer("downsample_ratio", 4, 1, 16)
        rows, token = SeparatedRows(side, ends_lines), model.token("image_token", IMAGE)
        return TokenPerFeature(token, token, rows.count, arranged=rows.arranged)

    return make


def _deepseek_vl(model: Model) -> Placeholder:
    length, token = model.settings.integer("num_image_tokens", 576), model.token("image_token")
    return TokenPerFeature(token, token, lambda image: length)


def _janus(model: Model) -> Placeholder:
    model.settings.require("use_default_system_prompt", False, False)
    length, token = model.settings.integer("num_image_tokens", 576), model.token("image_token")
    return TokenPerFeature(token, token, lambda image: length, model.token("boi_token"), model.token("eoi_token"))


def _lfm2_vl(model: Model) -> Placeholder:
    side = model.image_processor(LFM2VL).side
    start, end = model.token("image_start_token", "<|image_start|>"), model.token("image_end_token", "<|image_end|>")
    whole = model.token("image_thumbnail_token", "<|img_thumbnail|>")

    def lengths(image: ProcessedImage) -> list[int]:
        return [crop.shape[0] // side * (crop.shape[1] // side) for crop in image.crops]

    is_marked = model.settings.flag("use_image_special_tokens", True)
    return LFM2Tiles(model.token("image_token", IMAGE), lengths, start, end, whole, is_marked)


def _got_ocr2(model: Model) -> Placeholder:
    length, token = model.settings.integer("num_image_tokens", 256), "<imgpad>"
    return TokenPerFeature(token, token, lambda image: length * len(image.crops))


def _gemma4(model: Model) -> Placeholder:
    processor = model.image_processor(Gemma4)
    token = model.token("image_token")
    start, end = model.token("boi_token"), model.token("eoi_token")
    area = processor.pooling**2
    return TokenPerFeature(token, token, lambda image: image.rows * image.columns // area, start, end)


def _minicpmv(model: Model) -> Placeholder:
    processor = model.image_processor(MiniCPMV)
    side = processor.patch * MERGE
    pairs = [
        (model.token(f"{name}_start_token", start), model.token(f"{name}_end_token", end))
        for name, start, end in (
            ("image", "<image>", "</image>"),
            ("slice", "<slice>", "</slice>"),
            ("image_id", "<image_id>", "</image_id>"),
        )
    ]
    return SlicedImages(
        marker=model.token("image_token"),
        lengths=lambda image: [crop.shape[0] // side * (crop.shape[1] // side) for crop in image.crops],
        whole=pairs[0],
        slices=pairs[1],
        number=pairs[2] if processor.has_ids else None,
    )


def _phi3_vision(model: Model) -> Placeholder:
    model.image_processor(Phi3Vision)
    rows, token = PhiRows(2 * PATCH), model.token("image_token", "<|image|>")
    return NamedImages(
        marker=token, feature=token, count=rows.count, arranged=rows.arranged, names=NUMBERED, apart=True
    )


def _phi4_multimodal(model: Model) -> Placeholder:
    rows, token = PhiRows(2 * model.image_processor(Phi4Multimodal).patch), model.token("image_token")
    return TokenPerFeature(token, token, rows.count, arranged=rows.arranged)


def _phi4_published(model: Model) -> Placeholder:
    rows, token = PhiRows(2 * model.image_processor(Phi4Multimodal).patch), "<|endoftext10|>"
    return NamedImages(marker=token, feature=token, count=rows.count, arranged=rows.arranged, names=NUMBERED)


PLACEHOLDERS: Final[Mapping[str, Callable[[Model], Placeholder]]] = {
    "AyaVisionProcessor": _aya,
    "Cohere2VisionProcessor": _cohere2_vision,
    "ColPaliProcessor": _paligemma,
    "ColQwen2Processor": _merged("<|image_pad|>"),
    "DeepseekOcr2Processor": _deepseek_ocr(ends_lines=False),
    "DeepseekVLProcessor": _deepseek_vl,
    "Gemma3Processor": _gemma3,
    "Gemma4Processor": _gemma4,
    "Glm46VProcessor": _merged("<|image|>"),
    "Glm4vProcessor": _merged("<|image|>"),
    "GotOcr2Processor": _got_ocr2,
    "Idefics2Processor": _idefics2,
    "Idefics3Processor": _idefics3,
    "InternVLChatProcessor": _internvl_chat,
    "InternVLProcessor": _internvl,
    "JanusProcessor": _janus,
    "LightOnOcrProcessor": _lighton,
    "LlavaNextProcessor": _llava_next,
    "LlavaNextVideoProcessor": _llava_next_video,
    "LlavaOnevisionProcessor": _one_vision,
    "KimiVLProcessor": _merged("<|media_pad|>"),
    "Kimi_K25Processor": _merged("<|media_pad|>"),
    "Lfm2VlProcessor": _lfm2_vl,
    "Llama4Processor": _llama4,
    "LlavaProcessor": _llava,
    "PaliGemmaProcessor": _paligemma,
    "PaddleOCRVLProcessor": _merged(None),
    "Phi3VProcessor": _phi3_vision,
    "Phi4MMProcessor": _phi4_published,
    "Phi4MultimodalProcessor": _phi4_multimodal,
    "MiniCPMV4_6Processor": _minicpmv,
    "PixtralProcessor": _pixtral,
    "QianfanOCRProcessor": _qianfan,
    "Qwen2VLProcessor": _merged("<|image_pad|>"),
    "Qwen2_5_VLProcessor": _merged("<|image_pad|>"),
    "Qwen3VLProcessor": _merged("<|image_pad|>"),
    "SmolVLMProcessor": _smolvlm,
    "UnlimitedOcrProcessor": _deepseek_ocr(ends_lines=True),
}
"""By processor_class."""
