"""`jaxllm bench startup`: how long an engine takes to start."""

import argparse
import sys
from pathlib import Path

from jaxllm.flags import FlagParser, add_engine_flags, explicit_options
from jaxllm.serving.bench.offline_options import StartupOptions
from jaxllm.serving.cli.bench.sections import add_section, read_section

HELP = "Start an engine repeatedly, with cold and with warm caches, and report the start-up times."
EXAMPLES = """examples:
  jaxllm bench startup --model demo
  jaxllm bench startup --model path/to/model --num-iters-cold 1 --num-iters-warm 5 --output-json startup.json

A start is timed from the first import in a new process until the engine is ready. Compilation sums the time of
threads that compile concurrently, so it may exceed the total."""


def add_arguments(parser: FlagParser) -> None:
    """Declare how often, and every engine option."""
    parser.epilog = EXAMPLES
    add_section(parser, "starts", StartupOptions)
    add_engine_flags(parser)


def run(args: argparse.Namespace) -> int:
    """Measure; with Ctrl-C, what was measured until then is reported and the exit code is 130."""
    options, engine = read_section(args, StartupOptions), explicit_options(args)
    from tqdm import tqdm

    from jaxllm.serving.bench.results import write_json
    from jaxllm.serving.bench.startup import FIGURES, start_once, startup_figures

    cold: list[dict[str, float]] = []
    warm: list[dict[str, float]] = []
    code = 0
    rounds = ((cold, options.num_iters_cold), (None, options.num_iters_warmup), (warm, options.num_iters_warm))
    with tqdm(total=sum(count for _, count in rounds), desc="Starts", disable=None) as bar:
        try:
            for kept, count in rounds:
                for _ in range(count):
                    seconds = start_once(engine, cold=kept is cold)
                    if kept is not None:
                        kept.append(seconds)
                    bar.update()
        except KeyboardInterrupt:
            code = 130
    result = startup_figures(cold, warm)
    for phase in ("cold", "warm"):
        for name, title in FIGURES.values():
            if f"avg_{phase}_{name}_time" in result:
                print(f"{phase.capitalize()}: avg {title.lower()}: {result[f'avg_{phase}_{name}_time']:.2f} seconds")
                for number, value in result[f"{phase}_{name}_percentiles"].items():
                    print(f"  {number}%: {value:.2f} seconds")
    if options.output_json is not None:
        write_json(Path(options.output_json), result)
        sys.stderr.write(f"wrote {options.output_json}\n")
    return code
