"""`jaxllm quantize`: a copy of a checkpoint whose matrices have 8 or 4 bits a number."""

import argparse
import sys
import time
from functools import partial
from pathlib import Path

from jaxllm.errors import ConfigError
from jaxllm.flags import FlagParser

HELP = "Write a quantized copy of a checkpoint in the compressed-tensors format."
USAGE = "MODEL --output FOLDER [--quantization int8|int4|fp8|int8_w8a8]"
EXAMPLES = """examples:
  jaxllm quantize Qwen/Qwen3-0.6B --output qwen3-int8
  jaxllm quantize path/to/model --output model-int4 --quantization int4
  jaxllm serve model-int4
  vllm serve model-int4

int8       8 bits, one scale per output of a matrix: half the size of bfloat16, closest to the original
int4       4 bits, one scale per 128 inputs of an output: a quarter of the size, the largest error
fp8        float8 (E4M3), one scale per output: the size of int8; coarser, but less sensitive to outliers
int8_w8a8  int8, and activations are quantized to 8 bits per token when it runs: faster for prompts and batches

Weights of the layers are rounded to nearest; except with int8_w8a8, activations are not quantized. The embedding, the
output layer, routers, norms and biases are copied unchanged, as are the tokenizer and all other files next to the
weights. Memory holds one tensor at a time, and the folder appears once it is complete. `jaxllm serve MODEL
--quantization int8` quantizes while loading instead and writes nothing."""


def add_arguments(parser: FlagParser) -> None:
    """Declare the model, the folder, and how to round."""
    parser.epilog = EXAMPLES
    parser.add_argument(
        "model", metavar="MODEL", help="A Hub ID, a local folder, or demo; must not be quantized already."
    )
    parser.add_argument(
        "--output", metavar="FOLDER", required=True, help="Folder to write to, which must be new or empty."
    )
    parser.add_argument(
        "--quantization", choices=("int8", "int4", "fp8", "int8_w8a8"), default="int8", help="Default: int8."
    )
    parser.add_argument(
        "--revision", metavar="NAME", help="Branch, tag or commit on the Hub. Default: the main branch."
    )
    parser.add_argument(
        "--download-dir",
        metavar="FOLDER",
        help="Folder for files downloaded from the Hub. Default: Hugging Face's own cache.",
    )


def run(args: argparse.Namespace) -> int:
    """Write the copy; errors are raised, and then nothing is left behind. Raises `ConfigError`."""
    from jaxllm.models.errors import ModelError

    target = Path(args.output).expanduser()
    try:
        return _run(args, target)
    except ModelError as error:
        raise ConfigError(str(error)) from error


def _run(args: argparse.Namespace, target: Path) -> int:
    from jaxllm.models.checkpoint.find_model import find_model
    from jaxllm.models.quantization.export import check_target, write_export
    from jaxllm.models.quantization.export_plan import plan_export
    from jaxllm.serving.llm.progress import LoadProgress

    check_target(target)
    start = time.monotonic()
    plan = plan_export(find_model(args.model, args.revision, args.download_dir), args.quantization)
    if plan.left:
        sys.stderr.write(
            f"not quantized: {len(plan.left)} matrices of layers, such as {plan.left[0]}: experts stored in one "
            "tensor, matrices of shape [in, out], or inputs that are not a multiple of 32\n"
        )
    with LoadProgress() as progress:
        write_export(plan, target, partial(progress, "Quantizing"))
    before = sum(each.tensor.num_bytes for each in plan.tensors)
    count = sum(each.scheme is not None for each in plan.tensors)
    sys.stdout.write(
        f"{target}: {count} matrices in {args.quantization}, {plan.num_bytes / 2**20:,.1f} MiB instead of "
        f"{before / 2**20:,.1f}; {time.monotonic() - start:.1f} s\n"
    )
    return 0
