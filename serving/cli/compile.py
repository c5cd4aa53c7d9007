"""`jaxllm compile`: all executables of an engine, in a folder from which it starts without compiling."""

import argparse
import sys
import time
from pathlib import Path

from jaxllm.flags import FlagParser
from jaxllm.serving.cli.target_flags import add_engine_flags_of_target, add_target_flags, find_config

HELP = "Compile all executables of an engine into a folder, so that the engine starts without compiling."
USAGE = "[MODEL] --output FOLDER [flags]"
EXAMPLES = """examples:
  jaxllm compile Qwen/Qwen3-0.6B --output bundle
  jaxllm serve Qwen/Qwen3-0.6B --executables bundle
  jaxllm compile path/to/model --device v6e --topology 2x4 --tp 8 --output bundle      (no TPU needed)

Give both commands the same options: those that affect the executables must match, and a bundle for another model,
chip, or version of jaxllm or JAX is rejected. Only config.json of the model is needed. Load only bundles you trust:
they contain native code."""


def add_arguments(parser: FlagParser) -> None:
    """Declare the model, the devices, the folder and every engine option."""
    add_target_flags(parser, "compile")
    parser.epilog = EXAMPLES
    parser.add_argument("--output", metavar="FOLDER", required=True, help="Folder to write the bundle to.")
    add_engine_flags_of_target(parser)


def run(args: argparse.Namespace) -> int:
    """Compile and write; errors are raised, and then nothing is left behind."""
    folder = Path(args.output)
    resolved, target = find_config(args)
    from jaxllm.bundle.write import check_target
    from jaxllm.executor.bundles import compile_bundle
    from jaxllm.planning.memory import sized_for
    from jaxllm.serving.llm.progress import LoadProgress

    check_target(folder)
    start = time.monotonic()
    with LoadProgress() as progress:
        manifest = compile_bundle(*sized_for(resolved, target), folder, progress)
    size = sum(saved.size for saved in manifest.executables.values())
    sys.stdout.write(
        f"{folder}: {len(manifest.executables)} executables, {size / 2**20:.1f} MiB, for {target.name}, "
        f"{manifest.num_pages:,} KV pages; {time.monotonic() - start:.1f} s\n"
    )
    return 0
