"""`jaxllm doctor`: what works on this machine, what does not, and how fast it is."""

import argparse
import signal
import sys
import time
from pathlib import Path

import msgspec

from jaxllm.doctor.result import Report, Settings, StageReport
from jaxllm.doctor.runner import Listener, named, run_doctor, write_report
from jaxllm.doctor.stages import STAGES
from jaxllm.doctor.text import stage_lines, verdict
from jaxllm.errors import ConfigError
from jaxllm.flags import FlagParser
from jaxllm.version import __version__

HELP = "Check this machine: devices, their speed, kernels, and a small run of a model. Takes about two minutes."
USAGE = "[--model MODEL] [--stage NAME] [flags]"


def add_arguments(parser: FlagParser) -> None:
    """Declare the model, the stages and how to print."""
    names = [stage.name for stage in STAGES]
    parser.add_argument("--model", default="demo", help="Model to check with: 'demo', a folder or a Hub ID.")
    parser.add_argument(
        "--load-format",
        default="auto",
        choices=("auto", "safetensors", "dummy"),
        help="'dummy': random weights, for a model folder that has only config.json.",
    )
    parser.add_argument(
        "--stage",
        action="append",
        default=[],
        choices=names,
        metavar="NAME",
        help=f"Run only this stage: {', '.join(names)}.",
    )
    parser.add_argument(
        "--timeout",
        type=float,
        default=120.0,
        metavar="SECONDS",
        help="Time limit of each stage in seconds. Default: 120.",
    )
    parser.add_argument("--json", action="store_true", help="Print JSON, with sizes in bytes and times in seconds.")
    parser.add_argument("--report", metavar="FILE", help="Also write the JSON to this file.")


def run(args: argparse.Namespace) -> int:
    """Run the stages: 0 when all is well, 1 when something is broken. Raises `ConfigError` for wrong arguments."""
    if args.timeout <= 0:
        raise ConfigError(f"--timeout {args.timeout:g}: must be greater than 0")
    # Its children are in sessions of their own, and end only if it lives to end them.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    settings = Settings(args.model, args.load_format, args.timeout)
    report = run_doctor(__version__, settings, named(args.stage), _listener(in_text=not args.json))
    if args.json:
        print(msgspec.json.format(msgspec.json.encode(report), indent=2).decode())
    else:
        print(f"\n{verdict(report)}")
    if args.report:
        _write(report, Path(args.report))
    return 0 if report.ok else 1


def _write(report: Report, path: Path) -> None:
    try:
        write_report(report, path)
    except OSError as error:
        raise ConfigError(f"--report {path}: {error.strerror}") from error


def _listener(*, in_text: bool) -> Listener:
    """Shows what is being done on standard error, and in text mode each report on standard output."""
    on_terminal, began = sys.stderr.isatty(), time.monotonic()

    def listen(name: str, news: str | StageReport) -> None:
        clear = "\r\033[K" if on_terminal else ""
        if isinstance(news, str):
            end = "" if on_terminal else "\n"
            sys.stderr.write(f"{clear}{time.monotonic() - began:5.1f} s  {name}: {news}"[:150] + end)
            sys.stderr.flush()
            return
        sys.stderr.write(clear)
        sys.stderr.flush()
        if in_text:
            print("\n".join(stage_lines(news)), flush=True)

    return listen
