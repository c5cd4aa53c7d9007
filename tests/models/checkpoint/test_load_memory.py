"""Loading a checkpoint of about 1 GB takes hardly more memory than its weights, also where they are packed."""

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from jaxllm.models.checkpoint.weight_files import SINGLE_FILE
from tests.conftest import RunPython
from tests.thinned import EVERY_CASE

LAYERS, HIDDEN, WIDE, VOCAB = 12, 1024, 4096, 16384
PARAMETERS = 2 * VOCAB * HIDDEN + LAYERS * (4 * HIDDEN**2 + 3 * WIDE * HIDDEN)


def write_checkpoint(folder: Path, dtype: np.dtype[Any]) -> None:
    """Random weights, `PARAMETERS` of them and norms. One block of values serves all tensors."""
    config = {
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": VOCAB,
        "hidden_size": HIDDEN,
        "intermediate_size": WIDE,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 16,
    }
    (folder / "config.json").write_text(json.dumps(config))
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens": (VOCAB, HIDDEN),
        "lm_head": (VOCAB, HIDDEN),
        "model.norm": (HIDDEN,),
    }
    for layer in range(LAYERS):
        name = f"model.layers.{layer}"
        shapes |= {f"{name}.self_attn.{part}_proj": (HIDDEN, HIDDEN) for part in "qkvo"}
        shapes |= {f"{name}.mlp.{part}_proj": (WIDE, HIDDEN) for part in ("gate", "up")}
        shapes |= {f"{name}.mlp.down_proj": (HIDDEN, WIDE)}
        shapes |= {f"{name}.{part}_layernorm": (HIDDEN,) for part in ("input", "post_attention")}
    block = np.random.default_rng(0).random(VOCAB * HIDDEN, np.float32).astype(dtype).view(np.uint8)
    kind = {"float32": "F32", "bfloat16": "BF16"}[dtype.name]
    header, end = {}, 0
    for name, shape in shapes.items():
        start, end = end, end + math.prod(shape) * dtype.itemsize
        header[f"{name}.weight"] = {"dtype": kind, "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    with (folder / SINGLE_FILE).open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for shape in shapes.values():
            file.write(block[: math.prod(shape) * dtype.itemsize].data)


STORED = ("float32", "bfloat16")
LAYOUTS = (("loop", "rows"), ("scan", "rows"), ("scan", "packed"))


@pytest.fixture(scope="module", params=STORED)
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp(request.param)
    write_checkpoint(folder, np.dtype(getattr(ml_dtypes, request.param, None) or request.param))
    yield folder
    (folder / SINGLE_FILE).unlink()


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="measures memory as Linux counts it")
@pytest.mark.parametrize(
    ("checkpoint", "stack", "layout"),
    [
        # CI has each type and each layout.
        pytest.param(stored, *layout)
        for stored in STORED
        for layout in LAYOUTS
        if EVERY_CASE or (stored == "bfloat16") == (layout == LAYOUTS[1])
    ],
    indirect=["checkpoint"],
)
def test_peak_memory(checkpoint: Path, stack: str, layout: str, run_python: RunPython) -> None:
    result = run_python("-m", "tests.models.checkpoint.measure_load", str(checkpoint), stack, layout, "float32")
    assert result.returncode == 0, result.stderr
    measured = json.loads(result.stdout)
    assert measured["weights"] > 4 * PARAMETERS > 0.9e9
    assert measured["peak"] <= 1.3 * measured["weights"], measured["peak"] / measured["weights"]
