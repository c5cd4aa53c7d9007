"""Compiles whole steps of Llama-3-8B for TPUs that are not there and prints a line of JSON for each: run by a test.

measure_tpu_step.py FOLDER TOPOLOGY DEVICES LAYERS [LAYERS ...]
"""

import json
import re
import sys
import time
from pathlib import Path
from typing import Any, cast

from jax.experimental import topologies

from jaxllm.config import EngineConfig
from jaxllm.executor.compile.buckets import Bucket
from jaxllm.executor.compile.generation import generation_programs
from jaxllm.executor.resolve import resolve_config

LLAMA_3_8B = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 128256,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 8192,
    "rope_theta": 500000.0,
    "rms_norm_eps": 1e-5,
    "torch_dtype": "bfloat16",
    "eos_token_id": 128009,
}
PAGES = 1024
ROWS = 64

_COLLECTIVE = re.compile(r"= [^=]*? (all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute)(?:-start)?\(")
_SHAPE = re.compile(r"(?:bf16|f32|s32|u32|pred|f16|s8|u8)\[([\d,]*)\]")
_OPERATION = re.compile(r"\s+(?P<root>ROOT )?(?P<name>%[\w.-]+) = .*? (?P<kind>[a-z][\w-]*)\((?P<rest>.*)")
_TILED = re.compile(r"\w+\[([\d,]+)\]\{[\d,]+:T\((\d+),128\)")
_NAME = re.compile(r"%[\w.-]+")
COSTLY = ("fusion", "reduce", "scatter", "sort", "dynamic-slice", "copy")
"""Operations that take time. Some others only name a part of an array."""


def collectives(text: str) -> dict[str, list[dict[str, Any]]]:
    """Collective operations of a compiled module, by computation: kind and elements of the result."""
    found: dict[str, list[dict[str, Any]]] = {}
    name = ""
    for line in text.splitlines():
        if line and not line[0].isspace():
            name = line.removeprefix("ENTRY ").split(" ")[0]
        match = _COLLECTIVE.search(line)
        if match:
            shapes = _SHAPE.findall(line.split(f" {match[1]}")[0])
            elements = max((elements_of(shape) for shape in shapes), default=0)
            found.setdefault(name, []).append({"kind": match[1], "elements": elements})
    return found


def repeated(text: str) -> list[str]:
    """Operations in the loop over the layers whose operands are the same in every layer, so that their results are too.

    Those operands are what the loop carries along unchanged, constants, and what is made of nothing else.
    """
    operations = {match["name"]: match for match in _operations_of_a_layer(text)}

    def operands(match: re.Match[str]) -> list[str]:
        return [name for name in _NAME.findall(match["rest"]) if name in operations]

    carried = next(operands(match) for match in operations.values() if match["root"])
    same: set[str] = set()
    for name, match in operations.items():
        if match["kind"] == "get-tuple-element" and operations[operands(match)[0]]["kind"] == "parameter":
            place = re.search(r"index=(\d+)", match["rest"])
            unchanged = place is not None and carried[int(place[1])] == name
        else:
            unchanged = match["kind"] != "parameter" and same.issuperset(operands(match))
        if unchanged:
            same.add(name)
    return [operations[name][0].strip() for name in operations if name in same and operations[name]["kind"] in COSTLY]


def narrow(text: str, elements: int) -> list[str]:
    """Results in the loop over the layers, of `elements` or more, in tiles of one or two rows: a register has eight."""
    found = []
    for match in _operations_of_a_layer(text):
        shapes = _TILED.findall(match[0].split(f" {match['kind']}(")[0]) if match["kind"] in COSTLY else []
        if any(int(rows) <= 2 and elements_of(shape) >= elements for shape, rows in shapes):
            found.append(match[0].strip())
    return found


def _operations_of_a_layer(text: str) -> list[re.Match[str]]:
    """The instructions in the body of the loop over the layers: the one that calls kernels."""
    body = next(part for part in re.split(r"\n(?=\S)", text) if "while/body" in part and " custom-call(" in part)
    return [match for line in body.splitlines() if (match := _OPERATION.match(line))]


def elements_of(shape: str) -> int:
    """Elements of a shape written as '4,128'."""
    product = 1
    for size in filter(None, shape.split(",")):
        product *= int(size)
    return product


def measure(folder: Path, devices: Any, count: int, layers: int, bucket: Bucket) -> dict[str, Any]:
    """Processor seconds of compilation, bytes by kind per device, collectives, what layers repeat, narrow tiles."""
    (folder / "config.json").write_text(json.dumps({**LLAMA_3_8B, "num_hidden_layers": layers}))
    options = {
        "model": str(folder),
        "max_model_len": 8192,
        "max_num_batched_tokens": 512,
        "tensor_parallel_size": count,
    }
    resolved = resolve_config(EngineConfig.from_options(options), devices)
    programs = generation_programs(resolved, PAGES)
    lowered = programs.step(bucket).lower()
    # Processor time of all threads: the machine may have other work.
    start = time.process_time()
    compiled = lowered.compile()
    seconds = time.process_time() - start
    memory = cast(Any, compiled.memory_analysis())
    text = compiled.as_text() or ""
    cache: Any = programs.state.kv_cache.pages[0]
    assert cache.sharding is not None
    return {
        "devices": count,
        "layers": layers,
        "tokens": bucket.tokens,
        "attention": resolved.forward.attention,
        "seconds": seconds,
        "arguments": memory.argument_size_in_bytes,
        "temporaries": memory.temp_size_in_bytes,
        "aliased": memory.alias_size_in_bytes,
        "code": memory.generated_code_size_in_bytes,
        "cache": elements_of(",".join(map(str, cache.sharding.shard_shape(cache.shape)))) * 2,
        "collectives": collectives(text),
        "repeated": repeated(text),
        "narrow": narrow(text, bucket.tokens * 1024),
    }


def main() -> None:
    """Measure every step asked for; the first one also starts the compiler."""
    folder, topology, *steps = sys.argv[1:]
    devices = topologies.get_topology_desc(platform="tpu", topology_name=topology).devices
    for step in steps:
        count, layers, tokens = map(int, step.split("/"))
        print(json.dumps(measure(Path(folder), devices, count, layers, Bucket(tokens, ROWS))), flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
