"""Grouped products of mixtures of experts on a TPU that is not there, from the compiled program.

    scripts/bench tpu_experts [--chip v6e] [--model qwen3-30b-a3b ...] [--tokens 64 8192]
    scripts/bench tpu_experts --peer-path PEER        against tpu-inference's kernel (see scripts/bench tpu_static)
    scripts/bench tpu_experts --xla                   against XLA's ragged_dot, whose copies alone have an estimate

Each product of a layer of experts is compiled for the chip, with experts that are chosen at random, and read by the
static method (docs/kernels.md). The fewest bytes are those of the matrices that some token needs, of rows and results.
"""

import argparse
import importlib
import json
import os
import sys
import tempfile
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.tpu.compile import MODULE, run_child
from jaxllm.pallas_kernels.chips import CHIPS, Chip

if TYPE_CHECKING:
    from benchmarks.tpu.kernels import Call


@dataclass(frozen=True)
class Product:
    """One product: tokens, experts of each, how many there are, and (out, in) of a matrix."""

    model: str
    tokens: int
    per_token: int
    experts: int
    out_size: int
    in_size: int

    @property
    def name(self) -> str:
        """For the table."""
        return f"{self.model}, {self.tokens:,} tokens, {self.out_size} x {self.in_size}"

    @property
    def rows(self) -> int:
        """Choices of all tokens."""
        return self.tokens * self.per_token

    def sizes(self) -> np.ndarray:
        """int32 [G]: how many tokens choose each expert."""
        rng = np.random.default_rng(0)
        chosen = [rng.permutation(self.experts)[: self.per_token] for _ in range(self.tokens)]
        return np.bincount(np.concatenate(chosen), minlength=self.experts).astype(np.int32)

    def least_bytes(self) -> int:
        """In bfloat16."""
        matrices = int((self.sizes() > 0).sum()) * self.out_size * self.in_size
        return 2 * (matrices + self.rows * (self.in_size + self.out_size))

    def flops(self) -> int:
        """Multiplications and additions."""
        return 2 * self.rows * self.out_size * self.in_size


MODELS: dict[str, tuple[int, int, tuple[tuple[int, int], ...]]] = {
    "qwen3-30b-a3b": (8, 128, ((1536, 2048), (2048, 768))),
    "gpt-oss-20b": (4, 32, ((5760, 2880), (2880, 2880))),
    "gpt-oss-120b": (4, 128, ((5760, 2880), (2880, 2880))),
    "mixtral-8x7b": (2, 8, ((28672, 4096), (4096, 14336))),
}
"""Experts of a token, experts, and the matrices of one, gate and up together, on one device."""


def products(models: list[str], tokens: list[int]) -> Iterator[Product]:
    """All that are asked for."""
    for model in models:
        per_token, experts, matrices = MODELS[model]
        for count in tokens:
            yield from (Product(model, count, per_token, experts, *matrix) for matrix in matrices)


def build(kernel: str, product: Product, peer_path: str | None) -> "Call":
    """What is compiled: of a stack of two layers the second."""
    import jax
    import jax.numpy as jnp

    from benchmarks.tpu.kernels import Call
    from jaxllm.pallas_kernels.grouped_matmul import grouped_matmul
    from jaxllm.pallas_kernels.grouped_matmul.tpu.layout import Streamed
    from jaxllm.pallas_kernels.linear import RowMajor, Weight

    def shape(*dims: int) -> Any:
        return jax.ShapeDtypeStruct(dims, jnp.bfloat16)

    x, sizes = shape(product.rows, product.in_size), product.sizes()
    if kernel == "tpu-inference":
        matrices = shape(product.experts, product.in_size, product.out_size)
        return Call(_peer(product, str(peer_path)), (x, matrices, sizes), (), "")
    kind = Streamed if kernel == "jaxllm" else RowMajor
    layout = kind((product.experts * product.out_size, product.in_size))

    def multiply(x: Any, array: Any, layer: Any, sizes: Any) -> Any:
        weight = Weight(layout, array, layer)
        return grouped_matmul(x, weight, sizes, out_dtype=jnp.bfloat16, platform="tpu")

    return Call(multiply, (x, shape(2, *layout.array_shape), np.int32(1), sizes), (), "")


