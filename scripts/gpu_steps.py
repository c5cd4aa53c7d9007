"""Compile whole steps for described GPUs and count what the host does; `scripts/gpu_compile --steps` runs this.

XLA writes down what it will run: launches, and graphs of them. What stands outside of a graph is launched by the host
one by one, and a conditional or a loop there makes it wait for the device. Exit code 1 where a step does so.
"""

import argparse
import dataclasses
import json
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from jaxllm.config import EngineConfig
from jaxllm.executor.compile.buckets import Bucket
from jaxllm.executor.compile.executables import compiler_options
from jaxllm.executor.compile.generation import generation_programs
from jaxllm.executor.resolve import resolve_config
from scripts.described_gpus import GPUS, Gpu
from scripts.first_light import LLAMA_8B

LAYERS = 4
"""Layers of the model; more would only repeat these."""

ROWS = 64
"""Requests of a step."""

_PAGES = 10000


@dataclasses.dataclass(frozen=True)
class Counts:
    """What a compiled step is made of. `in_loops` are those of `kernels` that run once per trip of a loop."""

    from_host: int
    waits: int
    kernels: int
    in_loops: int
    attention: float
    """Kernels of paged attention in a layer, loops counted as one trip."""


_THUNK = re.compile(r"^( *)\d+: (k\w+)")


def count_thunks(text: str) -> tuple[int, int, int, int]:
    """From XLA's list of thunks: what the host launches, where it waits for the device, kernels, those in loops."""
    inside: list[tuple[int, str]] = []
    from_host = waits = kernels = in_loops = 0
    for line in text.splitlines():
        found = _THUNK.match(line)
        if found is None:
            continue
        depth, kind = len(found[1]), found[2]
        while inside and inside[-1][0] >= depth:
            inside.pop()
        around = {name for _, name in inside}
        by_host = "kCommandBuffer" not in around
        from_host += by_host and kind != "kSequential"
        waits += by_host and kind in ("kConditional", "kWhile")
        if kind not in ("kCommandBuffer", "kConditional", "kWhile", "kSequential"):
            kernels += 1
            in_loops += "kWhile" in around
        inside.append((depth, kind))
    return from_host, waits, kernels, in_loops


@dataclasses.dataclass(frozen=True)
class Asked:
    """What the engine has: slots for adapters of rank 16, and drafts of each request, made by `method`."""

    adapters: int = 0
    drafts: int = 0
    method: str = "ngram"

    def buckets(self) -> list[Bucket]:
        """Of a step of decodes, with their drafts, and of a prompt."""
        decodes = Bucket(1 << (ROWS * (1 + self.drafts) - 1).bit_length(), ROWS)
        return [decodes, Bucket(2048, ROWS)]

    def options(self, folder: Path) -> dict[str, Any]:
        """The engine's, for a model in `folder`."""
        options: dict[str, Any] = {"model": str(folder), "max_model_len": 4096}
        options |= {"max_num_seqs": ROWS, "max_num_batched_tokens": 2048}
        if self.adapters:
            options |= {"enable_lora": True, "max_loras": self.adapters, "max_lora_rank": 16}
        if self.drafts:
            options |= {"spec_method": self.method, "num_speculative_tokens": self.drafts}
        if self.drafts and self.method == "eagle3":
            options |= {"speculative_model": str(_write_head(folder / "head"))}
        return options


def _write_head(folder: Path) -> Path:
    """What an engine reads of an EAGLE-3 head for Llama-3-8B before its weights."""
    folder.mkdir()
    config = {**LLAMA_8B, "architectures": ["LlamaForCausalLMEagle3"], "num_hidden_layers": 1}
    taps = [1, LAYERS // 2, LAYERS - 1]
    config |= {"draft_vocab_size": 32000, "eagle_config": {"eagle_aux_hidden_state_layer_ids": taps}}
    (folder / "config.json").write_text(json.dumps(config))
    save_file({"norm.weight": np.ones(1, np.float32)}, folder / "model.safetensors")
    return folder


def compile_step(gpu: Gpu, bucket: Bucket, dump: Path, asked: Asked) -> Counts:
    """The counts of one step of Llama-3-8B's layers. XLA writes to `dump`, the folder that XLA_FLAGS names."""
    devices = gpu.devices()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "config.json").write_text(json.dumps({**LLAMA_8B, "num_hidden_layers": LAYERS}))
        options = asked.options(folder)
        resolved = resolve_config(EngineConfig.from_options(options), devices)
        programs = generation_programs(resolved, _PAGES)
        compiled = programs.step(bucket).compile(compiler_options(programs, resolved.config.compile))
    thunks = max(dump.glob("*thunk_sequence_after_thunk_passes.txt"), key=lambda path: path.stat().st_mtime_ns)
    return Counts(*count_thunks(thunks.read_text()), sum(_attention_kernels(compiled.as_text() or "")) / LAYERS)


def _attention_kernels(hlo: str) -> Iterator[bool]:
    """One for each kernel of paged attention."""
    fused = set(re.findall(r"(?:calls|to_apply)=%?([\w.\-]+)", hlo))
    name = ""
    for line in hlo.splitlines():
        begins = re.match(r"(?:ENTRY )?%?([\w.\-]+) \(.*\{$", line)
        if begins:
            name = begins[1]
        elif "/paged_attention/" in line and name not in fused:
            yield re.search(r" (fusion|custom-call|copy|dot|scatter|gather|sort)\(", line) is not None


def report(names: list[str], asked: Asked) -> int:
    """Print a table for these GPUs, and return the exit code."""
    dump = Path(os.environ["XLA_FLAGS"].partition("--xla_dump_to=")[2].split()[0])
    titles = f"{'from host':>9} {'waits':>6} {'kernels':>8} {'in loops':>8} {'attention':>9}"
    print(f"{'gpu':5} {'tokens':>6} {'rows':>5} {titles}")
    waits = 0
    for name in names:
        for bucket in asked.buckets():
            found = compile_step(GPUS[name], bucket, dump, asked)
            waits += found.waits
            print(
                f"{name:5} {bucket.tokens:6} {bucket.rows:5} {found.from_host:9} {found.waits:6} {found.kernels:8}"
                f" {found.in_loops:8} {found.attention:9.1f}",
                flush=True,
            )
    print(f"the host waits {waits} times" if waits else "the host waits nowhere")
    return int(waits > 0)


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="scripts/gpu_compile --steps", description="Count what steps launch.")
    parser.add_argument("gpus", nargs="*", metavar="GPU", help=f"{', '.join(GPUS)}; default: h100 a100 l4")
    parser.add_argument("--adapters", type=int, default=0, metavar="N", help="slots for LoRA adapters of rank 16")
    parser.add_argument("--drafts", type=int, default=0, metavar="K", help="drafts of each request")
    parser.add_argument("--method", choices=["ngram", "eagle3"], default="ngram", help="what makes them (ngram)")
    arguments = parser.parse_args()
    asked = Asked(arguments.adapters, arguments.drafts, arguments.method)
    return report(arguments.gpus or ["h100", "a100", "l4"], asked)


if __name__ == "__main__":
    sys.exit(main())
