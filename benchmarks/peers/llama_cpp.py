"""llama.cpp for this processor: built from source, a model in its format, and its own benchmark of batches."""

import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from benchmarks.peers.install import peers_folder
from benchmarks.peers.workloads import Measurement, Workload

VERSION = "0.3.36"
PACKAGE = f"llama-cpp-python=={VERSION}"
"""Whose source archive on PyPI contains llama.cpp's."""
TRIES = 5
TARGETS = ("llama-batched-bench", "llama-quantize")
_OPTIONS = (
    "CMAKE_BUILD_TYPE=Release",
    "GGML_NATIVE=ON",
    "LLAMA_CURL=OFF",
    "LLAMA_OPENSSL=OFF",
    "LLAMA_BUILD_SERVER=OFF",
)


def install_llama_cpp(folder: Path | None = None) -> Path:
    """The folder with llama.cpp's programs, built now (about 15 minutes on two cores) unless they are there.

    Raises:
        SystemExit: cmake or a C++ compiler is missing.
    """
    folder = folder or peers_folder() / f"llama-cpp-{VERSION}"
    programs = folder / "bin"
    if all((programs / name).exists() for name in TARGETS):
        return programs
    missing = [name for name in ("cmake", "c++") if shutil.which(name) is None]
    if missing:
        raise SystemExit(f"llama.cpp is built from source, which needs {' and '.join(missing)}")
    print(f"building llama.cpp of {PACKAGE} in {folder}: about 15 minutes", file=sys.stderr)
    folder.mkdir(parents=True, exist_ok=True)
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        archives = Path(scratch)
        subprocess.run([*pip, "download", "--no-deps", "--no-binary", ":all:", PACKAGE, "-d", scratch], check=True)
        (archive,) = archives.glob("*.tar.gz")
        with tarfile.open(archive) as packed:
            packed.extractall(archives, filter="data")
        (source,) = archives.glob("*/vendor/llama.cpp")
        build = archives / "build"
        chosen = [f"-D{option}" for option in (*_OPTIONS, "BUILD_SHARED_LIBS=OFF")]
        subprocess.run(["cmake", "-S", str(source), "-B", str(build), *chosen], check=True, stdout=sys.stderr)
        jobs = str(os.cpu_count() or 1)
        subprocess.run(
            ["cmake", "--build", str(build), "-j", jobs, "--target", *TARGETS], check=True, stdout=sys.stderr
        )
        programs.mkdir(exist_ok=True)
        for name in TARGETS:
            shutil.move(build / "bin" / name, programs / name)
    return programs


def write_gguf(path: Path, config: Mapping[str, int], seed: int = 0) -> None:
    """Write a Llama of this configuration (Hugging Face's names) with random bfloat16 weights and no tokenizer."""
    import gguf

    rng = np.random.default_rng(seed)
    hidden, layers, vocab = config["hidden_size"], config["num_hidden_layers"], config["vocab_size"]
    wide, head = config["intermediate_size"], config["head_dim"]
    queries, keys = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(hidden)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(wide)
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(head)
    writer.add_value_length(head)
    writer.add_rope_dimension_count(head)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(vocab)
    writer.add_tokenizer_model("no_vocab")
    matrices = {"token_embd": (vocab, hidden), "output": (vocab, hidden)}
    for layer in range(layers):
        shapes = {
            "attn_q": (queries, hidden), "attn_k": (keys, hidden), "attn_v": (keys, hidden),
            "attn_output": (hidden, queries), "ffn_gate": (wide, hidden), "ffn_up": (wide, hidden),
            "ffn_down": (hidden, wide),
        }  # fmt: skip
        matrices |= {f"blk.{layer}.{name}": shape for name, shape in shapes.items()}
        for norm in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"blk.{layer}.{norm}.weight", np.ones(hidden, np.float32))
    writer.add_tensor("output_norm.weight", np.ones(hidden, np.float32))
    for name, shape in matrices.items():
        values = rng.standard_normal(shape, np.float32) * 0.02
        bits = (values.view(np.uint32) >> 16).astype(np.uint16)  # truncated to bfloat16
        writer.add_tensor(f"{name}.weight", bits.view(np.uint8), raw_dtype=gguf.GGMLQuantizationType.BF16)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def quantize(programs: Path, model: Path, kind: str) -> Path:
    """The model in another of llama.cpp's types, such as `Q8_0`, in a file alongside it."""
    path = model.with_name(f"{kind}.gguf")
    command = [str(programs / "llama-quantize"), str(model), str(path), kind]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return path


def run(programs: Path, model: Path, workload: Workload) -> Measurement:
    """One run of a workload, in a process of its own; loading the model does not count."""
    cores = str(os.cpu_count() or 1)
    # It gives each sequence an equal share, in steps of 256 tokens, and leaves out what does not fit.
    tokens = workload.requests * -(-(workload.prompt_tokens + workload.output_tokens) // 256) * 256
    sizes = {"-c": tokens, "-npp": workload.prompt_tokens, "-ntg": workload.output_tokens, "-npl": workload.requests}
    command = [str(programs / "llama-batched-bench"), "-m", str(model), "-t", cores, "-tb", cores]
    command += [str(part) for flag in sizes.items() for part in flag] + ["--output-format", "jsonl"]
    # Its log is written by a thread for which it does not wait at the end: now and then the figures are missing.
    said = None
    for _ in range(TRIES):
        said = subprocess.run(command, check=True, capture_output=True, text=True, timeout=1800)
        for line in said.stdout.splitlines():
            if line.startswith("{"):
                row = json.loads(line)
                output = workload.requests * workload.output_tokens
                gap = row["t_tg"] / workload.output_tokens
                return Measurement(output, output / row["t"], row["t_pp"] * 1e3, gap * 1e3)
    raise SystemExit(f"{' '.join(command)} gave no figures; its last words: {said.stderr[-500:] if said else None}")