def _peer(product: Product, path: str) -> Callable[..., Any]:
    """The kernel of tpu-inference with block sizes of its table, or its default; it takes [G, in, out], unstacked."""
    import jax.numpy as jnp

    # Neither its __init__ nor its logger is needed.
    package: Any = types.ModuleType("tpu_inference")
    package.__path__ = [f"{path}/tpu_inference"]
    logger: Any = types.ModuleType("tpu_inference.logger")
    logger.init_logger = lambda _: types.SimpleNamespace(warning_once=print, warning=print, info=print, debug=print)
    sys.modules.update({"tpu_inference": package, "tpu_inference.logger": logger})
    gmm = importlib.import_module("tpu_inference.kernels.megablox.gmm").gmm
    table = importlib.import_module("tpu_inference.kernels.megablox.tuned_block_sizes")

    def multiply(x: Any, matrices: Any, sizes: Any) -> Any:
        experts = product.experts
        tiling = table.get_tuned_block_sizes(
            m=product.rows, k=product.in_size, n=product.out_size, num_total_groups=experts,
            num_current_groups=experts, lhs_dtype="bfloat16", rhs_dtype="bfloat16", quant_block_size=product.in_size,
        )  # fmt: skip
        return gmm(lhs=x, rhs=matrices, group_sizes=sizes, preferred_element_type=jnp.bfloat16, tiling=tiling)

    return multiply


def measure(chip: Chip, kernel: str, product: Product, options: argparse.Namespace) -> str:
    """One line of the table."""
    from benchmarks.tpu.bundles import read_program
    from benchmarks.tpu.report import measure_kernel

    fields = [product.model, product.tokens, product.per_token, product.experts, product.out_size, product.in_size]
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        question = json.dumps([chip.name, kernel, fields, options.peer_path and str(options.peer_path), place])
        run_child([sys.executable, "-m", "benchmarks.tpu_experts", "--child", question], folder, options.timeout)
        module = json.loads((folder / MODULE).read_text())
        outside = sum(module["other_cycles"].values()) / chip.clock_hz * 1e6
        copied = f"{outside:.0f} | {module['temporaries'] / 2**20:.0f} |"
        if not module["kernels"]:
            return f"| {product.name} | {kernel} | | | | | {copied}"
        (part,) = module["kernels"]
        found = measure_kernel(read_program(folder, part["name"], chip.name), part["name"], part["operands"], chip)
    seconds = found.cycles / chip.clock_hz
    memory, units = product.least_bytes() / chip.hbm_bandwidth, product.flops() / chip.bf16_flops
    shares = f"{memory / seconds:.0%} | {units / seconds:.0%} | {max(memory, units) / seconds:.0%}"
    return f"| {product.name} | {kernel} | {seconds * 1e6:.1f} | {shares} | {copied}"


def _compile(question: str) -> None:
    """In a process of its own."""
    from benchmarks.tpu.compile import absent_devices, compile_for

    chip, kernel, fields, peer_path, folder = json.loads(question)
    if kernel == "tpu-inference":
        import jax

        devices = absent_devices(chip)
        jax.devices = lambda *_: devices
    compile_for(chip, build(kernel, Product(*fields), peer_path), Path(folder))


def main() -> None:
    """Print one line per product and kernel, as it is done."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    tpus = [chip.name for chip in CHIPS.values() if chip.platform == "tpu"]
    parser.add_argument("--chip", choices=tpus, default="v6e")
    parser.add_argument("--model", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--tokens", nargs="+", type=int, default=[64, 8192])
    parser.add_argument("--peer-path", type=Path, help="folder with the unpacked wheel of tpu-inference")
    parser.add_argument("--xla", action="store_true", help="also XLA's ragged_dot")
    parser.add_argument("--timeout", type=float, default=300, help="seconds for one compilation (300)")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        _compile(options.child)
        return
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    kernels = ["jaxllm", *(["tpu-inference"] if options.peer_path else []), *(["xla"] if options.xla else [])]
    columns = ("", "kernel", "us", "bandwidth", "peak", "roofline", "outside, us", "temporaries, MiB")
    print(f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
    for product in products(options.model, options.tokens):
        for kernel in kernels:
            try:
                print(measure(CHIPS[options.chip], kernel, product, options), flush=True)
            except (RuntimeError, ValueError, FileNotFoundError) as error:
                print(f"| {product.name} | {kernel} | {str(error).splitlines()[-1][:150]} |", flush=True)


if __name__ == "__main__":
    main()
