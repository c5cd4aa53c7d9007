"""What images cost on CPUs: text of a model that sees, and the first token of an image that is encoded already.

    scripts/bench images [--rows 8] [--dtype bfloat16]

Two engines run the same model with random weights, an Idefics 3 of 125 M parameters with a small SigLIP: one loads its
language model alone. They decode text in turn; of each, the least and the median time of a step. Then prompts of one
length are read: text, an image of 64 tokens that the devices hold, and one that must be encoded first.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.shared.reference_model import write_reference_model
from jaxllm.config import EngineConfig
from jaxllm.engine.engine import Engine
from jaxllm.models.towers.patches import cut_patches
from jaxllm.requests.media import ImageCrop, MediaItem, PromptMedia
from jaxllm.requests.request import Request
from jaxllm.requests.sampling_params import SamplingParams

PATCH, SIDE, MERGE = 16, 32, 4
"""Pixels of a patch, patches of an image, and patches of a row, each way."""
IMAGE = 31999
"""The token in place of a row."""
TEXT = 16
"""Tokens of text before an image."""
WARM_UP = 3
"""Steps of a batch that do not count."""


def write_seeing_model(folder: Path) -> Path:
    """Write the configuration of the reference model with a tower."""
    write_reference_model(folder)
    text = json.loads((folder / "config.json").read_text())
    tower = {
        "hidden_size": 384, "intermediate_size": 1536, "num_hidden_layers": 6, "num_attention_heads": 6,
        "image_size": PATCH * SIDE, "patch_size": PATCH,
    }  # fmt: skip
    config = {
        "architectures": ["Idefics3ForConditionalGeneration"], "model_type": "idefics3", "text_config": text,
        "vision_config": tower, "scale_factor": MERGE, "image_token_id": IMAGE, "tie_word_embeddings": False,
        "bos_token_id": 1, "eos_token_id": 2,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    return folder


def text_request(name: str, seed: int, length: int, max_tokens: int) -> Request:
    """A request for random text."""
    prompt = np.random.default_rng(seed).integers(3, 30000, length).astype(np.int32)
    params = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
    return Request(request_id=name, prompt_token_ids=prompt, params=params)


def image_request(name: str, seed: int, engine: Engine) -> Request:
    """A request for some text and an image of noise."""
    pixels = np.random.default_rng(seed).integers(0, 256, (PATCH * SIDE, PATCH * SIDE, 3), dtype=np.uint8)
    item = MediaItem.of((ImageCrop(cut_patches(pixels, PATCH, MERGE), SIDE, SIDE),), MERGE**2)
    made = text_request(name, seed, TEXT + item.num_rows, 1)
    made.prompt_token_ids[TEXT:] = IMAGE
    made.media = PromptMedia.of((item,), made.prompt_token_ids, IMAGE, engine.info.block_size)
    return made


def decode(engine: Engine, rows: int, steps: int) -> float:
    """Seconds of a step, over so many that decode `rows` requests for text."""
    for index in range(rows):
        engine.add_request(text_request(str(index), index, TEXT, steps + 2 * WARM_UP))
    while len(engine.step()) != rows:
        pass
    for _ in range(WARM_UP):
        engine.step()
    # Steps are under way while others are asked for: one by one they have no times.
    began = time.perf_counter()
    for _ in range(steps):
        engine.step()
    seconds = time.perf_counter() - began
    while engine.has_unfinished_requests():
        engine.step()
    return seconds / steps


def first_token(engine: Engine, request: Request) -> float:
    """Seconds until the only token of a request."""
    began = time.perf_counter()
    engine.add_request(request)
    while engine.has_unfinished_requests():
        engine.step()
    return time.perf_counter() - began


@contextmanager
def engines(options: argparse.Namespace) -> Iterator[tuple[Engine, Engine]]:
    """One of the language model alone, and one that sees."""
    with tempfile.TemporaryDirectory() as scratch:
        fixed: dict[str, Any] = {
            "model": str(write_seeing_model(Path(scratch) / "model")), "load_format": "dummy", "dtype": options.dtype,
            "enable_prefix_caching": False, "max_model_len": 512, "max_num_seqs": options.rows,
        }  # fmt: skip
        text, seeing = (
            Engine.from_config(EngineConfig.from_options({**fixed, "language_model_only": only}))
            for only in (True, False)
        )
        try:
            yield text, seeing
        finally:
            text.close()
            seeing.close()


def report_decodes(text: Engine, seeing: Engine, options: argparse.Namespace) -> None:
    """Print times of steps for text."""
    turns: tuple[list[float], list[float]] = ([], [])
    for _ in range(options.repeat):
        for engine, times in zip((text, seeing), turns, strict=True):
            times.append(decode(engine, options.rows, options.steps))
    for name, times in zip(("language model alone", "model that sees"), turns, strict=True):
        print(f"a step of text: {name:21} {_shown(times)}")
    ratios = [alone / other for alone, other in zip(*turns, strict=True)]
    least = min(turns[0]) / min(turns[1])
    print(f"tokens/s of text: {least:.3f} by least times, {statistics.median(ratios):.3f} by alternating runs")


def report_prompts(engine: Engine, options: argparse.Namespace) -> None:
    """Print times to the first token."""
    length = TEXT + (SIDE // MERGE) ** 2
    first_token(engine, image_request("held", 0, engine))
    times: dict[str, list[float]] = {"text": [], "an image that is held": [], "a new image": []}
    for turn in range(options.repeat):
        times["text"].append(first_token(engine, text_request("text", turn, length, 1)))
        times["an image that is held"].append(first_token(engine, image_request("held", 0, engine)))
        times["a new image"].append(first_token(engine, image_request("new", 1 + turn, engine)))
    for name, found in times.items():
        print(f"first token: {name:24} {_shown(found)}")


def _shown(times: list[float]) -> str:
    return f"least {min(times) * 1e3:8.2f} ms  median {statistics.median(times) * 1e3:8.2f} ms"


def main(arguments: Sequence[str] | None = None) -> None:
    """Print both comparisons."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--rows", type=int, default=8, help="requests that decode")
    parser.add_argument("--steps", type=int, default=20, help="decodes of an engine before the other's turn")
    parser.add_argument("--repeat", type=int, default=12, help="turns")
    options = parser.parse_args(arguments)
    with engines(options) as (text, seeing):
        report_decodes(text, seeing, options)
        report_prompts(seeing, options)


if __name__ == "__main__":
    main()
