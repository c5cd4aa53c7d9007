"""Attention of towers on a TPU that is not there, from the compiled program.

    scripts/bench tpu_segments [--chip v6e ...] [--case gemma3 ...] [--block 256 512 1024]

Each call of the kernel is compiled for the chip, in bfloat16, and read by the static method (docs/kernels.md). The
fewest bytes are queries, keys, values and results, each once; products are those of what a query sees.
"""

import argparse
import json
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.tpu.compile import MODULE, run_child
from jaxllm.pallas_kernels.chips import CHIPS

if TYPE_CHECKING:
    from benchmarks.tpu.kernels import Call

HEADS = 16


@dataclass(frozen=True)
class Image:
    """An image: patches of each segment that is seen, and the size of heads."""

    segments: tuple[int, ...]
    head_size: int

    @property
    def patches(self) -> int:
        """All of them."""
        return sum(self.segments)

    @property
    def flops(self) -> int:
        """Operations of both products."""
        return 4 * HEADS * self.head_size * sum(each * each for each in self.segments)

    @property
    def bytes(self) -> int:
        """Queries, keys, values and results."""
        return 4 * 2 * HEADS * self.head_size * self.patches


IMAGES = {
    "gemma3-896": Image((4096,), 72),
    "qwen2.5-1036": Image((5476,), 80),
    "qwen2.5-1036-windows": Image((64,) * 81 + (16,) * 18 + (4,), 80),
    "qwen2.5-1792": Image((16384,), 80),
    "qwen2.5-1792-windows": Image((64,) * 256, 80),
}
"""Heads of SigLIP and of Qwen2.5-VL, whose windows have 8 patches each way: full and within windows."""


@dataclass(frozen=True)
class Question:
    """One call on one chip."""

    chip: str
    name: str
    block: int


def build(question: Question) -> "Call":
    """What is compiled, with the true places of segments."""
    import jax
    import jax.numpy as jnp

    from benchmarks.tpu.kernels import Call
    from jaxllm.pallas_kernels.segment_attention.key_blocks import key_blocks
    from jaxllm.pallas_kernels.segment_attention.tpu import call_kernel

    image, block = IMAGES[question.name], question.block
    tokens = -(-image.patches // block) * block
    ends = np.cumsum(image.segments)
    row = np.repeat(np.arange(len(ends)), image.segments)
    ranges = np.zeros((tokens, 2), np.int32)
    ranges[: image.patches] = np.stack([(ends - image.segments)[row], ends[row]], axis=1)
    ranges[image.patches :] = ranges[image.patches - 1]
    blocks = np.asarray(key_blocks(jnp.asarray(ranges), block))
    heads = jax.ShapeDtypeStruct((HEADS, tokens, 128), jnp.bfloat16)

    def call(blocks: Any, ranges: Any, q: Any, k: Any, v: Any) -> Any:
        return call_kernel(blocks, ranges, q, k, v, image.head_size**-0.5)

    return Call(call, (blocks, ranges, heads, heads, heads), (), "")


def measure(question: Question, timeout: float) -> str:
    """One line of the table."""
    from benchmarks.tpu.bundles import read_program
    from benchmarks.tpu.report import measure_kernel

    chip, image = CHIPS[question.chip], IMAGES[question.name]
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        child = json.dumps([asdict(question), place])
        run_child([sys.executable, "-m", "benchmarks.tpu_segments", "--child", child], folder, timeout)
        (part,) = json.loads((folder / MODULE).read_text())["kernels"]
        found = measure_kernel(read_program(folder, part["name"], chip.name), part["name"], part["operands"], chip)
    seconds = found.cycles / chip.clock_hz
    return (
        f"| {chip.name} | {question.name} | {question.block} | {seconds * 1e6:.0f} "
        f"| {image.flops / chip.bf16_flops / seconds:.0%} | {image.bytes / chip.hbm_bandwidth / seconds:.0%} "
        f"| {found.matrix / found.cycles:.0%} | {found.stalled / found.cycles:.0%} "
        f"| {found.trips} x {found.bundles_per_trip:.0f} |"
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    tpus = [chip.name for chip in CHIPS.values() if chip.platform == "tpu"]
    parser.add_argument("--chip", nargs="+", choices=tpus, default=["v6e"])
    parser.add_argument("--case", nargs="+", default=[""], help="images, or parts of their names (all)")
    parser.add_argument("--block", nargs="+", type=int, default=[512], help="queries, and keys, of a block")
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
    print("| chip | image | block | us | peak | bandwidth | MXU busy | waits | busiest loop |")
    print("|---|---|---|---|---|---|---|---|---|")
    for chip in options.chip:
        for name in IMAGES:
            for block in options.block if any(part in name for part in options.case) else ():
                print(measure(Question(chip, name, block), options.timeout), flush=True)


if __name__ == "__main__":
    main()
