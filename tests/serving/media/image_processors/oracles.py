"""Image processors of transformers, with the configurations of published checkpoints, some of them scaled down."""

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image

Array = NDArray[Any]


def one_each(out: Any) -> list[Array]:
    """Crops of `pixel_values` [crops, channels, H, W]."""
    return list(np.asarray(out["pixel_values"]))


def first_of_batch(out: Any) -> list[Array]:
    """Crops of `pixel_values` [1, crops, channels, H, W]."""
    return list(np.asarray(out["pixel_values"])[0])


def masked(out: Any) -> list[Array]:
    """Crops of `pixel_values`, without what `pixel_attention_mask` excludes."""
    found = []
    for crop, mask in zip(first_of_batch(out), np.asarray(out["pixel_attention_mask"])[0], strict=True):
        rows, columns = mask.any(1).sum(), mask.any(0).sum()
        found.append(crop[:, :rows, :columns])
    return found


def tiles_first(out: Any) -> list[Array]:
    """Crops of `pixel_values_local`, which images without tiles lack, and of `pixel_values`."""
    return [np.asarray(crop) for key in ("pixel_values_local", "pixel_values") for crop in out.get(key, ())]


def joined(out: Any) -> list[Array]:
    """Crops of `pixel_values` [1, channels, size, patches * size], whose patches lie side by side."""
    values = np.asarray(out["pixel_values"])[0]
    channels, size, _ = values.shape
    found, first = [], 0
    for rows, columns in np.asarray(out["target_sizes"]).tolist():
        last = first + rows * columns * size
        patches = values[:, :, first:last].reshape(channels, size, rows, columns, size)
        found.append(patches.transpose(0, 2, 1, 3, 4).reshape(channels, rows * size, columns * size))
        first = last
    return found


@dataclass(frozen=True)
class Oracle:
    """A class of transformers, and a configuration for it."""

    module: str
    name: str
    fields: Mapping[str, Any] = field(default_factory=dict)
    crops: Callable[[Any], list[Array]] = one_each
    patch_size: int = 14
    layout: Literal["images", "merged", "rows", "padded rows"] = "images"
    """Of pixel values: whole crops, or patches; merged ones are in the order of Qwen's towers."""

    @property
    def configuration(self) -> dict[str, Any]:
        """As a file says it."""
        return {"image_processor_type": self.name, **self.fields}

    def make(self) -> Any:
        """The oracle itself."""
        module = importlib.import_module(f"transformers.models.{self.module}.image_processing_pil_{self.module}")
        return getattr(module, f"{self.name}Pil")(**self.fields)


def drawn_image(height: int, width: int, seed: int = 0) -> NDArray[np.uint8]:
    """Noise over a slope: uint8 [height, width, 3]."""
    rng = np.random.default_rng([seed, height, width])
    slope = np.linspace(0, 160, height * width * 3).reshape(height, width, 3)
    return (slope + rng.integers(0, 96, (height, width, 3))).astype(np.uint8)


def pil(image: NDArray[np.uint8]) -> Image.Image:
    """For the oracle."""
    return Image.fromarray(image)


