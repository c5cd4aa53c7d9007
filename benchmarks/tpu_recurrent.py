"""Recurrences on a TPU that is not there: what XLA estimates that they take, and whether they copy states.

    scripts/bench tpu_recurrent [--chip v6e] [--kernel gated_delta ...] [--tokens 64 512]
    scripts/bench tpu_recurrent --kernel gated_delta --tokens 8 --drafts 3

Each operation is compiled by libtpu for one layer of a published model: 64 requests that decode, in a step of theirs
alone, and a prompt of 512 tokens. XLA notes its estimate of cycles alongside its operations, which are counted as
often as they run. With drafts, each row has so many, after a step in which all of so many were right. The fewest bytes
are those of the states, read and written once, and of a token's inputs and output.
"""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.tpu.compile import absent_devices
from benchmarks.tpu.estimate import Choices, operations
from jaxllm.pallas_kernels.chips import CHIPS, Chip
from jaxllm.planning.target import prepare

LAYERS, SLOTS = 2, 128
"""Of the arrays of states."""


@dataclass(frozen=True)
class Kernel:
    """An operation: whose sizes it has, its arguments of `tokens` tokens, those of the layer, and the state."""

    model: str
    call: Callable[..., Any]
    of_tokens: tuple[tuple[tuple[int, ...], str], ...]
    of_layer: tuple[tuple[int, ...], ...]
    state: tuple[int, ...]
    state_dtype: str = "float32"
    kept: tuple[int, ...] = ()
    """Which of `of_tokens` are kept of drafts; nothing where steps with drafts are not compiled."""


def _gated_delta(inputs: Sequence[Any], states: Any) -> Any:
    from jaxllm.pallas_kernels.gated_delta import GatedDeltaInputs, gated_delta

    return gated_delta(GatedDeltaInputs(*inputs), states, platform="tpu")


def _state_space(inputs: Sequence[Any], states: Any) -> Any:
    from jaxllm.pallas_kernels.state_space import StateSpaceInputs, state_space

    return state_space(StateSpaceInputs(*inputs), states, platform="tpu")


def _selective_scan(inputs: Sequence[Any], states: Any) -> Any:
    from jaxllm.pallas_kernels.selective_scan import SelectiveScanInputs, selective_scan

    return selective_scan(SelectiveScanInputs(*inputs), states, platform="tpu")


def _short_convolution(inputs: Sequence[Any], held: Any) -> Any:
    from jaxllm.models.forward_context import LayerContext
    from jaxllm.models.layers.states import read_states, write_states
    from jaxllm.models.recurrent_plan import ShortConvolutionPlan
    from jaxllm.pallas_kernels.causal_convolution import causal_convolution

    (x, weight), (states, layer, rows, batch) = inputs, held
    context = LayerContext(None, batch, layer, rows)
    (before,) = read_states((states,), ShortConvolutionPlan(channels=x.shape[1]), context, x.dtype)
    out, after = causal_convolution(x, before, weight, None, batch.query_start)
    return out, write_states((states,), (after,), context)[0]


