"""Options of images, videos and sound in requests, as in `jaxllm.config`; names are vLLM's wherever it has one."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jaxllm.config import option
from jaxllm.serving.options.audio import AudioOptions


@dataclass(frozen=True, kw_only=True)
class MediaOptions(AudioOptions):
    """Where images, videos and sound come from, how large they may be, and how they are processed."""

    allowed_media_domains: tuple[str, ...] = option(
        (), "Host names from which images and sound are fetched; all others are rejected. Default: every public host."
    )
    allowed_media_networks: tuple[str, ...] = option(
        (),
        "Networks with addresses that are not public from which images and sound are fetched as well, such as "
        "10.1.0.0/16; '*' allows all addresses.",
    )
    allowed_local_media_path: str | None = option(
        None, "Folder from which requests may read images and sound by file:// URLs. Default: none may."
    )
    image_fetch_timeout: float = option(
        5.0, "Seconds in which an image must be fetched, redirects included.", minimum=0.01, maximum=600.0
    )
    max_images_per_prompt: int = option(64, "Maximum number of images in a request.", minimum=1, maximum=1024)
    max_videos_per_prompt: int = option(8, "Maximum number of videos in a request.", minimum=0, maximum=1024)
    video_fetch_timeout: float = option(
        30.0, "Seconds in which a video must be fetched, redirects included.", minimum=0.01, maximum=600.0
    )
    max_video_bytes: int = option(64 << 20, "Maximum size of a video file in bytes.", minimum=1024)
    max_video_seconds: int = option(3600, "Maximum length of a video in seconds.", minimum=1, maximum=86_400)
    max_video_frames: int = option(
        768, "Maximum number of frames of a video that the model sees.", minimum=1, maximum=4096
    )
    max_video_pixels: int = option(
        1 << 26,
        "Maximum number of pixels of all frames of a video that the model sees, before they are resized. Each frame "
        "may have --max-image-pixels.",
        minimum=1,
        maximum=1 << 30,
    )
    max_image_bytes: int = option(32 << 20, "Maximum size of an image file in bytes.", minimum=1024)
    max_image_pixels: int = option(
        89_478_485,
        "Maximum number of pixels of an image before it is resized.",
        minimum=1,
        maximum=1 << 30,
    )
    media_decoder_processes: int | None = option(
        None,
        "Number of processes that decode images, or sound, or videos, of these at most 4. Default: one per CPU, and at "
        "most 8.",
        minimum=1,
        maximum=64,
    )
    media_io_kwargs: Mapping[str, Any] | None = option(
        None,
        'How media are decoded, as JSON: {"image": {"rgba_background_color": [255, 255, 255]}} is what transparency '
        'shows; {"video": {"num_frames": 32, "fps": 2}} the most frames of a video, and of each second of it.',
    )
    mm_processor_kwargs: Mapping[str, Any] | None = option(
        None, "Fields of the model's image processor, as JSON, in place of those of the checkpoint."
    )
    mm_processor_cache_gb: float = option(
        4.0,
        "Memory for processed images, and as much for sound, in GiB, so that these are not processed again; 0 keeps "
        "none.",
        minimum=0.0,
    )
