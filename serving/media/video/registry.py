"""Video processors by the name that a checkpoint gives theirs."""

from collections.abc import Mapping
from typing import Any, Final

from jaxllm.serving.media.video.processors import GLM4VVideo, Qwen2VLVideo, Qwen3VLVideo
from jaxllm.serving.media.video.smolvlm import SmolVLMVideo
from jaxllm.serving.media.video.squares import CroppedVideo, SquareVideo

VIDEO_PROCESSORS: Final[Mapping[str, Any]] = {
    "Glm46VVideoProcessor": GLM4VVideo,
    "Glm4vVideoProcessor": GLM4VVideo,
    "InternVLVideoProcessor": SquareVideo,
    "LlavaNextVideoVideoProcessor": CroppedVideo,
    "LlavaOnevisionVideoProcessor": SquareVideo,
    "Qwen2VLVideoProcessor": Qwen2VLVideo,
    "Qwen2_5_VLVideoProcessor": Qwen2VLVideo,
    "Qwen3VLVideoProcessor": Qwen3VLVideo,
    "SmolVLMVideoProcessor": SmolVLMVideo,
}
"""By video_processor_type."""
