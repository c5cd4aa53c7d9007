"""`jaxllm bench sweep plot`: curves of what a sweep measured."""

import argparse
from pathlib import Path

from jaxllm.flags import FlagParser
from jaxllm.serving.bench.sweep.options import PlotOptions
from jaxllm.serving.cli.bench.sections import add_section, read_section

HELP = "Plot the results of `jaxllm bench sweep serve`."
USAGE = "FOLDER [flags]"
EXAMPLES = """examples:
  jaxllm bench sweep plot results --var-x request_rate --var-y p99_ttft_ms --curve-by max_num_seqs
  jaxllm bench sweep plot results/20260101_120000 --fig-by model_id --scale-y log"""


def add_arguments(parser: FlagParser) -> None:
    """Declare the folder and what is drawn."""
    parser.epilog = EXAMPLES
    parser.add_argument("folder", metavar="FOLDER", help="Folder of experiments, or of a single one.")
    add_section(parser, "plot", PlotOptions)


def run(args: argparse.Namespace) -> int:
    """Draw, and print the files."""
    options = read_section(args, PlotOptions)
    from jaxllm.serving.bench.plot import check_plotting
    from jaxllm.serving.bench.sweep.plot import draw

    if not options.dry_run:
        check_plotting("jaxllm bench sweep plot")
    for file in draw(Path(args.folder), options):
        print(file)
    return 0
