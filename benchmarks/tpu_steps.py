"""Whole steps compiled for TPUs that are not there: memory, collectives, and what XLA estimates they take.

    scripts/bench tpu_steps                                                 the whole table, half an hour on two cores
    scripts/bench tpu_steps --slice v6e-8 --model llama-3.1-8b --step 64x64
    scripts/bench tpu_steps --list

The steps are those of an engine whose requests may have 131,072 tokens. Each is compiled in a process of its own, on
one thread. Only shapes of weights are used. docs/programs.md says what the estimates count.
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

from jaxllm.planning.target import find_target, prepare

LENGTH = 131072
SLICES = {
    "v6e-1": ("v6e", "1x1", 1),
    "v6e-8": ("v6e", "2x4", 8),
    "v5e-8": ("v5e", "2x4", 8),
    "v5p-8": ("v5p", "2x2x2", 8),
    "tpu7x-8": ("tpu7x", "2x2x1", 8),
}
"""Chip, topology and devices; a TPU7x has two devices per chip."""
STEPS = {
    "64x64": (64, 64),
    "8192x256": (8192, 256),
    "4096x64": (4096, 64),
    "8x8": (8, 8),
    "32x32": (32, 32),
    "256x64": (256, 64),
}
"""Tokens and rows: 64 requests decode, and a prompt of 8,192 tokens where 256 requests may run. With 4,096 tokens they
go around the ring of devices, too, and the step is compiled in half the time.

8 requests decode, and do so with 3 drafts each (`--drafts 3` and 32x32), as 64 do in 256x64.
"""
USUAL = ("64x64", "8192x256")
LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 128256,
    "num_key_value_heads": 8,
    "max_position_embeddings": LENGTH,
    "rope_theta": 500000.0,
    "rms_norm_eps": 1e-5,
    "torch_dtype": "bfloat16",
}
SIZES: dict[str, tuple[int, int, int, int, int]] = {
    "llama-3.1-8b": (4096, 14336, 32, 32, 128),
    "llama-3.2-1b": (2048, 8192, 16, 32, 64),
    "llama-3.1-70b": (8192, 28672, 80, 64, 128),
}
"""Hidden size, feed-forward size, layers, query heads, head size."""


@dataclass(frozen=True)
class Row:
    """One step: bytes of each device, milliseconds, and collectives as (kind, bytes, times, asynchronous)."""

    slice: str
    model: str
    step: str
    fits: bool
    weights: int = 0
    temporaries: int = 0
    kv_tokens: int = 0
    collectives: tuple[tuple[str, int, int, bool], ...] = ()
    operations: float = 0
    links: float = 0
    copies: float = 0
    attention: float = 0
    roofline: float = 0
    why: str = ""

    @property
    def milliseconds(self) -> float:
        """Of the whole step."""
        return self.operations + self.links + self.copies + self.attention


def config_of(model: str) -> dict[str, Any]:
    """The `config.json` of a model."""
    hidden, wide, layers, heads, head_size = SIZES[model]
    return LLAMA | {
        "hidden_size": hidden,
        "intermediate_size": wide,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "head_dim": head_size,
        "tie_word_embeddings": model == "llama-3.2-1b",
    }


def compile_one(where: str, model: str, step: str, adapters: int = 0, drafts: int = 0) -> Row:
    """Compile one step in this process, with so many slots for adapters.

    With `drafts` its tokens are those of decodes with so many. Attention counts as that of these decodes.
    """
    from jaxllm.config import EngineConfig
    from jaxllm.errors import CapacityError
    from jaxllm.executor.compile.buckets import Bucket
    from jaxllm.executor.resolve import resolve_config
    from jaxllm.planning.links import network_of
    from jaxllm.planning.memory import compile_step, measure
    from jaxllm.planning.report import compiler_estimate
    from jaxllm.planning.roofline import estimate

    (chip, topology, count), (tokens, rows) = SLICES[where], STEPS[step]
    target = find_target(chip, topology, count)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(config_of(model)))
        options = {
            "model": folder,
            "max_model_len": LENGTH,
            "max_num_seqs": 256,
            "max_num_batched_tokens": 8192,
            "tensor_parallel_size": count,
        }
        if adapters:
            options |= {"enable_lora": True, "max_loras": adapters, "max_lora_rank": 16}
        if drafts:
            options |= {"spec_method": "ngram", "num_speculative_tokens": drafts}
        resolved = resolve_config(EngineConfig.from_options(options), target.devices)
        memory, bucket = measure(resolved, target), Bucket(tokens, rows)
        try:
            compiled = compile_step(resolved, bucket, network_of(target.chip, resolved.mesh))
        except CapacityError as error:
            return Row(where, model, step, fits=False, weights=memory.weights, why=str(error)[:200])
    assert target.chip is not None
    decodes = Bucket(tokens // (1 + drafts), rows) if drafts else bucket
    guess = estimate(resolved, target.chip, memory.weights, memory.page, decodes)
    found = compiler_estimate(compiled, guess)
    assert found is not None
    pages = memory.cache_budget(compiled) // memory.page
    return Row(
        where,
        model,
        step,
        fits=pages > 1,
        weights=memory.weights,
        temporaries=compiled.temporary_bytes,
        kv_tokens=max(pages - 1, 0) * resolved.page_size,
        collectives=tuple((each.kind, each.size, each.times, each.asynchronous) for each in found.collectives),
        operations=found.operations * 1e3,
        links=found.links * 1e3,
        copies=found.copies * 1e3,
        attention=found.attention * 1e3,
        roofline=guess.seconds * 1e3,
    )


def run_child(where: str, model: str, step: str, timeout: float, adapters: int = 0, drafts: int = 0) -> Row:
    """Compile one step in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.tpu_steps", "--child", "--slice", where, "--model", model]
    command += ["--step", step, "--adapters", str(adapters), "--drafts", str(drafts)]
    done = subprocess.run(command, env=dict(os.environ), capture_output=True, text=True, check=False, timeout=timeout)
    if done.returncode:
        why = (done.stderr.strip().splitlines() or ["no message"])[-1]
        return Row(where, model, step, fits=False, why=f"ended with {done.returncode}: {why[:200]}")
    found = json.loads(done.stdout.splitlines()[-1])
    return Row(**found | {"collectives": tuple(map(tuple, found["collectives"]))})


