"""What it costs the host to make patches of decoded images, next to the image processors of transformers.

    scripts/bench image_processors [--repeat 9] [--sizes 1920x1080 3840x2160]

vLLM calls these: the one on torchvision, and where there is none the one on Pillow. Both give normalised floats, here
bytes are cut, which the device normalises. For every family and size the least milliseconds of an image, of a clock and
of processors. Without torchvision, its columns are empty.
"""

import argparse
import importlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from typing import Any

import numpy as np
from PIL import Image

from jaxllm.models.towers.patches import cut_patches
from jaxllm.serving.media.image_processors.registry import ConfiguredProcessor


@dataclass(frozen=True)
class Case:
    """A family: the module and class of transformers, its configuration, and patches of its tower."""

    module: str
    name: str
    fields: Mapping[str, Any]
    patch_size: int
    merge: int

    def ours(self, image: Image.Image) -> Any:
        """Patches of the engine."""
        processed = self._configured.process(np.asarray(image))
        return [cut_patches(crop, self.patch_size, self.merge) for crop in processed.crops]

    def theirs(self, backend: str) -> Callable[[Image.Image], Any] | None:
        """What the image processor of a `backend`, "pil" or "torchvision", makes of an image; None without it."""
        if backend == "torchvision" and find_spec("torchvision") is None:
            return None
        ending, infix = ("Pil", "_pil") if backend == "pil" else ("", "")
        module = importlib.import_module(f"transformers.models.{self.module}.image_processing{infix}_{self.module}")
        made = getattr(module, f"{self.name}{ending}")(**self.fields)
        kind = "np" if backend == "pil" else "pt"
        return lambda image: made(images=[image], return_tensors=kind)

    @property
    def _configured(self) -> ConfiguredProcessor:
        return ConfiguredProcessor.make({"image_processor_type": self.name, **self.fields}, "benchmark")


CASES = {
    "Qwen2.5-VL": Case("qwen2_vl", "Qwen2VLImageProcessor", {"min_pixels": 3136, "max_pixels": 12845056}, 14, 2),
    "Gemma 3": Case("gemma3", "Gemma3ImageProcessor", {"size": {"height": 896, "width": 896}}, 14, 4),
    "InternVL 3": Case(
        "got_ocr2", "GotOcr2ImageProcessor", {"size": {"height": 448, "width": 448}, "crop_to_patches": True}, 14, 2
    ),
}


def least(call: Callable[[], Any], repeat: int) -> tuple[float, float]:
    """Least milliseconds of a call: of a clock, and of all its threads on processors."""
    call()
    found = []
    for _ in range(repeat):
        began = time.perf_counter(), time.process_time()
        call()
        found.append((time.perf_counter() - began[0], time.process_time() - began[1]))
    return min(each[0] for each in found) * 1e3, min(each[1] for each in found) * 1e3


def drawn(width: int, height: int) -> Image.Image:
    """A picture that is smooth here and noisy there."""
    rng = np.random.default_rng(width * height)
    slope = np.add.outer(np.linspace(0, 128, height), np.linspace(0, 64, width))[..., None]
    return Image.fromarray((slope + rng.integers(0, 48, (height, width, 3))).astype(np.uint8))


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a line for each family and size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=9, help="times that count; the least is printed")
    parser.add_argument("--sizes", nargs="+", default=["1920x1080", "3840x2160"], help="widths and heights in pixels")
    options = parser.parse_args(arguments)
    print("| family | pixels | ours | Pillow | torchvision |\n|---|---|---|---|---|")
    for name, case in CASES.items():
        for size in options.sizes:
            width, height = map(int, size.split("x"))
            image = drawn(width, height)
            calls = [case.ours, case.theirs("pil"), case.theirs("torchvision")]
            times = [
                "-" if call is None else "{:.0f} ({:.0f})".format(*least(partial(call, image), options.repeat))
                for call in calls
            ]
            print(f"| {name} | {width} x {height} | {' | '.join(times)} |", flush=True)


if __name__ == "__main__":
    main()
