"""Whole decode steps of a quantised Llama-3-8B, compiled for TPUs that are not there: memory, and bytes that are moved.

    scripts/bench tpu_quantized_steps [--chip v6e v5e tpu7x] [--quantization int8 int4 fp8] [--kv-cache-dtype auto fp8]

64 requests decode a token each, after 1,024 tokens. Each step is compiled in a process of its own. Temporaries are
given as a share of the weights, bytes as a share of the weights that a step reads and of the cache that it must read.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.tpu_steps import config_of
from jaxllm.pallas_kernels.chips import CHIPS

ROWS, CONTEXT, LAYERS = 64, 1024, 32


def compile_one(chip: str, quantization: str, kv_cache_dtype: str) -> dict[str, Any]:
    """Compile a step in this process: its bytes by kind."""
    from jaxllm.planning.target import find_target, prepare

    prepare(chip)
    from benchmarks.tpu.moved import moved_bytes
    from jaxllm.config import EngineConfig
    from jaxllm.executor.compile.buckets import Bucket
    from jaxllm.executor.compile.executables import compiler_options
    from jaxllm.executor.compile.generation import generation_programs
    from jaxllm.executor.largest_step import PROVISIONAL_PAGES
    from jaxllm.executor.memory.capacity import bytes_on_device
    from jaxllm.executor.resolve import resolve_config
    from jaxllm.planning.hlo import parse

    target = find_target(chip, None, 1)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(config_of("llama-3.1-8b")))
        options: dict[str, Any] = {
            "model": folder,
            "max_model_len": 8192,
            "max_num_seqs": 256,
            "max_num_batched_tokens": 512,
            "tensor_parallel_size": 1,
            "kv_cache_dtype": kv_cache_dtype,
            "load_format": "dummy",
        }
        if quantization != "none":
            options["quantization"] = quantization
        resolved = resolve_config(EngineConfig.from_options(options), target.devices)
        programs = generation_programs(resolved, PROVISIONAL_PAGES)
        compiled = programs.step(Bucket(ROWS, ROWS)).compile(compiler_options(programs, resolved.config.compile))
    memory: Any = compiled.memory_analysis()
    weights = bytes_on_device(programs.parameters)
    moved = moved_bytes(parse(compiled.as_text() or ""), LAYERS)
    # Of the embedding single rows are read.
    table = 128256 * 4096 * (2 if quantization == "none" else 1)
    cache = ROWS * CONTEXT * resolved.cache.page_bytes // resolved.page_size
    return {
        "chip": chip,
        "quantization": quantization,
        "kv_cache_dtype": kv_cache_dtype,
        "weights": weights,
        "read": weights - table,
        "cache": cache,
        "cache_pages": bytes_on_device(programs.state.kv_cache),
        "temporaries": memory.temp_size_in_bytes,
        "aliased": memory.alias_size_in_bytes,
        "moved": dict(moved.most_common()),
    }


def shares(found: dict[str, Any]) -> tuple[float, float]:
    """Temporaries over the weights, and what is moved over the weights and the cache that a step reads."""
    moved = sum(found["moved"].values()) + found["cache"]
    return found["temporaries"] / found["weights"], moved / (found["read"] + found["cache"])


def run_child(chip: str, quantization: str, kv_cache_dtype: str, timeout: float) -> dict[str, Any]:
    """Compile a step in a process of its own. Raises `RuntimeError` with its last words if it fails."""
    command = [sys.executable, "-m", "benchmarks.tpu_quantized_steps", "--child"]
    command += ["--chip", chip, "--quantization", quantization, "--kv-cache-dtype", kv_cache_dtype]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=timeout)
    if done.returncode:
        raise RuntimeError((done.stderr.strip().splitlines() or ["no message"])[-1])
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    """Print one line per step, as it is done."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    tpus = [chip.name for chip in CHIPS.values() if chip.platform == "tpu"]
    parser.add_argument("--chip", nargs="+", choices=tpus, default=["v6e", "v5e", "tpu7x"])
    parser.add_argument("--quantization", nargs="+", default=["int8", "int4", "fp8"], help="'none' for bfloat16")
    parser.add_argument("--kv-cache-dtype", nargs="+", default=["auto"])
    parser.add_argument("--timeout", type=float, default=1800, help="seconds for one compilation (1800)")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        found = compile_one(options.chip[0], options.quantization[0], options.kv_cache_dtype[0])
        sys.stdout.write(json.dumps(found) + "\n")
        return
    columns = ("chip", "weights", "cache", "weights, GiB", "temporaries", "bytes", "most of them, MiB")
    print(f"| {' | '.join(columns)} |\n{'|---' * len(columns)}|")
    for chip in options.chip:
        for weights in options.quantization:
            for cache in options.kv_cache_dtype:
                try:
                    found = run_child(chip, weights, cache, options.timeout)
                except (RuntimeError, subprocess.TimeoutExpired) as error:
                    print(f"| {chip} | {weights} | {cache} | {error} |", flush=True)
                    continue
                temporaries, moved = shares(found)
                most = ", ".join(f"{name} {size / 2**20:,.0f}" for name, size in list(found["moved"].items())[:5])
                size = found["weights"] / 2**30
                line = f"| {chip} | {weights} | {cache} | {size:.1f} | {temporaries:.1%} | {moved:.3f} | {most} |"
                print(line, flush=True)


if __name__ == "__main__":
    main()