def line(row: Row) -> str:
    """One line of the table."""
    what = f"| {row.slice} | {row.model} | {row.step} |"
    if row.why:
        return f"{what} {row.why} |"
    sent = [
        f"{times} {'asynchronous ' if is_async else ''}{kind} of {size / 2**20:.1f} MiB"
        for kind, size, times, is_async in row.collectives
        if size * times >= 2**20
    ]
    parts = (row.milliseconds, row.operations, row.links, row.copies, row.attention, row.roofline)
    times = " | ".join(f"{part:.2f}" for part in parts)
    memory = f"{row.weights / 2**30:.1f} | {row.temporaries / 2**20:.0f} | {row.kv_tokens:,}"
    return f"{what} {memory} | {times} | {'; '.join(sent)} |"


COLUMNS = (
    *("slice", "model", "step", "weights, GiB", "temporaries, MiB", "KV tokens"),
    *("by XLA, ms", "operations", "links", "copies", "attention", "roofline, ms"),
    "collectives of 1 MiB or more in all",
)


def main() -> None:
    """Print one line per step, as it is done."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--slice", nargs="+", choices=SLICES, default=list(SLICES), help="TPUs (all)")
    parser.add_argument("--model", nargs="+", choices=SIZES, default=list(SIZES), help="models (all)")
    parser.add_argument(
        "--step", nargs="+", choices=STEPS, default=list(USUAL), help=f"tokens x rows ({' '.join(USUAL)})"
    )
    parser.add_argument("--json", type=Path, help="also write all figures there")
    parser.add_argument("--timeout", type=float, default=900, help="seconds for one step (900)")
    parser.add_argument("--adapters", type=int, default=0, help="slots for LoRA adapters of rank 16 (0)")
    parser.add_argument("--drafts", type=int, default=0, help="drafts of each request (0)")
    parser.add_argument("--list", action="store_true", help="list the steps and stop")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    cases = [(where, model, step) for model in options.model for where in options.slice for step in options.step]
    if options.child:
        prepare(SLICES[cases[0][0]][0])
        print(json.dumps(asdict(compile_one(*cases[0], options.adapters, options.drafts))))
        return
    if options.list:
        print("\n".join(" ".join(case) for case in cases))
        return
    print(f"| {' | '.join(COLUMNS)} |\n{'|---' * len(COLUMNS)}|")
    rows = []
    for case in cases:
        rows.append(run_child(*case, options.timeout, options.adapters, options.drafts))
        print(line(rows[-1]), flush=True)
        if options.json is not None:
            options.json.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")


if __name__ == "__main__":
    main()
