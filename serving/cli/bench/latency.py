"""`jaxllm bench latency`: how long one batch takes, offline."""

import argparse
import sys
from pathlib import Path

from jaxllm.flags import FlagParser, add_engine_flags, explicit_options
from jaxllm.serving.bench.offline_options import LatencyOptions
from jaxllm.serving.cli.bench.sections import add_section, read_section

HELP = "Run a batch of random prompts repeatedly, offline, and report its latency."
EXAMPLES = """examples:
  jaxllm bench latency --model demo --input-len 32 --output-len 64 --batch-size 8
  jaxllm bench latency --model path/to/model --num-iters 5 --output-json latency.json

Prefix caching is off unless --enable-prefix-caching is given, since each run would find the previous run's prompts."""


def add_arguments(parser: FlagParser) -> None:
    """Declare the batch and every engine option."""
    parser.epilog = EXAMPLES
    add_section(parser, "batch", LatencyOptions)
    add_engine_flags(parser)


def run(args: argparse.Namespace) -> int:
    """Measure; with Ctrl-C, what was measured until then is reported and the exit code is 130."""
    options = read_section(args, LatencyOptions)
    engine = {"enable_prefix_caching": False, **explicit_options(args)}
    from tqdm import tqdm

    from jaxllm.serving.bench.offline import batch, latency_figures, timed
    from jaxllm.serving.bench.results import write_json
    from jaxllm.serving.llm.llm import LLM

    with LLM(**engine) as llm:
        work = batch(llm, options, int(engine.get("seed") or 0))
        for _ in tqdm(range(options.num_iters_warmup), desc="Warm-up", disable=None):
            work()
        if options.profile:
            folder = llm.start_profile()
            work()
            llm.stop_profile()
            print(f"Trace in {folder}")
            return 0
        seconds: list[float] = []
        code = 0
        try:
            # One after the other, so that what was measured is there when it is interrupted.
            seconds.extend(timed(work) for _ in tqdm(range(options.num_iters), desc="Runs", disable=None))
        except KeyboardInterrupt:
            code = 130
    if not seconds:
        return code
    result = latency_figures(seconds)
    print(f"Avg latency: {result['avg_latency']} seconds")
    print(f"Std latency: {result['std_latency']} seconds")
    for number, value in result["percentiles"].items():
        print(f"{number}% percentile latency: {value} seconds")
    if options.output_json is not None:
        write_json(Path(options.output_json), result)
        sys.stderr.write(f"wrote {options.output_json}\n")
    return code
