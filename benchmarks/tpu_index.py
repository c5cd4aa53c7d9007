"""Decodes with an index of keys on a TPU that is not there, from the compiled programs.

    scripts/bench tpu_index [--chip v6e ...] [--heads 16 128] [--rows 64] [--context 32768 131072] [--xla]

The three kernels of attention to chosen keys are compiled for the chip, each alone, over a cache of pages of 64 tokens
in bfloat16, and read by the static method (docs/kernels.md): scores of all index keys, the selection of 2,048, and
attention to these, whose places are random. `scripts/bench tpu_latent` has attention to all keys. With `--xla` also the
sort and the gather that XLA would make of the same are measured, which its own estimates leave out.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.tpu.compile import MODULE, absent_devices, compile_for, run_child
from jaxllm.pallas_kernels.chips import CHIPS

if TYPE_CHECKING:
    from benchmarks.tpu.kernels import Call

TOP, HEADS, SIZE, PAGE, LATENT, KEY, TOKEN = 2048, 64, 128, 64, 512, 640, 768
"""As in DeepSeek V3.2: keys chosen, index heads and their size; tokens of a page; numbers of a latent, of a key in
whole rows of lanes, and of a token."""

XLA = {"sort": "sort", "gather": "gather_fusion"}
"""The operation of XLA's own program that is measured."""


@dataclass(frozen=True)
class Question:
    """A part of one layer's decode on one chip."""

    chip: str
    part: str
    rows: int
    context: int
    heads: int


def build(question: Question) -> "Call":
    """What is compiled."""
    import jax
    import jax.numpy as jnp

    from benchmarks.tpu.kernels import Call
    from jaxllm.pallas_kernels.latent_attention import KeyIndex
    from jaxllm.pallas_kernels.latent_attention.tpu.gather import attend_to_places
    from jaxllm.pallas_kernels.latent_attention.tpu.index import index_scores
    from jaxllm.pallas_kernels.latent_attention.tpu.select import select_places

    rows, context = question.rows, question.context

    def shape(*sizes: int, dtype: Any = jnp.bfloat16) -> Any:
        return jax.ShapeDtypeStruct(sizes, dtype)

    cache, layer, count = shape(2, rows * context // PAGE + 1, PAGE, TOKEN), np.int32(1), np.int32(rows)
    table = 1 + np.arange(rows * context // PAGE, dtype=np.int32).reshape(rows, -1)
    positions, places = np.full(rows, context - 1, np.int32), _random_places(rows, context)
    scores = shape(rows, context, dtype=jnp.float32)

    def score(
        query: Any, weights: Any, key: Any, cache: Any, layer: Any, table: Any, positions: Any, count: Any
    ) -> Any:
        return index_scores(KeyIndex(query, weights, key, TOP), cache, layer, table, positions, count, KEY)

    def select(scores: Any, places: Any, positions: Any) -> Any:
        return select_places(scores, places, positions, TOP)

    def attend(queries: Any, cache: Any, layer: Any, places: Any, positions: Any, count: Any) -> Any:
        return attend_to_places(queries, cache, layer, places, positions, count, LATENT, KEY**-0.5)

    index = shape(rows, HEADS, SIZE), shape(rows, HEADS, dtype=jnp.float32), shape(rows, SIZE)
    calls: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
        "scores": (score, (*index, cache, layer, table, positions, count)),
        "selection": (select, (scores, shape(rows, context, dtype=jnp.int32), positions)),
        "attention": (attend, (shape(rows, question.heads, KEY), cache, layer, places, positions, count)),
        "sort": (lambda scores: jax.lax.top_k(scores, TOP), (scores,)),
        "gather": (
            lambda cache, places: cache.reshape(-1, TOKEN).at[places].get(mode="promise_in_bounds"),
            (cache, places),
        ),
    }
    return Call(*calls[question.part], (), "")


def _random_places(rows: int, context: int) -> np.ndarray:
    rng = np.random.default_rng(0)
    chosen = [np.sort(rng.choice(context, TOP, replace=False)) + PAGE + row * context for row in range(rows)]
    return np.stack(chosen).astype(np.int32)


def measure(question: Question, timeout: float) -> str:
    """One line of the table."""
    from benchmarks.tpu.bundles import read_program
    from benchmarks.tpu.report import memory_of
    from benchmarks.tpu.simulate import simulate

    chip = CHIPS[question.chip]
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        child = json.dumps([asdict(question), place])
        run_child([sys.executable, "-m", "benchmarks.tpu_index", "--child", child], folder, timeout)
        module = json.loads((folder / MODULE).read_text())
        if question.part in XLA:
            name, outside = XLA[question.part], 0.0
            operands = [None, _random_places(question.rows, question.context).reshape(-1).tolist()]
        else:
            ((name, operands),) = ((part["name"], part["operands"]) for part in module["kernels"])
            outside = sum(module["other_cycles"].values()) / chip.clock_hz * 1e6
        # What the selection copies to scalars are places in vector memory: any will do.
        run = simulate(read_program(folder, name, chip.name), operands, memory_of(chip), in_vectors=0)
    moved = (run.bytes_read + run.bytes_written) / 1e6
    return (
        f"| {chip.name} | {question.rows} x {question.context} | {question.heads} | {question.part} "
        f"| {run.cycles / chip.clock_hz * 1e6:.0f} | {outside:.0f} | {moved:.0f} | {run.dmas} "
        f"| {run.stalled / run.cycles:.0%} |"
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    tpus = [chip.name for chip in CHIPS.values() if chip.platform == "tpu"]
    parser.add_argument("--chip", nargs="+", choices=tpus, default=["v6e"])
    parser.add_argument("--heads", nargs="+", type=int, default=[16])
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--context", nargs="+", type=int, default=[32768])
    parser.add_argument("--xla", action="store_true")
    parser.add_argument("--timeout", type=float, default=600)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        asked, place = json.loads(options.child)
        question = Question(**asked)
        import jax

        devices = absent_devices(question.chip)
        call = build(question)
        jax.devices = lambda *_: devices
        compile_for(question.chip, call, Path(place))
        return
    print("| chip | decodes | heads | part | us | outside | MB | DMAs | waits |")
    print("|---|---|---|---|---|---|---|---|---|")
    for chip in options.chip:
        for context in options.context:
            for heads in options.heads:
                for part in ("scores", "selection", "attention", *(XLA if options.xla else ())):
                    print(measure(Question(chip, part, options.rows, context, heads), options.timeout), flush=True)


if __name__ == "__main__":
    main()
