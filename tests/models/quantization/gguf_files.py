"""GGUF files of small models, written by the `gguf` package, and the same numbers as transformers has them."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
import transformers
from safetensors.numpy import load_file, save_file

from jaxllm.models.quantization.gguf.types import TYPES_BY_NAME, TensorType
from tests.models.test_families import Case, save

_FLOATS = {
    "Q4_1": (0, 2),
    "Q5_1": (0, 2),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q6_K": (208,),
}
"""Where the float16 numbers of a block are, if not in the first two bytes."""
_EXPERT = re.compile(r"(.*\.experts)\.(\d+)\.(.*)\.weight")
_EXPERT_LEAVES = {"w1": "gate", "gate_proj": "gate", "w2": "down", "down_proj": "down", "w3": "up", "up_proj": "up"}

Choice = Callable[[str], str]
"""The type of a matrix, by llama.cpp's name."""


def random_bytes(kind: TensorType, rows: int, columns: int, scale: float = 0.1) -> np.ndarray:
    """Bytes [rows, ...] of a matrix; every byte but the scales is random."""
    random = np.random.default_rng(len(kind.name) + kind.bytes + rows)
    blocks = random.integers(0, 256, (rows * columns // kind.block, kind.bytes), np.uint8)
    if kind.name == "MXFP4":
        blocks[:, 0] = random.integers(121, 125, len(blocks))
    for at in () if kind.name == "MXFP4" else _FLOATS.get(kind.name, (0,)):
        blocks[:, at : at + 2] = random.normal(0, scale, (len(blocks), 1)).astype(np.float16).view(np.uint8)
    return blocks.reshape(rows, -1)


def metadata(architecture: str, config: Any) -> dict[str, Any]:
    """The metadata that llama.cpp's converter writes for a configuration."""
    found = {
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "block_count": config.num_hidden_layers,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.layer_norm_rms_epsilon": float(config.rms_norm_eps),
        "attention.key_length": getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads,
    }
    ropes = config.rope_parameters
    whole = ropes.get("full_attention", ropes)
    found["rope.freq_base"] = float(whole["rope_theta"])
    if whole["rope_type"] == "linear":
        found |= {"rope.scaling.type": "linear", "rope.scaling.factor": float(whole["factor"])}
    return {f"{architecture}.{key}": value for key, value in found.items()}


def write(folder: Path, architecture: str, case: Case, choice: Choice, **more: Any) -> tuple[Path, torch.nn.Module]:
    """A random model as a GGUF file in `folder`, and with the numbers that are in that."""
    source = folder / "source"
    model = save(source, case)
    values = load_file(source / "model.safetensors")
    path = folder / "model-of-test.gguf"
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in {**metadata(architecture, model.config), **more}.items():
        add(writer, key, value)
    number = next(key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    names = gguf.get_tensor_name_map(number, model.config.num_hidden_layers)
    stacked: dict[str, dict[int, np.ndarray]] = {}
    for name, tensor in values.items():
        expert = _EXPERT.fullmatch(name)
        if expert is None:
            module, _, parameter = name.rpartition(".")
            theirs = f"{names.get_name(module)}.{parameter}"
            values[name] = _add(writer, architecture, model.config, theirs, tensor, choice(theirs))
            continue
        layer = name.split(".")[2]
        theirs = f"blk.{layer}.ffn_{_EXPERT_LEAVES[expert[3]]}_exps.weight"
        stacked.setdefault(theirs, {})[int(expert[2])] = tensor
        values[name] = _packed(tensor, choice(theirs))[1]
    for theirs, experts in stacked.items():
        raw = np.stack([_packed(experts[index], choice(theirs))[0] for index in range(len(experts))])
        writer.add_tensor(theirs, raw, raw_dtype=gguf.GGMLQuantizationType[choice(theirs)])
    close(writer)
    save_file({name: np.ascontiguousarray(value) for name, value in values.items()}, source / "model.safetensors")
    loaded = transformers.AutoModelForCausalLM.from_pretrained(source, attn_implementation="eager", dtype="float32")
    return path, loaded.eval()


def add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    """A key of metadata, in the type of Python's value."""
    kinds = {bool: "bool", int: "uint32", float: "float32", str: "string", list: "array"}
    getattr(writer, f"add_{kinds[type(value)]}")(key, value)


def close(writer: gguf.GGUFWriter) -> None:
    """Write all to the file."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add(
    writer: gguf.GGUFWriter, architecture: str, config: Any, name: str, tensor: np.ndarray, kind: str
) -> np.ndarray:
    """Add a tensor as llama.cpp's converter does, and return it with the numbers that are in the file."""
    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}.get(name.split(".")[-2])
    is_permuted = architecture == "llama" and heads is not None
    if architecture.startswith("gemma") and name.endswith("norm.weight"):
        tensor = tensor + 1
    if is_permuted:
        assert heads is not None
        tensor = tensor.reshape(heads, 2, -1, *tensor.shape[1:]).swapaxes(1, 2).reshape(tensor.shape)
    if tensor.ndim < 2:
        kind = "F32"
    raw, numbers = _packed(np.ascontiguousarray(tensor), kind)
    writer.add_tensor(name, raw, raw_dtype=gguf.GGMLQuantizationType[kind])
    if is_permuted:
        assert heads is not None
        numbers = numbers.reshape(heads, -1, 2, *tensor.shape[1:]).swapaxes(1, 2).reshape(tensor.shape)
    return numbers - 1 if architecture.startswith("gemma") and name.endswith("norm.weight") else numbers


def _packed(tensor: np.ndarray, kind: str) -> tuple[np.ndarray, np.ndarray]:
    """The bytes of a tensor, and its numbers; those of types that the package cannot quantise to are random."""
    number = gguf.GGMLQuantizationType[kind]
    try:
        raw = gguf.quants.quantize(tensor, number)
    except NotImplementedError:
        rows, columns = tensor.shape
        raw = random_bytes(TYPES_BY_NAME[kind], rows, columns, 0.2 / TYPES_BY_NAME[kind].bytes)
    return raw, gguf.quants.dequantize(raw, number).astype(np.float32)
