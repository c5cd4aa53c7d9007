"""Image processors by the name that a checkpoint gives theirs."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

from jaxllm.errors import ConfigError, RequestError, nearest, quoted
from jaxllm.serving.media.image_processors.base import Bytes, ImageLimits, ImageProcessor, ProcessedImage
from jaxllm.serving.media.image_processors.cohere2_vision import Cohere2Vision
from jaxllm.serving.media.image_processors.deepseek_ocr import DeepSeekOCR2, UnlimitedOCR
from jaxllm.serving.media.image_processors.deepseek_vl import DeepSeekVL
from jaxllm.serving.media.image_processors.gemma3 import Gemma3
from jaxllm.serving.media.image_processors.gemma4 import Gemma4
from jaxllm.serving.media.image_processors.got_ocr2 import GotOcr2
from jaxllm.serving.media.image_processors.idefics2 import Idefics2
from jaxllm.serving.media.image_processors.idefics3 import Idefics3
from jaxllm.serving.media.image_processors.kimi_k25 import KimiK25, KimiVL
from jaxllm.serving.media.image_processors.lfm2_vl import LFM2VL
from jaxllm.serving.media.image_processors.llama4 import Llama4
from jaxllm.serving.media.image_processors.llava_next import LLaVANext, LLaVAOneVision
from jaxllm.serving.media.image_processors.minicpmv import MiniCPMV
from jaxllm.serving.media.image_processors.phi3_vision import Phi3Vision
from jaxllm.serving.media.image_processors.phi4_multimodal import Phi4Multimodal
from jaxllm.serving.media.image_processors.pixtral import Pixtral
from jaxllm.serving.media.image_processors.qwen2_vl import GLM4V, PaddleOCRVL, Qwen2VL
from jaxllm.serving.media.image_processors.settings import Settings
from jaxllm.serving.media.image_processors.single import CLIP, LLaVA, SigLIP

IMAGE_PROCESSORS: Final[Mapping[str, type[ImageProcessor]]] = {
    "CLIPImageProcessor": CLIP,
    "Cohere2VisionImageProcessor": Cohere2Vision,
    "DeepseekOcr2ImageProcessor": DeepSeekOCR2,
    "DeepseekVLImageProcessor": DeepSeekVL,
    "Gemma3ImageProcessor": Gemma3,
    "Gemma4ImageProcessor": Gemma4,
    "Glm46VImageProcessor": GLM4V,
    "Glm4vImageProcessor": GLM4V,
    "GotOcr2ImageProcessor": GotOcr2,
    "Idefics2ImageProcessor": Idefics2,
    "Idefics3ImageProcessor": Idefics3,
    "KimiVLImageProcessor": KimiVL,
    "JanusImageProcessor": DeepSeekVL,
    "Kimi_K25ImageProcessor": KimiK25,
    "Lfm2VlImageProcessor": LFM2VL,
    "Llama4ImageProcessor": Llama4,
    "LlavaImageProcessor": LLaVA,
    "LlavaNextImageProcessor": LLaVANext,
    "LlavaOnevisionImageProcessor": LLaVAOneVision,
    "MiniCPMV4_6ImageProcessor": MiniCPMV,
    "PaddleOCRVLImageProcessor": PaddleOCRVL,
    "Phi3VImageProcessor": Phi3Vision,
    "Phi4MMImageProcessor": Phi4Multimodal,
    "Phi4MultimodalImageProcessor": Phi4Multimodal,
    "PixtralImageProcessor": Pixtral,
    "Qwen2VLImageProcessor": Qwen2VL,
    "SiglipImageProcessor": SigLIP,
    "SmolVLMImageProcessor": Idefics3,
    "UnlimitedOcrImageProcessor": UnlimitedOCR,
}
"""By image_processor_type, without an ending Fast or Pil."""

_FORMER: Final = {
    "CLIPFeatureExtractor": "CLIPImageProcessor",
    "Qwen2_5_VLImageProcessor": "Qwen2VLImageProcessor",
    "Qwen3VLImageProcessor": "Qwen2VLImageProcessor",
    "Gemma3nImageProcessor": "SiglipImageProcessor",
}
"""Names of older checkpoints."""


@dataclass(frozen=True)
class ConfiguredProcessor:
    """An image processor, and the fields that it was made of."""

    name: str
    fields: Mapping[str, Any]
    processor: ImageProcessor

    @classmethod
    def make(cls, fields: Mapping[str, Any], source: str) -> Self:
        """Read a configuration, whose file is `source` in messages.

        Raises `ConfigError` for an unknown image_processor_type, a bad value, and a field without support.
        """
        given = fields.get("image_processor_type", fields.get("feature_extractor_type", _of_code(fields)))
        name = short_name(given) if isinstance(given, str) else ""
        if name not in IMAGE_PROCESSORS:
            hint = nearest(name, IMAGE_PROCESSORS)
            raise ConfigError(f"{source}: image_processor_type={quoted(given)} is not supported{hint}")
        return cls(name, dict(fields), _read(name, Settings(fields, source)))

    def overridden(self, kwargs: Mapping[str, Any], limits: ImageLimits, patch_size: int) -> Self:
        """The processor that a request's mm_processor_kwargs ask for.

        Raises `RequestError` for a field that requests may not set, a bad value, and for more crops or patches than
        `limits`.
        """
        if not kwargs:
            return self
        allowed = self.processor.REQUEST_FIELDS
        for field in kwargs:
            if field not in allowed:
                can = f"this model allows {', '.join(allowed)}" if allowed else "this model allows none"
                raise RequestError(f"mm_processor_kwargs: {quoted(field)}: {can}", "mm_processor_kwargs")
        fields = {**self.fields, **kwargs}
        if kwargs.get("size") is not None and "size" in allowed:
            # A size says both numbers of pixels, which the configuration may give by these names.
            fields = {key: value for key, value in fields.items() if key in kwargs or not key.endswith("_pixels")}
        found = _read(self.name, Settings(fields, "mm_processor_kwargs", RequestError))
        most = found.limits(patch_size)
        if most.crops > limits.crops or most.patches > limits.patches:
            raise RequestError(
                f"mm_processor_kwargs: an image could have {most.crops} crops and {most.patches} patches; this server "
                f"allows {limits.crops} and {limits.patches}",
                "mm_processor_kwargs",
            )
        return type(self)(self.name, fields, found)

    def check_size(self, image: Bytes, patch_size: int, most: int) -> None:
        """Raise `RequestError` for an image that would have more than `most` patches, before it is processed.

        Where images become crops of one size, there is nothing to check.
        """
        if not isinstance(self.processor, Qwen2VL):
            return
        height, width = image.shape[:2]
        new_height, new_width = self.processor.sides(height, width)
        count = (new_height // patch_size) * (new_width // patch_size)
        if count > most:
            raise RequestError(
                f"an image of {width} x {height} pixels is too large: it would have {count} patches, and the engine "
                f"takes at most {most} (max_image_patches); give a smaller image",
                "image_url",
            )

    def process(self, image: Bytes) -> ProcessedImage:
        """Process uint8 [height, width, 3]. Raises `RequestError`."""
        return self.processor.process(image)


def _of_code(fields: Mapping[str, Any]) -> str | None:
    """The class of a checkpoint's own code, whose files may not have its name elsewhere."""
    code = fields.get("auto_map")
    found = code.get("AutoImageProcessor") if isinstance(code, Mapping) else None
    return found.rpartition(".")[2] if isinstance(found, str) else None


def short_name(name: str) -> str:
    """A processor's name without the endings of its implementations."""
    short = name.removesuffix("Fast").removesuffix("Pil")
    return _FORMER.get(short, short)


def _read(name: str, settings: Settings) -> ImageProcessor:
    kind = IMAGE_PROCESSORS[name]
    found = kind.read(settings)
    settings.check_all_read(kind.REQUEST_FIELDS)
    return found
