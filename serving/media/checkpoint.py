"""What a checkpoint's files say of images: how they are processed, and what stands for them in prompts."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from jaxllm.errors import ConfigError, nearest, quoted
from jaxllm.serving.media.image_processors.base import ImageProcessor
from jaxllm.serving.media.image_processors.registry import ConfiguredProcessor
from jaxllm.serving.media.image_processors.settings import Settings
from jaxllm.serving.media.placeholder import Model, Placeholder
from jaxllm.serving.media.placeholders import PLACEHOLDERS

MOST_BYTES: Final = 64 << 20
"""Of a file; tokenizer_config.json may list thousands of tokens."""

PROCESSOR: Final = "processor_config.json"
IMAGES: Final = "preprocessor_config.json"
TOKENIZER: Final = "tokenizer_config.json"
MODEL: Final = "config.json"


def _pixtral(fields: Mapping[str, Any]) -> dict[str, Any]:
    merged = fields.get("patch_size", 16), fields.get("spatial_merge_size", 1)
    return {"patch_size": merged[0] * merged[1]} if all(isinstance(each, int) for each in merged) else {}


_OF_PROCESSORS: Final[Mapping[str, Callable[[Mapping[str, Any]], dict[str, Any]]]] = {
    "AyaVisionProcessor": lambda fields: {"crop_to_patches": True},
    "Gemma3Processor": lambda fields: {"do_pan_and_scan": False},
    "InternVLProcessor": lambda fields: {"crop_to_patches": True},
    "PixtralProcessor": _pixtral,
    "QianfanOCRProcessor": lambda fields: {"crop_to_patches": True},
}
"""What transformers' processors tell their image processors, whatever preprocessor_config.json says."""


def _internvl_chat(config: Mapping[str, Any]) -> dict[str, Any]:
    """What the authors' own code makes of images, `dynamic_preprocess` of their model cards."""
    vision = config.get("vision_config")
    fields = {"image_size": 224, "patch_size": 14, **(vision if isinstance(vision, Mapping) else {})}
    settings = Settings({**fields, **config}, MODEL)
    size = settings.integer("force_image_size", settings.integer("image_size", 224))
    side = size // settings.integer("patch_size", 14, 1, 256)
    crops = settings.flag("dynamic_image_size", True)
    if crops and not settings.flag("use_thumbnail", True):
        raise settings.fail("use_thumbnail=False is not supported: the whole image follows its tiles")
    images = {
        "image_processor_type": "GotOcr2ImageProcessor",
        "size": {"height": size, "width": size},
        "image_mean": [0.485, 0.456, 0.406],
        "image_std": [0.229, 0.224, 0.225],
        "crop_to_patches": crops,
        "min_patches": settings.integer("min_dynamic_patch", 1, 1, 256),
        "max_patches": settings.integer("max_dynamic_patch", 12, 1, 256),
    }
    length = int(side * settings.number("downsample_ratio", 0.5, 0.01, 1)) ** 2
    return {"processor_class": "InternVLChatProcessor", "image_seq_length": length, "image_processor": images}


def _deepseek_ocr(config: Mapping[str, Any]) -> dict[str, Any]:
    """What the authors' own code makes of images; files of their processors say nothing of it."""
    if config.get("architectures") == ["DeepseekOCR2ForCausalLM"]:
        kind, tile, most = "DeepseekOcr2", 768, 6
    elif config.get("architectures") == ["DeepseekOCRForCausalLM"]:
        kind, tile, most = "UnlimitedOcr", 640, 9
    else:
        return {}
    images = {"image_processor_type": f"{kind}ImageProcessor", "tile_size": tile, "max_patches": most}
    return {"processor_class": f"{kind}Processor", "image_processor": images}


_OF_MODELS: Final[Mapping[str, Callable[[Mapping[str, Any]], dict[str, Any]]]] = {
    "deepseek_vl_v2": _deepseek_ocr,
    "internvl_chat": _internvl_chat,
}
"""processor_config.json of models that have none, by model_type: their config.json says it."""


