"""Files of checkpoints, and placeholders as transformers' processors write them."""

import importlib
import json
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxllm.errors import ConfigError, RequestError
from jaxllm.serving.media.checkpoint import ImageModel
from jaxllm.serving.media.image_processors.base import ImageLimits
from jaxllm.serving.media.text_runs import arrangement_of, features_of, text_of
from tests.serving.media.image_processors.oracles import ORACLES, drawn_image, pil
from tests.thinned import EVERY_CASE

_GEMMA = {"boi_token": "<start_of_image>", "image_token": "<image_soft_token>", "eoi_token": "<end_of_image>"}
_INTERN = {"start_image_token": "<img>", "end_image_token": "</img>", "context_image_token": "<IMG_CONTEXT>"}
_LLAVA = {"patch_size": 14, "vision_feature_select_strategy": "default", "num_additional_image_tokens": 1}
_MINICPM = {
    "image_token": "<|image_pad|>", "image_start_token": "<image>", "image_end_token": "</image>",
    "slice_start_token": "<slice>", "slice_end_token": "</slice>",
}  # fmt: skip
_QWEN = {"image_token": "<|image_pad|>"}
# Processor class, its module, the oracle of its images, processor_config.json, tokens, arguments of the oracle.
MODELS: list[tuple[str, str, str, dict[str, Any], dict[str, str], dict[str, Any]]] = [
    ("SmolVLMProcessor", "smolvlm", "smolvlm", {"image_seq_len": 64}, {}, {"return_row_col_info": True}),
    ("Idefics3Processor", "idefics3", "idefics3", {"image_seq_len": 169}, {}, {"return_row_col_info": True}),
    ("Idefics3Processor", "idefics3", "idefics3 whole", {}, {}, {"return_row_col_info": True}),
    ("LlavaProcessor", "llava", "clip", _LLAVA, {}, {}),
    ("LlavaNextProcessor", "llava_next", "llava next", _LLAVA, {"image_token": "<image>"}, {}),
    ("LlavaNextProcessor", "llava_next", "llava next small", {**_LLAVA, "patch_size": 7}, {}, {}),
    ("LlavaOnevisionProcessor", "llava_onevision", "llava onevision",
     {"num_image_tokens": 16, "vision_feature_select_strategy": "full", "vision_aspect_ratio": "anyres_max_2"}, {}, {}),
    ("Gemma3Processor", "gemma3", "gemma3", {"image_seq_length": 256}, _GEMMA, {}),
    ("PaliGemmaProcessor", "paligemma", "siglip", {}, {"image_token": "<image>"}, {}),
    ("Qwen2VLProcessor", "qwen2_vl", "qwen2-vl", {}, _QWEN, {}),
    ("Qwen2_5_VLProcessor", "qwen2_5_vl", "qwen2-vl", {}, _QWEN, {}),
    ("Qwen3VLProcessor", "qwen3_vl", "qwen3-vl", {}, _QWEN, {}),
    ("Glm4vProcessor", "glm4v", "glm4v", {}, {"image_token": "<|image|>"}, {}),
    ("Glm46VProcessor", "glm46v", "glm4.6v", {}, {"image_token": "<|image|>"}, {}),
    ("PaddleOCRVLProcessor", "paddleocr_vl", "paddleocr-vl", {}, {"image_token": "<|IMAGE_PLACEHOLDER|>"}, {}),
    ("InternVLProcessor", "internvl", "internvl", {"image_seq_length": 16}, _INTERN, {"crop_to_patches": True}),
    ("AyaVisionProcessor", "aya_vision", "aya", {"patch_size": 14, "downsample_factor": 2, "img_size": 84}, {},
     {"crop_to_patches": True}),
    ("DeepseekOcr2Processor", "deepseek_ocr2", "deepseek-ocr 2", {"patch_size": 7, "downsample_ratio": 4}, {}, {}),
    ("DeepseekVLProcessor", "deepseek_vl", "deepseek-vl", {"num_image_tokens": 64},
     {"image_token": "<image_placeholder>"}, {}),
    ("MiniCPMV4_6Processor", "minicpmv4_6", "minicpm-v", {}, _MINICPM, {}),
    ("Gemma4Processor", "gemma4", "gemma4", {}, {**_GEMMA, "image_token": "<|image|>"}, {}),
]  # fmt: skip


def saved(
    folder: Path, name: str, oracle: str, fields: dict[str, Any], tokens: dict[str, str], one: bool
) -> ImageModel:
    images = ORACLES[oracle].configuration
    whole = {"processor_class": name, **fields, **({"image_processor": images} if one else {})}
    folder.mkdir(exist_ok=True)
    (folder / "processor_config.json").write_text(json.dumps(whole))
    (folder / "tokenizer_config.json").write_text(json.dumps({"extra_special_tokens": tokens}))
    if not one:
        (folder / "preprocessor_config.json").write_text(json.dumps(images))
    return ImageModel.read(folder)


