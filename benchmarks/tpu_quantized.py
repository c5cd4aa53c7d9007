"""Products with quantised matrices on a TPU that is not there, from the compiled program.

    scripts/bench tpu_quantized [--chip v6e] [--matrix gate_up ...] [--type int8 ...] [--rows 8 64 2048]
    scripts/bench tpu_quantized --xla                 compared with XLA's own, by its estimate

Each product is compiled for the chip and read by the static method (docs/kernels.md). The fewest bytes are those of
the matrix with its scales, of rows and results; the peak is that of bfloat16, which products of 8 bits can exceed. Rows
that are multiplied in 8 bits are rounded outside of the kernel.
"""

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.tpu.compile import MODULE, run_child
from jaxllm.pallas_kernels.chips import CHIPS, Chip
from jaxllm.pallas_kernels.linear.weight_type import FP4, INT4, UINT4, Activations, Values, WeightType

if TYPE_CHECKING:
    from benchmarks.tpu.kernels import Call

MATRICES = {"qkv": (6144, 4096), "output": (4096, 4096), "gate_up": (28672, 4096), "down": (4096, 14336)}
"""Of Llama-3-8B, as (out, in)."""
TYPES = {
    "int8": WeightType(Values.INT8),
    "int8-rows": WeightType(Values.INT8, activations=Activations.PER_TOKEN),
    "int8-128": WeightType(Values.INT8, group=128),
    "float8": WeightType(Values.FLOAT8_E4M3),
    "float8-rows": WeightType(Values.FLOAT8_E4M3, activations=Activations.PER_TOKEN),
    "int4": WeightType(Values.CODES, code=INT4),
    "int4-128": WeightType(Values.CODES, code=INT4, group=128, scales="bfloat16"),
    "int4-32": WeightType(Values.CODES, code=INT4, group=32, scales="bfloat16"),
    "uint4-128": WeightType(Values.CODES, code=UINT4, group=128, scales="bfloat16", has_offsets=True),
    "mxfp4": WeightType(Values.CODES, code=FP4, group=32, scales="bfloat16"),
}
"""A number is the size of a group; rows are quantised where a type says so."""
LAYERS = 8
"""In the stack: a small one would be put into VMEM as a whole."""


@dataclass(frozen=True)
class Product:
    """One product."""

    matrix: str
    type: str
    rows: int

    @property
    def kind(self) -> WeightType:
        """Of the matrix."""
        return TYPES[self.type]

    @property
    def shape(self) -> tuple[int, int]:
        """(out, in)."""
        return MATRICES[self.matrix]

    def least_bytes(self) -> int:
        """Of the matrix as it is kept, rows and results."""
        out_size, in_size = self.shape
        bits = 4 if self.kind.values == Values.CODES else 8
        groups = self.kind.scales_shape(self.shape)[1] * (2 if self.kind.has_offsets else 1)
        scales = out_size * groups * (4 if self.kind.scales == "float32" else 2)
        row = 1 if self.kind.activations != Activations.AS_THEY_ARE else 2
        return out_size * in_size * bits // 8 + scales + self.rows * (row * in_size + 2 * out_size)

    def flops(self) -> int:
        """Multiplications and additions."""
        return 2 * self.rows * self.shape[0] * self.shape[1]


def products(options: argparse.Namespace) -> Iterator[Product]:
    """All that are asked for."""
    for rows in options.rows:
        for name in options.matrix:
            yield from (Product(name, kind, rows) for kind in options.type)


