"""What rotates and packs for attention on a TPU that is not there, by the static method (docs/kernels.md).

    scripts/bench tpu_packing [--chip v6e] [--tokens 64 8192] [--heads 32 8]

Each kernel is compiled alone by libtpu for heads of 128 in bfloat16. `reshape` is what XLA has in place of
`unpack_results`, an operation for which it notes no estimate. The least is what the bytes need at the published
bandwidth.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from jaxllm.pallas_kernels.chips import CHIPS

WHAT = ("rotate_and_pack", "unpack_results", "reshape")
SIZE = 128


def compile_one(what: str, chip: str, tokens: int, heads: Sequence[int], folder: Path) -> None:
    """Compile one of `WHAT` alone, in the process of `line`."""
    import jax
    import jax.numpy as jnp

    from benchmarks.tpu.compile import compile_for
    from benchmarks.tpu.kernels import Call
    from jaxllm.pallas_kernels.paged_attention.shared_rows import SharedRows
    from jaxllm.pallas_kernels.paged_attention.tpu.layout import Dims, unpack_q
    from jaxllm.pallas_kernels.paged_attention.tpu.rotate_and_pack import rotate_and_pack
    from jaxllm.pallas_kernels.paged_attention.tpu.unpack import unpack

    shared = SharedRows(heads[1], heads[0] // heads[1], SIZE)
    dims = Dims.of(shared, 64, "bfloat16", "bfloat16")
    angles = jax.ShapeDtypeStruct((tokens, SIZE // 2), jnp.float32)
    qkv = jax.ShapeDtypeStruct((tokens, (heads[0] + 2 * heads[1]) * SIZE), jnp.bfloat16)
    results = jax.ShapeDtypeStruct((tokens, dims.num_kv_heads, dims.group_words, dims.q_packing, SIZE), jnp.bfloat16)
    if what == "rotate_and_pack":
        call = Call(lambda x, *by: rotate_and_pack(x, by, dims, in_words=True), (qkv, angles, angles), (), "")
    elif what == "unpack_results":
        call = Call(lambda rows: unpack(rows, dims), (results,), (), "")
    else:
        call = Call(lambda rows: unpack_q(rows, dims).reshape(tokens, -1), (results,), (), "")
    compile_for(chip, call, folder)


def line(what: str, chip_name: str, tokens: int, heads: Sequence[int]) -> str:
    """The figures of one."""
    from benchmarks.tpu.bundles import read_program
    from benchmarks.tpu.compile import MODULE, run_child
    from benchmarks.tpu.report import memory_of
    from benchmarks.tpu.simulate import simulate

    chip = CHIPS[chip_name]
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        command = [sys.executable, "-m", "benchmarks.tpu_packing", "--chip", chip_name, "--tokens", str(tokens)]
        command += ["--heads", *map(str, heads), "--compile", what, place]
        run_child(command, folder, timeout=300)
        kernels = json.loads((folder / MODULE).read_text())["kernels"]
        name = kernels[0]["name"] if kernels else what
        cycles = simulate(read_program(folder, name, chip_name), [None] * 3, memory_of(chip)).cycles
    moved = heads[0] + 2 * heads[1] if what == "rotate_and_pack" else heads[0]
    least = 2 * 2 * tokens * moved * SIZE / chip.hbm_bandwidth
    return f"| {what} | {tokens:,} | {cycles / chip.clock_hz * 1e6:.1f} | {least * 1e6:.1f} |"


def main() -> None:
    """Print a line for each kernel and number of tokens."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    tpus = [chip.name for chip in CHIPS.values() if chip.platform == "tpu"]
    parser.add_argument("--chip", choices=tpus, default="v6e", help="chip to compile for (v6e)")
    parser.add_argument("--tokens", nargs="+", type=int, default=[64, 8192], help="tokens of a step (64 8192)")
    parser.add_argument("--heads", nargs=2, type=int, default=[32, 8], help="query heads and KV heads (32 8)")
    parser.add_argument("--compile", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.compile:
        what, folder = options.compile
        compile_one(what, options.chip, options.tokens[0], options.heads, Path(folder))
        return
    print("| | tokens | us | least |\n|---|---|---|---|")
    for tokens in options.tokens:
        for what in WHAT:
            print(line(what, options.chip, tokens, options.heads), flush=True)


if __name__ == "__main__":
    main()