def their_processor(name: str, module: str, oracle: str, fields: dict[str, Any], tokens: dict[str, str]) -> Any:
    """A processor of transformers without its tokenizer: it needs only the texts of tokens."""
    kind = getattr(importlib.import_module(f"transformers.models.{module}.processing_{module}"), name)
    found = object.__new__(kind)
    image = tokens.get("image_token", "<image>")
    texts: dict[str, Any] = {
        "image_token": image, "fake_image_token": "<fake_token_around_image>", "global_image_tag": "<global-img>",
        "global_image_token": "<global-img>", "image_seq_len": 169, "vision_feature_select_strategy": None, **tokens,
        **fields,
    }  # fmt: skip
    if name == "Gemma3Processor":
        boi, soft, eoi = tokens.values()
        texts["full_image_sequence"] = f"\n\n{boi}{soft * fields['image_seq_length']}{eoi}\n\n"
    if name == "InternVLProcessor":
        texts["image_token"] = tokens["context_image_token"]
    if name == "PaliGemmaProcessor":
        texts["image_seq_length"] = 256
    if name == "AyaVisionProcessor":
        texts |= {
            "start_of_img_token": "<|START_OF_IMG|>", "end_of_img_token": "<|END_OF_IMG|>", "tile_token": "TILE",
            "tile_global_token": "TILE_GLOBAL", "img_patch_token": "<|IMG_PATCH|>", "patch_size": 28,
        }  # fmt: skip
    texts["image_processor"] = ORACLES[oracle].make()
    for key, value in texts.items():
        setattr(found, key, value)
    return found


@pytest.mark.parametrize("one_file", [False, True])
@pytest.mark.parametrize(
    ("name", "module", "oracle", "fields", "tokens", "kwargs"), MODELS, ids=[f"{m[0]}-{m[2]}" for m in MODELS]
)
def test_placeholders_are_those_of_transformers(
    tmp_path: Path,
    name: str,
    module: str,
    oracle: str,
    fields: dict[str, Any],
    tokens: dict[str, str],
    kwargs: dict[str, Any],
    one_file: bool,
) -> None:
    model = saved(tmp_path, name, oracle, fields, tokens, one_file)
    placeholder = model.placeholder()
    theirs = their_processor(name, module, oracle, fields, tokens)
    for height, width in ((56, 56), (100, 333), (333, 100), (500, 640)):
        image = drawn_image(height, width)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            out = theirs.image_processor(pil(image), return_tensors="np", **kwargs)
        runs = placeholder.runs(model.configured.process(image))
        theirs.slice_mode = True
        assert text_of(runs) == theirs.replace_image_token(out, 0, image_token_divisor=16)
        feature = next(run.text for run in runs if run.is_feature)
        assert features_of(runs) == text_of(runs).count(feature)
        arranged = arrangement_of(runs)
        assert arranged is None or len(arranged.rows) == features_of(runs)
        # The marker is what their processor looks for in the prompt.
        expected = tokens["boi_token"] if name == "Gemma3Processor" else theirs.image_token
        assert placeholder.marker == expected


@settings(max_examples=60 if EVERY_CASE else 20, deadline=None)
@given(height=st.integers(1, 3000), width=st.integers(1, 3000), index=st.integers(4, 6))
def test_features_of_llava_next(tmp_path_factory: pytest.TempPathFactory, height: int, width: int, index: int) -> None:
    """The count for any size; the image processor's part is arithmetic on sizes only."""
    name, module, oracle, fields, tokens, _ = MODELS[index]
    model = saved(tmp_path_factory.getbasetemp() / f"llava-{index}", name, oracle, fields, tokens, True)
    theirs = their_processor(name, module, oracle, fields, tokens)
    found = SimpleNamespace(height=height, width=width, crops=model.configured.process(drawn_image(8, 8)).crops)
    crop = found.crops[0].shape[:2]
    out = {"pixel_values": [[np.zeros((3, *crop))]], "image_sizes": [(height, width)], "batch_num_images": [1]}
    assert text_of(model.placeholder().runs(found)) == theirs.replace_image_token(out, 0)  # type: ignore[arg-type]


def test_pixtral_ends_every_row(tmp_path: Path) -> None:
    """By hand: transformers' PixtralProcessor cannot be imported without torchvision."""
    fields = {"patch_size": 14, "spatial_merge_size": 2}
    # Merging makes patches of 28 pixels of those that the image processor's own file names.
    files = {"image_processor_type": "PixtralImageProcessorFast", "patch_size": 14, "size": {"longest_edge": 1540}}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(files))
    (tmp_path / "processor_config.json").write_text(json.dumps({"processor_class": "PixtralProcessor", **fields}))
    model = ImageModel.read(tmp_path)
    found = model.configured.process(drawn_image(57, 84))
    assert found.crops[0].shape == (84, 84, 3)
    row = "[IMG][IMG][IMG]"
    assert text_of(model.placeholder().runs(found)) == f"{row}[IMG_BREAK]{row}[IMG_BREAK]{row}[IMG_END]"