WIDE, NARROW = "float32", "bfloat16"
BYTES = {WIDE: 4, NARROW: 2}
KERNELS = {
    "gated_delta": Kernel(
        "Qwen3-Next",
        _gated_delta,
        (((16, 128), WIDE), ((16, 128), WIDE), ((32, 128), NARROW), ((32,), WIDE), ((32,), WIDE)),
        (),
        (32, 128, 128),
        kept=(1, 2, 3, 4),
    ),
    "state_space": Kernel(
        "Mamba-2, 8 groups",
        _state_space,
        (((128, 64), NARROW), ((128,), WIDE), ((128,), WIDE), ((8, 128), NARROW), ((8, 128), NARROW)),
        (),
        (128, 64, 128),
    ),
    "selective_scan": Kernel(
        "Mamba 7B",
        _selective_scan,
        (((8192,), WIDE), ((8192,), WIDE), ((16,), NARROW), ((16,), NARROW)),
        ((8192, 16),),
        (16, 8192),
    ),
    "short_convolution": Kernel("LFM2 1.2B", _short_convolution, (((2048,), NARROW),), ((2048, 3),), (2, 2048), NARROW),
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a line for each operation and step."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    tpus = [chip.name for chip in CHIPS.values() if chip.platform == "tpu"]
    parser.add_argument("--chip", choices=tpus, default="v6e", help="chip to compile for (v6e)")
    parser.add_argument("--kernel", nargs="+", choices=KERNELS, default=list(KERNELS), help="operations (all)")
    parser.add_argument("--tokens", nargs="+", type=int, default=[64, 512], help="decodes, or tokens of a prompt")
    parser.add_argument("--drafts", type=int, default=0, help="drafts of each row that decodes (0)")
    options = parser.parse_args(arguments)
    if options.drafts and not all(KERNELS[name].kept for name in options.kernel):
        parser.error("--drafts: only with --kernel gated_delta")
    prepare(options.chip)
    print("| operation | step | us | fewest bytes, us | copies of states |\n|---|---|---|---|---|")
    for name in options.kernel:
        for tokens in options.tokens:
            print(line(CHIPS[options.chip], name, tokens, is_prompt=tokens > SLOTS, drafts=options.drafts), flush=True)


def line(chip: Chip, name: str, tokens: int, *, is_prompt: bool, drafts: int = 0) -> str:
    """The figures of one step."""
    kernel = KERNELS[name]
    text = compiled_text(chip, kernel, tokens, is_prompt=is_prompt, drafts=drafts)
    trips = _trips(tokens, is_prompt=is_prompt, drafts=drafts)
    cycles = sum(each.cycles * each.times for each in operations(text, Choices(trips, lambda scope: 1)))
    step = f"a prompt of {tokens}" if is_prompt else f"{tokens} decodes"
    step += f" with {drafts} drafts" if drafts else ""
    rows = 1 if is_prompt else tokens
    least = least_bytes(kernel, tokens * (1 + drafts), rows) / chip.hbm_bandwidth * 1e6
    copies = copies_of_states(text, kernel)
    return f"| {name}, {kernel.model} | {step} | {cycles / chip.clock_hz * 1e6:.0f} | {least:.0f} | {copies} |"


def _trips(tokens: int, *, is_prompt: bool, drafts: int) -> Callable[[str], int]:
    """How often each loop runs. There are two over rows, in this order: of those with drafts, and of others."""
    from jaxllm.pallas_kernels.recurrence.run import CHUNK, CHUNKS, DECODES, USUAL_BLOCK

    blocks, loops = -(-tokens // USUAL_BLOCK), list[str]()

    def of_loop(scope: str) -> int:
        if f"/{CHUNKS}/" in scope:
            return -(-tokens // CHUNK) if is_prompt else 0
        _, found, inside = scope.partition(f"/{DECODES}/")
        if is_prompt or not found:
            return 0
        if inside.count("while") > 1:
            return drafts
        loops.append(scope)
        return blocks if len(loops) == 1 else 0

    return of_loop


def least_bytes(kernel: Kernel, tokens: int, rows: int) -> int:
    """States of rows read and written, inputs of tokens read, outputs of the first one's size written."""

    def size(shape: Sequence[int], dtype: str) -> int:
        return int(np.prod(shape)) * BYTES[dtype]

    of_token = sum(size(*each) for each in kernel.of_tokens) + size(kernel.of_tokens[0][0], WIDE)
    weights = sum(size(shape, WIDE) for shape in kernel.of_layer)
    return 2 * rows * size(kernel.state, kernel.state_dtype) + tokens * of_token + weights


def copies_of_states(text: str, kernel: Kernel) -> int:
    """How often the compiled program copies the array of all slots."""
    short = {WIDE: "f32", NARROW: "bf16"}[kernel.state_dtype]
    shape = f"{short}[{','.join(map(str, (LAYERS, SLOTS, *kernel.state)))}]"
    lines = [line.partition(" = ")[2] for line in text.splitlines()]
    return sum(line.startswith(shape) and " copy(" in line for line in lines)


def compiled_text(chip: Chip, kernel: Kernel, tokens: int, *, is_prompt: bool, drafts: int = 0) -> str:
    """The program for a step, with the states donated, and with what is kept of drafts."""
    import jax
    import jax.numpy as jnp
    from jax.sharding import SingleDeviceSharding

    from jaxllm.pallas_kernels.recurrence import LayerStates, StateRows
    from jaxllm.pallas_kernels.recurrence.cases import make_batch
    from jaxllm.pallas_kernels.recurrence.rows import DraftRows

    rows = 8 if is_prompt else tokens
    lengths = (tokens,) if is_prompt else (1 + drafts,) * tokens
    tokens = sum(lengths)
    place = SingleDeviceSharding(absent_devices(chip.name)[0])

    def shape(dims: Sequence[int], dtype: Any) -> Any:
        return jax.ShapeDtypeStruct(tuple(dims), jnp.dtype(dtype), sharding=place)

    batch = jax.tree.map(
        lambda each: shape(each.shape, each.dtype), make_batch(lengths, [9] * len(lengths), tokens, rows)
    )
    inputs = [shape((tokens, *dims), dtype) for dims, dtype in kernel.of_tokens]
    inputs += [shape(dims, kernel.state_dtype) for dims in kernel.of_layer]
    states = shape((LAYERS, SLOTS, *kernel.state), kernel.state_dtype)
    counts, kept = shape((rows,), "int32"), [kernel.of_tokens[place] for place in kernel.kept if drafts]
    held = tuple(shape((LAYERS, SLOTS, drafts, *dims), dtype) for dims, dtype in kept)
    own = DraftRows(counts, counts, counts, shape((), "int32")) if drafts else None
    state_rows = StateRows(counts, shape((rows,), "bool"), own)

    def run(states: Any, held: Any, layer: Any, rows: Any, batch: Any, *inputs: Any) -> Any:
        return kernel.call(inputs, LayerStates(states, layer, rows, batch, held))

    arguments = states, held, shape((), "int32"), state_rows, batch, *inputs
    lowered = jax.jit(run, donate_argnums=(0, 1)).trace(*arguments).lower()
    return lowered.compile().as_text() or ""


if __name__ == "__main__":
    main()
