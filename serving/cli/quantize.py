"""`jaxllm quantize`: a copy of a checkpoint whose matrices have 8 or 4 bits a number."""

import argparse
import sys
import time
from functools import partial
from pathlib import Path

from jaxllm.errors import ConfigError
from jaxllm.flags import FlagParser

HELP = "Write a quantised copy of a checkpoint, in the format of compressed-tensors."
USAGE = "MODEL --output FOLDER [--quantization int8|int4|fp8|int8_w8a8]"
EXAMPLES = """examples:
  jaxllm quantize Qwen/Qwen3-0.6B --output qwen3-int8
  jaxllm quantize path/to/model --output model-int4 --quantization int4
  jaxllm serve model-int4
  vllm serve model-int4

int8       8 bits, a scale for each output of a matrix: half of bfloat16's bytes, closest to the original
int4       4 bits, a scale for each 128 inputs of an output: a quarter of the bytes, the largest error
fp8        float8 (E4M3), a scale for each output: as large as int8; coarser, but outliers harm it less
int8_w8a8  int8, and who reads it rounds each token's activations to 8 bits: faster for prompts and batches

Matrices of the layers are rounded to the nearest; with other values than int8_w8a8 activations stay as they are. The
embedding, the output layer, routers, norms and biases are copied, and so are the tokenizer and the other files next to
the weights. One tensor at a time is in memory, and the folder appears once all is written. `jaxllm serve MODEL
--quantization int8` rounds while loading instead, and writes nothing."""


def add_arguments(parser: FlagParser) -> None:
    """Declare the model, the folder, and how to round."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = EXAMPLES
    parser.add_argument("model", metavar="MODEL", help="A hub ID, a local folder, or demo; not quantised yet.")
    parser.add_argument("--output", metavar="FOLDER", required=True, help="Where the copy goes: new, or empty.")
    parser.add_argument(
        "--quantization", choices=("int8", "int4", "fp8", "int8_w8a8"), default="int8", help="Default: int8."
    )
    parser.add_argument("--revision", metavar="NAME", help="Branch, tag or commit on the hub. Default: the main one.")
    parser.add_argument("--download-dir", metavar="FOLDER", help="The hub's cache. Default: the usual one.")


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
            f"not quantised: {len(plan.left)} matrices of layers, such as {plan.left[0]}: experts that share a tensor, "
            f"matrices [in, out], or with inputs that are no multiple of 32\n"
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