def test_idefics2_writes_its_pieces(tmp_path: Path) -> None:
    model = saved(tmp_path, "Idefics2Processor", "idefics2 split", {"image_seq_len": 3}, {}, False)
    runs = model.placeholder().runs(model.configured.process(drawn_image(60, 60)))
    fake = "<fake_token_around_image>"
    assert text_of(runs) == (fake + "<image>" * 3) * 5 + fake


def test_pan_and_scan_has_words_around_its_crops(tmp_path: Path) -> None:
    name, module, oracle, fields, tokens, _ = MODELS[7]
    model = saved(tmp_path, name, oracle, fields, tokens, True)
    asked = {"do_pan_and_scan": True, "pan_and_scan_min_crop_size": 64}
    configured = model.configured.overridden(asked, ImageLimits(5, 5 * 256), 14)
    theirs = their_processor(name, module, oracle, fields, tokens)
    image = drawn_image(100, 400)
    out = theirs.image_processor(
        pil(image), pan_and_scan_max_num_crops=4, pan_and_scan_min_ratio_to_activate=1.2, **asked
    )
    assert out["num_crops"] == [4]
    assert text_of(model.placeholder(configured).runs(configured.process(image))) == theirs.replace_image_token(out, 0)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "takes no images"),
        ({"image_processor_type": "SmolVLMImageProcesor"}, "did you mean 'SmolVLMImageProcessor'"),
        ({"image_processor_type": 3}, "image_processor_type=3 is not supported"),
        ({"image_processor_type": "CLIPImageProcessor", "do_sharpen": True}, "do_sharpen=True"),
        ({"image_processor_type": "CLIPImageProcessor", "do_resize": False}, "do_resize=False is not supported"),
        ({"image_processor_type": "CLIPImageProcessor", "do_convert_rgb": False}, "do_convert_rgb=False"),
        ({"image_processor_type": "CLIPImageProcessor", "do_center_crop": False}, "vary in size"),
        ({"image_processor_type": "CLIPImageProcessor", "size": {"width": 3}}, "size has width: expected"),
        ({"image_processor_type": "CLIPImageProcessor", "size": "big"}, "expected a mapping"),
        ({"image_processor_type": "CLIPImageProcessor", "image_std": [1, 0, 1]}, "image_std has a zero"),
        ({"image_processor_type": "CLIPImageProcessor", "image_mean": [1, 2]}, "3 channels"),
        ({"image_processor_type": "CLIPImageProcessor", "resample": 9}, "resample=9"),
        ({"image_processor_type": "Qwen2VLImageProcessor", "min_pixels": 9, "max_pixels": 4}, "no image can have both"),
        ({"image_processor_type": "Gemma4ImageProcessor", "max_soft_tokens": 71}, "choose one of 70, 140"),
        ({"image_processor_type": "LlavaNextImageProcessor", "image_grid_pinpoints": [[5, 5]]}, "multiples"),
        ({"image_processor_type": "GotOcr2ImageProcessor", "pad_size": {"height": 3, "width": 3}}, "pad_size"),
    ],
)
def test_files_without_support_are_refused(tmp_path: Path, fields: dict[str, Any], message: str) -> None:
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(fields))
    with pytest.raises(ConfigError, match=message):
        ImageModel.read(tmp_path)


def test_internvl_says_in_its_configuration_how_images_are_cut(tmp_path: Path) -> None:
    """Of its authors' format, whatever the file of an image processor says."""
    vision = {"image_size": 56, "patch_size": 14}
    config = {"model_type": "internvl_chat", "vision_config": vision, "max_dynamic_patch": 4, "downsample_ratio": 0.5}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({"feature_extractor_type": "CLIPFeatureExtractor"}))
    counts = {}
    for name, more in (("cut", {}), ("whole", {"dynamic_image_size": False}), ("large", {"force_image_size": 112})):
        (tmp_path / "config.json").write_text(json.dumps({**config, **more}))
        model = ImageModel.read(tmp_path)
        image = model.processor.process(drawn_image(60, 130))
        runs = model.placeholder().runs(image)
        assert text_of(runs) == f"<img>{'<IMG_CONTEXT>' * features_of(runs)}</img>"
        counts[name] = len(image.crops), features_of(runs)
    assert counts == {"cut": (3, 12), "whole": (1, 4), "large": (3, 48)}
    (tmp_path / "config.json").write_text(json.dumps({**config, "use_thumbnail": False}))
    with pytest.raises(ConfigError, match="use_thumbnail=False is not supported"):
        ImageModel.read(tmp_path)