SMOLVLM = Oracle(
    "smolvlm", "SmolVLMImageProcessor", {"size": {"longest_edge": 512}, "max_image_size": {"longest_edge": 128}},
    first_of_batch,
)  # fmt: skip
_GRID = [[56, 112], [112, 56], [112, 112], [168, 56], [56, 168]]
ORACLES: dict[str, Oracle] = {
    "smolvlm": SMOLVLM,
    "smolvlm odd": Oracle(
        "smolvlm", "SmolVLMImageProcessor", {"size": {"longest_edge": 315}, "max_image_size": {"longest_edge": 105}},
        first_of_batch,
    ),
    "smolvlm sized": Oracle(
        "smolvlm", "SmolVLMImageProcessor",
        {"size": {"height": 200, "width": 300}, "max_image_size": {"longest_edge": 100}, "rescale_factor": 0.01},
        first_of_batch,
    ),
    "idefics3": Oracle("idefics3", "Idefics3ImageProcessor", {"max_image_size": {"longest_edge": 364}}, first_of_batch),
    "idefics3 whole": Oracle("idefics3", "Idefics3ImageProcessor", {"do_image_splitting": False}, first_of_batch),
    "clip": Oracle("clip", "CLIPImageProcessor", {"size": {"shortest_edge": 336}, "crop_size": 336}),
    "clip between": Oracle(
        "clip", "CLIPImageProcessor", {"size": {"shortest_edge": 100, "longest_edge": 150}, "crop_size": 112}
    ),
    "clip square": Oracle("clip", "CLIPImageProcessor", {"size": [64, 80], "do_center_crop": False}),
    "clip small": Oracle(
        "clip", "CLIPImageProcessor",
        {"size": {"shortest_edge": 50}, "crop_size": {"height": 71, "width": 60}, "do_normalize": False},
    ),
    "llava": Oracle("llava", "LlavaImageProcessor", {"do_pad": True}),
    "siglip": Oracle("siglip", "SiglipImageProcessor", {"image_seq_length": 256}),
    "siglip bytes": Oracle("siglip", "SiglipImageProcessor", {"do_rescale": False, "resample": 2}),
    "gemma3": Oracle("gemma3", "Gemma3ImageProcessor", {"do_pan_and_scan": None, "image_seq_length": 256}),
    "gemma3 pan and scan": Oracle(
        "gemma3", "Gemma3ImageProcessor",
        {
            "do_pan_and_scan": True, "pan_and_scan_min_crop_size": 64, "pan_and_scan_max_num_crops": 4,
            "pan_and_scan_min_ratio_to_activate": 1.2,
        },
    ),
    "llava next": Oracle("llava_next", "LlavaNextImageProcessor", {"image_grid_pinpoints": [[672, 336], [336, 672]],
                         "crop_size": 336, "size": {"shortest_edge": 336}}, first_of_batch),
    "llava next small": Oracle(
        "llava_next", "LlavaNextImageProcessor",
        {"image_grid_pinpoints": _GRID, "crop_size": 56, "size": {"shortest_edge": 56}}, first_of_batch,
    ),
    "llava onevision": Oracle(
        "llava_onevision", "LlavaOnevisionImageProcessor",
        {"image_grid_pinpoints": _GRID, "size": {"height": 56, "width": 56}}, first_of_batch,
    ),
    "pixtral": Oracle("pixtral", "PixtralImageProcessor", {"size": {"longest_edge": 512}}, patch_size=16),
    "mistral3": Oracle("pixtral", "PixtralImageProcessor", {"size": {"longest_edge": 420}, "patch_size": 28}),
    "qwen2-vl": Oracle("qwen2_vl", "Qwen2VLImageProcessor", {"min_pixels": 3136, "max_pixels": 200704},
                       layout="merged"),
    "qwen3-vl": Oracle(
        "qwen2_vl", "Qwen2VLImageProcessor",
        {"size": {"shortest_edge": 65536, "longest_edge": 262144}, "patch_size": 16, "image_mean": [0.5, 0.5, 0.5],
         "image_std": [0.5, 0.5, 0.5], "temporal_patch_size": 2, "merge_size": 2},
        patch_size=16, layout="merged",
    ),
    "qwen narrow": Oracle("qwen2_vl", "Qwen2VLImageProcessor", {"min_pixels": 12000, "max_pixels": 12544},
                          layout="merged"),
    "glm4v": Oracle("glm4v", "Glm4vImageProcessor", {"size": {"shortest_edge": 12544, "longest_edge": 401408}},
                    layout="merged"),
    "glm4.6v": Oracle("glm46v", "Glm46VImageProcessor", {"size": {"shortest_edge": 12544, "longest_edge": 401408}},
                      layout="merged"),
    "paddleocr-vl": Oracle("paddleocr_vl", "PaddleOCRVLImageProcessor", {"max_pixels": 401408}, layout="rows"),
    "internvl": Oracle(
        "got_ocr2", "GotOcr2ImageProcessor", {"size": {"height": 112, "width": 112}, "crop_to_patches": True}
    ),
    "got-ocr2": Oracle("got_ocr2", "GotOcr2ImageProcessor"),
    "deepseek-ocr 2": Oracle(
        "deepseek_ocr2", "DeepseekOcr2ImageProcessor",
        {"size": {"height": 112, "width": 112}, "tile_size": 84, "max_patches": 5}, tiles_first,
    ),
    "aya": Oracle("got_ocr2", "GotOcr2ImageProcessor",
                  {"size": {"height": 84, "width": 84}, "crop_to_patches": True, "min_patches": 3, "max_patches": 7}),
    "idefics2": Oracle(
        "idefics2", "Idefics2ImageProcessor", {"size": {"shortest_edge": 100, "longest_edge": 300}}, masked
    ),
    "idefics2 split": Oracle(
        "idefics2", "Idefics2ImageProcessor",
        {"size": {"shortest_edge": 100, "longest_edge": 200}, "do_image_splitting": True}, masked,
    ),
    "minicpm-v": Oracle("minicpmv4_6", "MiniCPMV4_6ImageProcessor", {"scale_resolution": 168}, joined),
    "minicpm-v whole": Oracle("minicpmv4_6", "MiniCPMV4_6ImageProcessor", {"slice_mode": False}, joined),
    "janus": Oracle("janus", "JanusImageProcessor", {"size": {"height": 112, "width": 112}}),
    "deepseek-vl": Oracle("deepseek_vl", "DeepseekVLImageProcessor", {"size": {"height": 112, "width": 112}}),
    "gemma4": Oracle("gemma4", "Gemma4ImageProcessor", {"max_soft_tokens": 70}, patch_size=16, layout="padded rows"),
    "gemma4 280": Oracle("gemma4", "Gemma4ImageProcessor", patch_size=16, layout="padded rows"),
}  # fmt: skip
