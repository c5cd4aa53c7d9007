"""Share of sampling in a decode step of Llama 3 8B on one TPU v6e that is not there.

    scripts/bench tpu_sampling [--rows 64 256] [--trips 10] [--list]

The whole step is compiled by libtpu, for Llama's defaults (temperature 0.6, top-p 0.9). XLA notes its own estimate of
cycles alongside each of its operations. It has none of Pallas kernels: attention is left out of the step, so that the
share shown is too high; the kernel that chooses tokens is added by the static method (docs/kernels.md). Its search for
top-p's threshold guesses twice a trip: 4 to 10 trips for 32 rows of normal, Zipf's and peaked logits on a CPU.
Every row is assumed to find its threshold among its candidates; `--all` adds as many trips through everything.
"""

import argparse
import json
import sys
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from jaxllm.planning.target import find_target, prepare

CHIP = "v6e"
VOCAB = 128256
LLAMA_3_8B = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": VOCAB,
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
    """Cycles of one step: all but attention, the output layer's product, and what follows it.

    `kernel` chooses the tokens, `around` is what XLA does before and after it, `by_scope` that by scope.
    """

    rows: int
    step: int
    output_layer: int
    kernel: int
    around: int
    by_scope: dict[str, int]

    @property
    def share(self) -> float:
        """Of sampling in the step."""
        return (self.kernel + self.around) / self.step


def compile_step(rows: int) -> str:
    """The compiled program of a step that decodes so many rows."""
    from jaxllm.config import EngineConfig, ModelOptions, SchedulerOptions
    from jaxllm.executor.compile.generation import generation_programs
    from jaxllm.executor.resolve import resolve_config

    target = find_target(CHIP, None, 1)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(LLAMA_3_8B))
        config = EngineConfig(model=ModelOptions(model=folder), scheduler=SchedulerOptions(max_num_seqs=rows))
        programs = generation_programs(resolve_config(config, target.devices), PAGES)
    bucket = next(bucket for bucket in programs.buckets.all if bucket.tokens == bucket.rows == rows)
    return programs.step(bucket).compile({}).as_text() or ""


def shares(text: str, rows: int, kernel: int) -> Shares:
    """What the step of `rows` rows takes, for the compiled program's text and the cycles of the `kernel`."""
    from benchmarks.tpu.estimate import Choices, operations

    # No row has penalties, a bias or log-probabilities.
    nothing = Choices(trips=lambda name: 0, branch=lambda name: 0)
    step, head, around = kernel, 0, 0
    is_after = False
    by_scope: dict[str, int] = defaultdict(int)
    for operation in operations(text, nothing):
        cycles = operation.cycles * operation.times
        step += cycles
        if operation.times == 1 and operation.name.endswith("dot_general"):
            head, is_after = cycles, True
        elif is_after:
            around += cycles
            by_scope[operation.name] += cycles
    return Shares(rows, step, head, kernel, around, dict(by_scope))


def compile_kernel(rows: int, folder: Path) -> None:
    """Compile the kernel alone, in the process of `kernel_cycles`."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    from benchmarks.tpu.compile import compile_for
    from benchmarks.tpu.kernels import Call
    from jaxllm.pallas_kernels.sampling.tpu.sampling import call_kernel

    scalars = np.array([rows, 0, 0, 1], np.int32)  # see `Control`
    logits = jax.ShapeDtypeStruct((rows, VOCAB), jnp.float32)
    parameters = jax.ShapeDtypeStruct((rows, 128), jnp.float32)
    compile_for(CHIP, Call(call_kernel, (scalars, logits, logits, parameters), (), ""), folder)


def kernel_cycles(rows: int, trips: int, trips_of_all: int) -> int:
    """Cycles of the kernel by the static method, where each search takes so many trips."""
    from benchmarks.tpu.bundles import read_program
    from benchmarks.tpu.compile import MODULE, run_child
    from benchmarks.tpu.report import memory_of
    from benchmarks.tpu.simulate import simulate
    from jaxllm.pallas_kernels.chips import CHIPS
    from jaxllm.pallas_kernels.sampling.tpu.sampling import rows_together

    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        command = [sys.executable, "-m", "benchmarks.tpu_sampling", "--rows", str(rows), "--compile-kernel", place]
        run_child(command, folder, timeout=300)
        (part,) = json.loads((folder / MODULE).read_text())["kernels"]
        program = read_program(folder, part["name"], CHIP)
    together = rows_together(rows, VOCAB)
    # What the kernel asks of vectors, for each block of rows: whether a search goes on, whether rows need the search of
    # all, whether that goes on; and each row's group of registers.
    of_all = [1, *[1] * trips_of_all, 0] if trips_of_all else [0]
    answers = [*[1] * trips, 0, *of_all, *[0] * together] * (rows // together)
    return round(simulate(program, part["operands"], memory_of(CHIPS[CHIP]), answers).cycles)


def _print_table(found: Sequence[Shares], *, with_list: bool) -> None:
    print("| rows | step, cycles | output layer | kernel | around it | share |\n|---|---|---|---|---|---|")
    for share in found:
        figures = (share.step, share.output_layer, share.kernel, share.around)
        print(f"| {share.rows} | {' | '.join(f'{cycles:,}' for cycles in figures)} | {share.share:.1%} |")
    for share in found if with_list else ():
        print(f"\n{share.rows} rows, what takes longest around the kernel, in cycles:")
        for name, cycles in sorted(share.by_scope.items(), key=lambda item: -item[1])[:30]:
            print(f"{cycles:12,} {name or '(no name)'}")


def main() -> None:
    """Print one line per number of rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[64, 256])
    parser.add_argument("--trips", type=int, default=10, help="trips of the search for top-p's threshold (10)")
    parser.add_argument("--all", type=int, default=0, help="further trips, of the search of all tokens (0)")
    parser.add_argument("--list", action="store_true", help="list the operations that take longest")
    parser.add_argument("--json", action="store_true", help="print JSON in place of a table")
    parser.add_argument("--compile-kernel", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.compile_kernel is not None:
        compile_kernel(options.rows[0], options.compile_kernel)
        return
    cycles = {rows: kernel_cycles(rows, options.trips, options.all) for rows in options.rows}
    prepare(CHIP)
    found = [shares(compile_step(rows), rows, cycles[rows]) for rows in options.rows]
    if options.json:
        print(json.dumps([{**asdict(share), "share": share.share} for share in found]))
        return
    _print_table(found, with_list=options.list)


if __name__ == "__main__":
    main()
