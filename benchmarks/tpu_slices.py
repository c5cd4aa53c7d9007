"""Steps of large models compiled for TPU slices that are not there: what they hold, send and take; docs/scaling.md.

    scripts/bench tpu_slices                                 the whole table; each row takes minutes of one core
    scripts/bench tpu_slices --row deepseek-v3/v6e-64/decode
    scripts/bench tpu_slices --list

Each step is compiled in a process of its own, on one thread. Only shapes of weights are used.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.tpu_steps import LLAMA
from jaxllm.planning.target import find_target, prepare

LENGTH = 32768
STEPS = {"decode": (64, 64), "prompt": (2048, 64)}
"""Tokens and rows of each data shard."""

DEEPSEEK: dict[str, Any] = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
    "vocab_size": 129280,
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "n_routed_experts": 256,
    "num_experts_per_tok": 8,
    "n_shared_experts": 1,
    "first_k_dense_replace": 3,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "n_group": 8,
    "topk_group": 4,
    "norm_topk_prob": True,
    "routed_scaling_factor": 2.5,
    "scoring_func": "sigmoid",
    "topk_method": "noaux_tc",
    "max_position_embeddings": LENGTH,
    "rope_theta": 10000,
    "rms_norm_eps": 1e-6,
    "torch_dtype": "bfloat16",
}


def _llama(hidden: int, wide: int, layers: int, heads: int) -> dict[str, Any]:
    return LLAMA | {
        "hidden_size": hidden,
        "intermediate_size": wide,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "head_dim": 128,
        "tie_word_embeddings": False,
    }


MODELS = {
    "llama-3-70b": _llama(8192, 28672, 80, 64),
    "llama-3.1-405b": _llama(16384, 53248, 126, 128),
    "deepseek-v3": DEEPSEEK,
}
SLICES = {
    "v6e-8": ("v6e", "2x4"),
    "v6e-32": ("v6e", "4x8"),
    "v6e-64": ("v6e", "8x8"),
    "v6e-128": ("v6e", "8x16"),
    "v5p-8": ("v5p", "2x2x2"),
    "v5p-32": ("v5p", "2x4x4"),
    "v5p-64": ("v5p", "4x4x4"),
}
MESHES = {
    "llama-3-70b": {"v6e-8": "model=8", "v5p-8": "model=8"},
    "llama-3.1-405b": {"v6e-32": "model=32", "v5p-32": "model=32", "v6e-64": "data=2,model=32"},
    "deepseek-v3": {
        "v5p-32": "data=8,model=4",
        "v6e-64": "data=8,model=8",
        "v6e-128": "data=16,model=8",
        "v5p-64": "data=16,model=4",
    },
}
STAGES = {"llama-3.1-405b": {"v6e-32": 2}}
"""Pipeline parallel: so many stages share the slice. Their rows end with the number of the stage."""
ROWS = [f"{model}/{where}/{step}" for model, meshes in MESHES.items() for where in meshes for step in STEPS] + [
    f"{model}/{where}/{step}/{stage}"
    for model, slices in STAGES.items()
    for where, count in slices.items()
    for step in STEPS
    for stage in range(count)
]


@dataclass(frozen=True)
class Row:
    """One step: bytes of each device, KV tokens of all shards, seconds, collectives (kind, bytes, devices, times)."""

    row: str
    mesh: str
    why: str = ""
    weights: int = 0
    temporaries: int = 0
    kv_tokens: int = 0
    operations: float = 0
    links: float = 0
    copies: float = 0
    attention: float = 0
    collectives: tuple[tuple[str, int, int, int], ...] = ()


def compile_one(name: str) -> Row:
    """Compile one step in this process."""
    from jaxllm.config import EngineConfig
    from jaxllm.errors import CapacityError
    from jaxllm.executor.compile.buckets import Bucket
    from jaxllm.executor.resolve import resolve_config
    from jaxllm.planning.links import network_of
    from jaxllm.planning.memory import compile_step, measure
    from jaxllm.planning.report import compiler_estimate
    from jaxllm.planning.roofline import estimate

    model, where, step, *stage = name.split("/")
    (chip, topology), mesh, (tokens, rows) = SLICES[where], mesh_of(name), STEPS[step]
    devices = int(where.split("-")[1])
    target = find_target(chip, topology, devices)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(MODELS[model]))
        options = {
            "model": folder,
            "max_model_len": LENGTH,
            "max_num_seqs": 64,
            "max_num_batched_tokens": 2048,
            "mesh": mesh,
            "pipeline_parallel_size": STAGES[model][where] if stage else 1,
            "enable_expert_parallel": model == "deepseek-v3",
        }
        resolved = resolve_config(EngineConfig.from_options(options), target.devices)
        resolved = resolved.stage_configs[int(stage[0]) if stage else 0]
        memory, bucket = measure(resolved, target), Bucket(tokens, rows)
        try:
            compiled = compile_step(resolved, bucket, network_of(target.chip, resolved.mesh))
        except CapacityError as error:
            return Row(name, mesh, weights=memory.weights, why=str(error)[:200])
    assert target.chip is not None
    found = compiler_estimate(compiled, estimate(resolved, target.chip, memory.weights, memory.page, bucket))
    assert found is not None
    pages = memory.cache_budget(compiled) // memory.page
    return Row(
        name,
        mesh,
        weights=memory.weights,
        temporaries=compiled.temporary_bytes,
        kv_tokens=max(pages - 1, 0) * resolved.page_size * resolved.data_shards,
        operations=found.operations,
        links=found.links,
        copies=found.copies,
        attention=found.attention,
        collectives=tuple((each.kind, each.size, each.devices, each.times) for each in found.collectives),
    )


def mesh_of(name: str) -> str:
    """The mesh of a row, or of one of its stages."""
    model, where, _, *stage = name.split("/")
    if not stage:
        return MESHES[model][where]
    return f"model={int(where.split('-')[1]) // STAGES[model][where]}"


def run_child(name: str, timeout: float) -> Row:
    """Compile one step in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.tpu_slices", "--child", "--row", name]
    done = subprocess.run(command, env=dict(os.environ), capture_output=True, text=True, check=False, timeout=timeout)
    if done.returncode:
        why = (done.stderr.strip().splitlines() or ["no message"])[-1]
        return Row(name, mesh_of(name), why=f"ended with {done.returncode}: {why[:200]}")
    found = json.loads(done.stdout.splitlines()[-1])
    return Row(**found | {"collectives": tuple(map(tuple, found["collectives"]))})


