"""Share of sampling in a decode step of Llama 3 8B on one TPU v6e that is not there, by XLA's own estimate.

    scripts/bench tpu_sampling [--rows 64 256] [--trips 17] [--list]

The whole step is compiled by libtpu. Counted is what a step runs for Llama's defaults (temperature 0.6, top-p 0.9);
`--trips` says how often the search for top-p's threshold guesses: 16 or 17 times for 64 rows of normal, Zipf's and
peaked logits on a CPU. Every row is taken to find its threshold among its candidates. Attention is a Pallas kernel, of
which XLA has no estimate: it is left out of the step, so that the share shown is too high.
"""

import argparse
import json
import tempfile
from collections import defaultdict
from dataclasses import asdict, dataclass
from pathlib import Path

from jaxllm.planning.target import find_target, prepare

CHIP = "v6e"
LLAMA_3_8B = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 128256,
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "max_position_embeddings": 8192,
    "rope_theta": 500000.0,
    "rms_norm_eps": 1e-5,
    "torch_dtype": "bfloat16",
}
PAGES = 1500


@dataclass(frozen=True)
class Shares:
    """Cycles of one step: all but attention, the output layer's product, what follows it, and that by scope."""

    step: int
    output_layer: int
    sampling: int
    by_scope: dict[str, int]


def compile_step(rows: int) -> str:
    """The compiled program of a step that decodes so many rows."""
    from jaxllm.config import EngineConfig, ModelOptions, SchedulerOptions
    from jaxllm.runtime.programs.generation import generation_programs
    from jaxllm.runtime.resolved import resolve_config

    target = find_target(CHIP, None, 1)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(LLAMA_3_8B))
        config = EngineConfig(model=ModelOptions(model=folder), scheduler=SchedulerOptions(max_num_seqs=rows))
        programs = generation_programs(resolve_config(config, target.devices), PAGES)
    bucket = next(bucket for bucket in programs.buckets.all if bucket.tokens == bucket.rows == rows)
    return programs.step(bucket).compile({}).as_text() or ""


def shares(text: str, rows: int, trips: int) -> Shares:
    """What the step of `rows` rows takes where the search for a threshold guesses `trips` times."""
    from benchmarks.tpu.estimate import Choices, operations
    from jaxllm.runtime.programs.generation import CHOOSE_ROWS

    def trips_of(name: str) -> int:
        if "search_all" in name:
            return 0
        return trips if "search" in name else -(-rows // CHOOSE_ROWS["tpu"])

    def branch_of(name: str) -> int:
        return 0 if any(scope in name.split("/") for scope in ("process", "top_k", "logprobs")) else 1

    step = head = sampling = 0
    is_after = False
    by_scope: dict[str, int] = defaultdict(int)
    for operation in operations(text, Choices(trips_of, branch_of)):
        cycles = operation.cycles * operation.times
        step += cycles
        if operation.times == 1 and operation.name.endswith("dot_general"):
            head, is_after = cycles, True
        elif is_after:
            sampling += cycles
            by_scope[operation.name] += cycles
    return Shares(step, head, sampling, dict(by_scope))


def main() -> None:
    """Print one line per number of rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[64, 256])
    parser.add_argument("--trips", type=int, default=17, help="guesses of the search for top-p's threshold (17)")
    parser.add_argument("--list", action="store_true", help="list the operations that take longest")
    parser.add_argument("--json", action="store_true", help="print JSON in place of a table")
    options = parser.parse_args()
    prepare(CHIP)
    found = {rows: shares(compile_step(rows), rows, options.trips) for rows in options.rows}
    if options.json:
        print(json.dumps([{"rows": rows, **asdict(share)} for rows, share in found.items()]))
        return
    print("| rows | step without attention, cycles | output layer | sampling | share |\n|---|---|---|---|---|")
    for rows, share in found.items():
        part = share.sampling / share.step
        print(f"| {rows} | {share.step:,} | {share.output_layer:,} | {share.sampling:,} | {part:.1%} |")
    for rows, share in found.items() if options.list else ():
        print(f"\n{rows} rows, what takes longest of sampling, in cycles:")
        for name, cycles in sorted(share.by_scope.items(), key=lambda item: -item[1])[:30]:
            print(f"{cycles:12,} {name or '(no name)'}")


if __name__ == "__main__":
    main()