@pytest.mark.parametrize(("architecture", "crops", "tokens"), [("", 5, 693), ("2", 5, 833)])
def test_deepseek_ocr_is_known_by_its_architecture(tmp_path: Path, architecture: str, crops: int, tokens: int) -> None:
    """In its authors' format no file says how images are cut."""
    config = {"model_type": "deepseek_vl_v2", "architectures": [f"DeepseekOCR{architecture}ForCausalLM"]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    given = {"processor_class": "DeepseekVLV2Processor", "candidate_resolutions": [[1024, 1024]], "patch_size": 16}
    (tmp_path / "processor_config.json").write_text(json.dumps(given))
    model = ImageModel.read(tmp_path)
    image = model.processor.process(drawn_image(840, 900))
    runs = model.placeholder().runs(image)
    assert (len(image.crops), text_of(runs)) == (crops, "<image>" * tokens)
    assert image.crops[-1].shape == (1024, 1024, 3)
    (tmp_path / "config.json").write_text(json.dumps({**config, "architectures": ["DeepseekVLV2ForCausalLM"]}))
    with pytest.raises(ConfigError, match="takes no images"):
        ImageModel.read(tmp_path)


@pytest.mark.parametrize("text", ["{", "[]", "[" * 100_000, '{"a": NaN'])
def test_malformed_files_are_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "preprocessor_config.json").write_text(text)
    with pytest.raises(ConfigError, match="preprocessor_config"):
        ImageModel.read(tmp_path)


def test_names_of_other_implementations_are_known(tmp_path: Path) -> None:
    for name in ("SmolVLMImageProcessorFast", "SmolVLMImageProcessorPil", "Qwen2_5_VLImageProcessor"):
        (tmp_path / "preprocessor_config.json").write_text(json.dumps({"image_processor_type": name}))
        assert ImageModel.read(tmp_path).configured.name in ("SmolVLMImageProcessor", "Qwen2VLImageProcessor")


def test_operators_may_change_what_requests_may_not(tmp_path: Path) -> None:
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({"image_processor_type": "CLIPImageProcessor"}))
    model = ImageModel.read(tmp_path, {"resample": 2})
    assert model.processor.resample == 2  # type: ignore[attr-defined]
    with pytest.raises(RequestError, match="this model allows none") as error:
        model.configured.overridden({"resample": 0}, ImageLimits(1, 256), 14)
    assert error.value.parameter == "mm_processor_kwargs"


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"max_pixels": 1 << 40}, "max_pixels=1099511627776: expected an integer"),
        (
            {"max_pixels": 28 * 28 * 4096},
            "1 crops and 16384 patches; this server allows 1 and 1024",
        ),
        ({"size": {"shortest_edge": 10, "longest_edge": 28 * 28 * 4096}}, "16384 patches"),
        ({"min_pixels": True}, "min_pixels=True"),
        ({"max_pixels": 1}, "no image can have both"),
        ({"patch_size": 7}, "'patch_size': this model allows size, min_pixels, max_pixels"),
    ],
)
def test_requests_are_bounded(tmp_path: Path, kwargs: dict[str, Any], message: str) -> None:
    model = saved(tmp_path, "Qwen2VLProcessor", "qwen2-vl", {}, _QWEN, False)
    limits = model.processor.limits(14)
    assert limits == ImageLimits(1, 1024)
    with pytest.raises(RequestError, match=message):
        model.configured.overridden(kwargs, limits, 14)


def test_a_request_gets_fewer_pixels(tmp_path: Path) -> None:
    model = saved(tmp_path, "Qwen2VLProcessor", "qwen2-vl", {}, _QWEN, False)
    asked = {"size": {"shortest_edge": 3136, "longest_edge": 28 * 28 * 16}}
    configured = model.configured.overridden(asked, model.processor.limits(14), 14)
    image = drawn_image(300, 300)
    runs = model.placeholder(configured).runs(configured.process(image))
    out = ORACLES["qwen2-vl"].make()(pil(image), return_tensors="np", **asked)
    assert features_of(runs) == out["image_grid_thw"].prod() // 4 <= 16


def test_strips_become_errors_and_not_gigabytes(tmp_path: Path) -> None:
    strip = np.zeros((1, 30_000, 3), np.uint8)
    for name in ("clip", "llava", "qwen2-vl"):
        oracle = ORACLES[name].configuration
        (tmp_path / "preprocessor_config.json").write_text(json.dumps(oracle))
        with pytest.raises(RequestError, match="30000x1"):
            ImageModel.read(tmp_path).configured.process(strip)