def build(implementation: str, product: Product) -> "Call":
    """What is compiled: of a stack the second matrix, and what rounds rows."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    from benchmarks.tpu.kernels import Call
    from jaxllm.pallas_kernels.linear.api import linear
    from jaxllm.pallas_kernels.linear.quantized import QuantizedRowMajor
    from jaxllm.pallas_kernels.linear.tpu.layout import Strips
    from jaxllm.pallas_kernels.linear.weight import Weight

    layout = (Strips if implementation == "jaxllm" else QuantizedRowMajor)(product.shape, product.kind)
    arrays = layout.arrays()
    names = list(arrays)
    shapes = [jax.ShapeDtypeStruct((LAYERS, *own.layout.array_shape), own.dtype) for own in arrays.values()]

    def multiply(x: Any, layer: Any, *given: Any) -> Any:
        named = dict(zip(names, given, strict=True))
        weight = Weight(layout, named.pop("values"), layer, **named)
        return linear(x, weight, out_dtype=jnp.bfloat16, platform="tpu")

    x = jax.ShapeDtypeStruct((product.rows, product.shape[1]), jnp.bfloat16)
    return Call(multiply, (x, np.int32(1), *shapes), (), "")


def measure(chip: Chip, implementation: str, product: Product, timeout: float) -> str:
    """One line of the table."""
    from benchmarks.tpu.bundles import read_program
    from benchmarks.tpu.report import measure_kernel

    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        question = json.dumps([chip.name, implementation, [product.matrix, product.type, product.rows], place])
        run_child([sys.executable, "-m", "benchmarks.tpu_quantized", "--child", question], folder, timeout)
        module = json.loads((folder / MODULE).read_text())
        outside = sum(module["other_cycles"].values())
        cycles, moved = 0.0, 0
        for part in module["kernels"]:
            program = read_program(folder, part["name"], chip.name)
            found = measure_kernel(program, part["name"], part["operands"], chip)
            cycles, moved = cycles + found.cycles, moved + found.bytes_read + found.bytes_written
    cycles, outside = (cycles, outside) if cycles else (outside, 0)
    seconds, least = cycles / chip.clock_hz, product.least_bytes()
    memory, units = least / chip.hbm_bandwidth, product.flops() / chip.bf16_flops
    moved_share = f"{moved / least:.2f}" if moved else ""
    shares = f"{seconds * 1e6:.1f} | {memory / seconds:.0%} | {units / seconds:.0%} | {moved_share}"
    around = f"{outside / chip.clock_hz * 1e6:.1f} | {module['temporaries'] / 2**20:.1f}"
    return f"| {product.matrix} | {product.type} | {product.rows:,} | {implementation} | {shares} | {around} |"


def _compile(question: str) -> None:
    """In a process of its own."""
    from benchmarks.tpu.compile import compile_for

    chip, implementation, fields, folder = json.loads(question)
    compile_for(chip, build(implementation, Product(*fields)), Path(folder))


def main() -> None:
    """Print one line per product, as it is done."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    tpus = [chip.name for chip in CHIPS.values() if chip.platform == "tpu"]
    parser.add_argument("--chip", nargs="+", choices=tpus, default=["v6e"])
    parser.add_argument("--matrix", nargs="+", choices=MATRICES, default=["gate_up"])
    parser.add_argument("--type", nargs="+", choices=TYPES, default=list(TYPES))
    parser.add_argument("--rows", nargs="+", type=int, default=[8, 64, 2048])
    parser.add_argument("--xla", action="store_true", help="also XLA's own products")
    parser.add_argument("--timeout", type=float, default=300, help="seconds for one compilation (300)")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        _compile(options.child)
        return
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    columns = ("", "type", "rows", "", "us", "bandwidth", "bf16 peak", "bytes", "outside, us", "temporaries, MiB")
    for name in options.chip:
        print(f"\n{name}\n\n| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
        for product in products(options):
            for implementation in ("jaxllm", "xla") if options.xla else ("jaxllm",):
                try:
                    print(measure(CHIPS[name], implementation, product, options.timeout), flush=True)
                except (RuntimeError, ValueError, FileNotFoundError) as error:
                    print(f"| {product} | {implementation} | {str(error).splitlines()[-1][:150]} |", flush=True)


if __name__ == "__main__":
    main()
