"""A checkpoint of the model that benchmarks run, in bfloat16, and how long reading its bytes takes."""

import json
import math
import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from benchmarks.shared.reference_model import write_reference_model
from jaxllm.models.checkpoint.safetensors_writer import Entry, write_file

BUFFER_BYTES = 2**20
"""What is read at a time, into memory that stays in a processor's cache."""
PART_BYTES = 16 * 2**20


def write_reference_checkpoint(folder: Path, sizes: dict[str, Any]) -> Path:
    """Write the model with these values of its configuration, and random weights in bfloat16, and return the folder.

    Tensors repeat the same values, which saves the time of making billions.
    """
    write_reference_model(folder, **{**sizes, "torch_dtype": "bfloat16"})
    shapes = _shapes(json.loads((folder / "config.json").read_text()))
    matrix = np.random.default_rng(0).standard_normal(max(map(math.prod, shapes.values())), np.float32)
    values = (matrix * 0.02).astype(ml_dtypes.bfloat16)
    ones = np.ones_like(values[: 2**16])
    entries = [Entry(name, "BF16", shape, 2 * math.prod(shape)) for name, shape in shapes.items()]
    arrays = ((name, (values if len(shape) > 1 else ones)[: math.prod(shape)]) for name, shape in shapes.items())
    write_file(folder / "model.safetensors", entries, arrays)
    return folder


def _shapes(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    hidden, wide, vocab = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    queries, keys = (config[f"num_{name}_heads"] * config["head_dim"] for name in ("attention", "key_value"))
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens": (vocab, hidden)}
    for layer in range(config["num_hidden_layers"]):
        name = f"model.layers.{layer}"
        shapes |= {
            f"{name}.self_attn.q_proj": (queries, hidden),
            f"{name}.self_attn.k_proj": (keys, hidden),
            f"{name}.self_attn.v_proj": (keys, hidden),
            f"{name}.self_attn.o_proj": (hidden, queries),
            f"{name}.mlp.gate_proj": (wide, hidden),
            f"{name}.mlp.up_proj": (wide, hidden),
            f"{name}.mlp.down_proj": (hidden, wide),
            f"{name}.input_layernorm": (hidden,),
            f"{name}.post_attention_layernorm": (hidden,),
        }
    shapes |= {"model.norm": (hidden,), "lm_head": (vocab, hidden)}
    return {f"{name}.weight": shape for name, shape in shapes.items()}


def read_once(folder: Path) -> tuple[float, float]:
    """Wall and CPU seconds of reading a checkpoint's bytes, a thread for each processor, without keeping them."""
    parts = list(_parts(folder))
    wall, cpu = time.perf_counter(), time.process_time()
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(_read, parts))
    return time.perf_counter() - wall, time.process_time() - cpu


def _parts(folder: Path) -> Iterator[tuple[Path, int, int]]:
    for path in folder.glob("*.safetensors"):
        size = path.stat().st_size
        for begin in range(0, size, PART_BYTES):
            yield path, begin, min(PART_BYTES, size - begin)


def _read(part: tuple[Path, int, int]) -> None:
    path, begin, size = part
    buffer = np.empty(BUFFER_BYTES, np.uint8)
    with path.open("rb", buffering=0) as file:
        file.seek(begin)
        while size > 0:
            size -= file.readinto(buffer.data[: min(size, BUFFER_BYTES)]) or size