def line(row: Row) -> str:
    """One line of the table."""
    model, where, step, *stage = row.row.split("/")
    what = f"| {model} | {where} | {row.mesh}{f', stage {stage[0]}' if stage else ''} | {step} |"
    if row.why:
        return f"{what} {row.why} |"
    memory = f"{row.weights / 2**30:.1f} | {row.temporaries / 2**20:.0f} | {row.kv_tokens / 1000:,.0f} |"
    parts = (row.operations, row.links, row.copies, row.attention)
    return f"{what} {memory} {' | '.join(f'{part * 1e3:.1f}' for part in (sum(parts), *parts))} | {_sent(row)} |"


def _sent(row: Row) -> str:
    large = [each for each in row.collectives if each[1] * each[3] >= 2**20]
    return "; ".join(f"{times} {kind} of {size / 2**20:.1f} MiB over {devices}" for kind, size, devices, times in large)


COLUMNS = (
    *("model", "slice", "mesh", "step", "weights, GiB", "temporaries, MiB", "thousand KV tokens"),
    *("ms", "operations", "links", "copies", "attention", "collectives of 1 MiB or more in all"),
)


def main() -> None:
    """Print one line per step, as it is done."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--row", nargs="+", choices=ROWS, default=ROWS, help="which (all)")
    parser.add_argument("--timeout", type=float, default=1800, help="seconds for one step (1800)")
    parser.add_argument("--list", action="store_true", help="list the steps and stop")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        prepare(SLICES[options.row[0].split("/")[1]][0])
        print(json.dumps(asdict(compile_one(options.row[0]))))
    elif options.list:
        print("\n".join(options.row))
    else:
        print(f"| {' | '.join(COLUMNS)} |\n{'|---' * len(COLUMNS)}|")
        for name in options.row:
            print(line(run_child(name, options.timeout)), flush=True)


if __name__ == "__main__":
    main()
