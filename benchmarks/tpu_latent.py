"""Latent attention on a TPU that is not there, from the compiled program.

    scripts/bench tpu_latent [--chip v6e ...] [--heads 16 128] [--case decode-64x1024 ...]
    scripts/bench tpu_latent --tune              decodes and prompts with other block sizes
    scripts/bench tpu_latent --heads 64 --latent 1024 --window 512      layers with windows of Dots 3 Note
    scripts/bench tpu_latent --heads 32 --sinks  as in Hy4

Each call of the kernel is compiled for the chip, over a cache of pages of 64 tokens in bfloat16, and read by the static
method (docs/kernels.md). The fewest bytes are cached latents that are seen, each read once, queries and results.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.tpu.compile import MODULE, run_child
from jaxllm.pallas_kernels.chips import CHIPS, Chip

if TYPE_CHECKING:
    from benchmarks.tpu.kernels import Call
    from jaxllm.pallas_kernels.latent_attention.cases import Case

ROWS: dict[str, tuple[tuple[int, int], ...]] = {
    "decode-64x1024": ((1, 1023),) * 64,
    "decode-16x8192": ((1, 8191),) * 16,
    "decode-64x32768": ((1, 32767),) * 64,
    "decode-256-ragged": tuple((1, int(n)) for n in np.random.default_rng(1).integers(0, 2047, 256)),
    "decode-8x1024": ((1, 1023),) * 8,
    "drafts-8x1of4": ((1, 1023),) * 8,
    "drafts-8x4of4": ((4, 1020),) * 8,
    "drafts-8x4of1": ((4, 1020),) * 8,
    "drafts-64x1of4": ((1, 1023),) * 64,
    "drafts-64x4of4": ((4, 1020),) * 64,
    "drafts-64x4of1": ((4, 1020),) * 64,
    "prefill-1x2048": ((2048, 0),),
    "prefill-1x1024-over-7168": ((1024, 7168),),
    "mixed-48+768": (*((1, 1023),) * 48, (512, 2048), (256, 0)),
}

"""New and computed tokens. Of "4of4" each row has 4, and the decode kernel takes rows of up to 4."""

TUNED: dict[str, dict[str, tuple[int, ...]]] = {
    "decode": {"keys": (512, 1024), "chunk": (256, 512), "slots": (4, 8), "queries": (1,)},
    "prefill": {"keys": (512, 1024), "chunk": (512, 1024), "slots": (2,), "queries": (16, 32, 64)},
}


@dataclass(frozen=True)
class Question:
    """One call on one chip."""

    chip: str
    name: str
    heads: int
    blocks: dict[str, int] = field(default_factory=dict)
    """Of both kernels; by default their own choice."""
    latent: int = 512
    window: int = 0
    sinks: bool = False

    @property
    def most_short(self) -> int:
        """Tokens of a row at most that the decode kernel takes."""
        return int(self.name.partition("of")[2] or 1)

    @property
    def case(self) -> "Case":
        """What is asked for."""
        from jaxllm.pallas_kernels.latent_attention.cases import Case

        case = Case(self.name, ROWS[self.name], self.heads, self.latent, 64, page_size=64, dtype="bfloat16")
        return replace(case, window=self.window, sinks=self.sinks)


def build(question: Question) -> "Call":
    """What is compiled: of a cache of two layers the second, of a gibibyte, since a small one would lie in VMEM."""
    import jax
    import jax.numpy as jnp

    from benchmarks.tpu.kernels import Call
    from jaxllm.pallas_kernels.latent_attention import LatentGeometry, LatentOptions, latent_cache_shape
    from jaxllm.pallas_kernels.latent_attention.cases import make_inputs
    from jaxllm.pallas_kernels.latent_attention.tpu.attention import tpu_latent_attention
    from jaxllm.pallas_kernels.latent_attention.tpu.sizes import Blocks
    from jaxllm.pallas_kernels.tpu_common.batch import tpu_prepare

    case = question.case
    inputs = make_inputs(case)
    pages = max(inputs.kv_cache.shape[1], 2**30 // (case.page_size * case.sizes.key * 2))
    geometry = LatentGeometry(2, pages, case.page_size, case.sizes, case.dtype, for_tpu=True)
    fields, structure = jax.tree.flatten(jax.tree.map(np.asarray, tpu_prepare(inputs.batch, question.most_short)))
    blocks = Blocks(**question.blocks) if question.blocks else None

    def call(q_latent: Any, q_rope: Any, latent: Any, k_rope: Any, cache: Any, layer: Any, *fields: Any) -> Any:
        batch = jax.tree.unflatten(structure, fields)
        arrays = q_latent, q_rope, latent, k_rope, cache, layer, batch
        sinks = jnp.zeros(case.num_heads) if case.sinks else None
        options = LatentOptions(case.scale, sinks=sinks, window=case.window)
        return tpu_latent_attention(*arrays, options, decode_blocks=blocks, prefill_blocks=blocks)

    names = ("q_latent", "q_rope", "latent", "k_rope")
    shapes = [jax.ShapeDtypeStruct(getattr(inputs, name).shape, jnp.bfloat16) for name in names]
    cache = jax.ShapeDtypeStruct(latent_cache_shape("tpu", geometry), jnp.bfloat16)
    return Call(call, (*shapes, cache, np.int32(1), *fields), (4,), "")


def measure(question: Question, timeout: float) -> str:
    """One line of the table."""
    from benchmarks.tpu.bundles import read_program
    from benchmarks.tpu.report import measure_kernel
    from jaxllm.pallas_kernels.latent_attention.cases import minimum_bytes, products

    chip = CHIPS[question.chip]
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        child = json.dumps([asdict(question), place])
        run_child([sys.executable, "-m", "benchmarks.tpu_latent", "--child", child], folder, timeout)
        module = json.loads((folder / MODULE).read_text())
        parts = [
            measure_kernel(read_program(folder, part["name"], chip.name), part["name"], part["operands"], chip)
            for part in module["kernels"]
        ]
    return _line(question, chip, parts, module, minimum_bytes(question.case), products(question.case))


def _line(question: Question, chip: Chip, parts: list[Any], module: dict[str, Any], least: int, flops: int) -> str:
    cycles = sum(part.cycles for part in parts)
    seconds = cycles / chip.clock_hz
    longest = max(parts, key=lambda part: part.cycles)
    outside = sum(module["other_cycles"].values()) / chip.clock_hz * 1e6
    moved = sum(part.bytes_read + part.bytes_written for part in parts) / least
    blocks = ", ".join(f"{name} {size}" for name, size in question.blocks.items())
    stalled = sum(part.stalled for part in parts) / cycles
    return (
        f"| {chip.name} | {question.heads} | {question.name} {blocks} | {seconds * 1e6:.1f} | {outside:.1f} "
        f"| {least / chip.hbm_bandwidth / seconds:.0%} | {flops / chip.bf16_flops / seconds:.0%} "
        f"| {sum(part.matrix for part in parts) / cycles:.0%} | {moved:.2f} | {stalled:.0%} "
        f"| {longest.trips} x {longest.bundles_per_trip:.0f} |"
    )


def questions(options: argparse.Namespace) -> Iterator[Question]:
    """All that are asked for."""
    kind = {"latent": options.latent, "window": options.window, "sinks": options.sinks}
    for chip in options.chip:
        for heads in options.heads:
            for name in ROWS:
                if not any(part in name for part in options.case):
                    continue
                if options.tune:
                    yield from (Question(chip, name, heads, blocks, **kind) for blocks in _tuned(name.split("-")[0]))
                else:
                    yield Question(chip, name, heads, **kind)


def _tuned(kind: str) -> Iterator[dict[str, int]]:
    sizes = TUNED.get(kind, {})
    for keys in sizes.get("keys", ()):
        for chunk in sizes["chunk"]:
            for slots in sizes["slots"]:
                for queries in sizes["queries"]:
                    if chunk <= keys:
                        yield {"keys": keys, "chunk": chunk, "slots": slots, "queries": queries}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    tpus = [chip.name for chip in CHIPS.values() if chip.platform == "tpu"]
    parser.add_argument("--chip", nargs="+", choices=tpus, default=["v6e"])
    parser.add_argument("--heads", nargs="+", type=int, default=[16])
    parser.add_argument("--case", nargs="+", default=[""], help="cases, or parts of their names (all)")
    parser.add_argument("--latent", type=int, default=512, help="numbers of a latent")
    parser.add_argument("--window", type=int, default=0, help="keys that a token sees; 0 is all")
    parser.add_argument("--sinks", action="store_true", help="whether heads have sinks")
    parser.add_argument("--tune", action="store_true")
    parser.add_argument("--timeout", type=float, default=600)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        from benchmarks.tpu.compile import absent_devices, compile_for

        question, place = json.loads(options.child)
        asked = Question(**question)
        import jax

        devices = absent_devices(asked.chip)
        call = build(asked)
        jax.devices = lambda *_: devices
        compile_for(asked.chip, call, Path(place))
        return
    print("| chip | heads | case | us | outside | bandwidth | peak | MXU busy | bytes | waits | busiest loop |")
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    for question in questions(options):
        print(measure(question, options.timeout), flush=True)


if __name__ == "__main__":
    main()
