"""`jaxllm bench sweep serve`: load tests of servers under many settings."""

import argparse
import sys
from datetime import UTC, datetime
from pathlib import Path

from jaxllm.errors import ConfigError
from jaxllm.flags import FlagParser
from jaxllm.serving.bench.sweep.options import SweepOptions
from jaxllm.serving.cli.bench.sections import add_section, read_section

HELP = "Start a server with each of several settings, and load-test it with each of several settings."
USAGE = "--serve-cmd TEXT --bench-cmd TEXT [flags]"
EXAMPLES = """examples:
  echo '[{"max_num_seqs": 8}, {"max_num_seqs": 32}]' > servers.json
  echo '{"slow": {"request_rate": 2}, "fast": {"request_rate": 16}}' > tests.json
  jaxllm bench sweep serve --serve-cmd "jaxllm serve demo" --serve-params servers.json \\
      --bench-cmd "jaxllm bench serve --num-prompts 200" --bench-params tests.json
  jaxllm bench sweep plot results --var-x request_rate --curve-by max_num_seqs

Each file holds a list of objects, or an object that names them. Each combination gets a folder with a file for each run
and summary.json. With --resume, runs that already have results are skipped."""


def add_arguments(parser: FlagParser) -> None:
    """Declare commands, settings and the folder."""
    parser.epilog = EXAMPLES
    add_section(parser, "sweep", SweepOptions)


def run(args: argparse.Namespace) -> int:
    """Run them all; 1 when nothing was measured."""
    from jaxllm.serving.bench.sweep.parameters import read_links, read_settings
    from jaxllm.serving.bench.sweep.runs import Sweep

    options = read_section(args, SweepOptions)
    servers, tests = (
        read_settings(options.serve_params, "serve-params"),
        read_settings(options.bench_params, "bench-params"),
    )
    folder = _folder(options)
    found = Sweep(options, folder, servers, tests, read_links(options.link_vars)).run()
    if options.dry_run:
        return 0
    sys.stderr.write(f"{len(found)} results in {folder}\n")
    return 0 if found else 1


def _folder(options: SweepOptions) -> Path:
    name = options.experiment_name or datetime.now(UTC).astimezone().strftime("%Y%m%d_%H%M%S")
    folder = Path(options.output_dir) / name
    if options.resume and not folder.is_dir():
        raise ConfigError(f"--resume: there is no experiment {str(folder)!r}")
    if not options.resume and folder.exists() and not options.dry_run:
        raise ConfigError(f"{folder} exists: resume it with --resume, or choose another name with --experiment-name")
    return folder