@dataclass(frozen=True)
class ImageModel:
    """How a checkpoint's model takes images."""

    configured: ConfiguredProcessor
    files: Mapping[str, Mapping[str, Any]]
    """Contents of the files, by name; missing files are empty."""

    @classmethod
    def read(cls, folder: Path, kwargs: Mapping[str, Any] | None = None) -> Self:
        """Read the files of a folder; `kwargs` are the operator's --mm-processor-kwargs.

        Raises `ConfigError` for a missing or malformed file, and whatever `ConfiguredProcessor` does not support.
        """
        files = {name: read_object(folder / name) for name in (PROCESSOR, IMAGES, TOKENIZER)}
        config = read_object(folder / MODEL)
        own = _OF_MODELS.get(str(config.get("model_type")))
        if own is not None:
            files[PROCESSOR] = own(config) or files[PROCESSOR]
        # Newer checkpoints have one file; transformers looks there first.
        nested = files[PROCESSOR].get("image_processor")
        source, fields = (PROCESSOR, nested) if isinstance(nested, Mapping) else (IMAGES, files[IMAGES])
        if not fields:
            raise ConfigError(f"{folder} has no {IMAGES}, and no image_processor in {PROCESSOR}: it takes no images")
        tell = _OF_PROCESSORS.get(class_name(files))
        told = tell(files[PROCESSOR]) if tell is not None else {}
        return cls(ConfiguredProcessor.make({**fields, **told, **(kwargs or {})}, source), files)

    @property
    def processor(self) -> ImageProcessor:
        """As configured."""
        return self.configured.processor

    def placeholder(self, configured: ConfiguredProcessor | None = None) -> Placeholder:
        """What stands for images in prompts, of this processor or a request's.

        Raises `ConfigError` for an unknown processor_class, and for missing fields and tokens.
        """
        name = class_name(self.files)
        if name not in PLACEHOLDERS:
            raise ConfigError(f"processor_class={quoted(name)} is not supported{nearest(name, PLACEHOLDERS)}")
        used = configured or self.configured
        settings = Settings(self.files[PROCESSOR], PROCESSOR)
        model = Model(settings, token_texts(self.files[TOKENIZER]), used.processor, used.fields)
        return PLACEHOLDERS[name](model)


def class_name(files: Mapping[str, Mapping[str, Any]]) -> str:
    """processor_class, from whichever file has it."""
    for name in (PROCESSOR, IMAGES, TOKENIZER):
        found = files[name].get("processor_class")
        if isinstance(found, str):
            return found
    # Of a checkpoint with code of its own.
    code = files[IMAGES].get("auto_map")
    found = code.get("AutoProcessor") if isinstance(code, Mapping) else None
    return found.rpartition(".")[2] if isinstance(found, str) else ""


def token_texts(tokenizer: Mapping[str, Any]) -> dict[str, str]:
    """Texts of tokens with names, such as image_token, from tokenizer_config.json."""
    found: dict[str, str] = {}
    nested = (tokenizer.get(name) for name in ("model_specific_special_tokens", "extra_special_tokens"))
    for fields in (tokenizer, *(each for each in nested if isinstance(each, Mapping))):
        for name, value in fields.items():
            text = value.get("content") if isinstance(value, Mapping) else value
            if name.endswith("_token") and isinstance(text, str):
                found[name] = text
    return found


def read_object(path: Path) -> dict[str, Any]:
    """An object in a JSON file; empty where there is no file. Raises `ConfigError`."""
    try:
        if path.stat().st_size > MOST_BYTES:
            raise ConfigError(f"{path} has more than {MOST_BYTES} bytes")
        found = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from None
    if not isinstance(found, dict):
        raise ConfigError(f"{path} is not a JSON object")
    return found
