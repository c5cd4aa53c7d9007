"""`jaxllm bench throughput`: how fast many requests are done, offline."""

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxllm.errors import ConfigError
from jaxllm.flags import FlagParser, add_engine_flags, explicit_options
from jaxllm.serving.bench.offline_options import ThroughputOptions
from jaxllm.serving.bench.options import DatasetOptions
from jaxllm.serving.cli.bench.sections import add_section, read_section

if TYPE_CHECKING:
    # It loads transformers, which a wrong flag should not have to wait for.
    from jaxllm.serving.text.tokenizer import Tokenizer

HELP = "Run many requests at once, offline, and report requests and tokens per second."
EXAMPLES = """examples:
  jaxllm bench throughput --model demo --num-prompts 200 --input-len 64 --output-len 32
  jaxllm bench throughput --model path/to/model --dataset-name sharegpt --dataset-path sharegpt.json
  jaxllm bench throughput --model path/to/model --dataset-name prefix_repetition --output-json throughput.json"""


def add_arguments(parser: FlagParser) -> None:
    """Declare the requests and every engine option."""
    parser.epilog = EXAMPLES
    parser.add_argument("--backend", choices=("jaxllm", "vllm"), default="jaxllm", help=argparse.SUPPRESS)
    add_section(parser, "dataset", DatasetOptions)
    add_section(parser, "run", ThroughputOptions)
    add_engine_flags(parser)


def run(args: argparse.Namespace) -> int:
    """Measure and report."""
    options, dataset = read_section(args, ThroughputOptions), read_section(args, DatasetOptions)
    engine = explicit_options(args)
    if dataset.random_batch_size != 1:
        raise ConfigError(
            "random_batch_size applies to embeddings only: use jaxllm bench serve --backend openai-embeddings"
        )
    from jaxllm.serving.bench.datasets.catalogue import Dataset
    from jaxllm.serving.bench.offline import throughput
    from jaxllm.serving.bench.results import write_json
    from jaxllm.serving.llm.llm import LLM

    requests = Dataset(dataset, lambda: _tokenizer(engine), int(engine.get("seed") or 0), "template").requests()
    if any(request.is_chat for request in requests):
        raise ConfigError(f"{dataset.dataset_path} contains messages: use jaxllm bench serve --backend openai-chat")
    with LLM(**engine) as llm:
        if options.profile:
            llm.start_profile()
        result = throughput(llm, requests, options, sys.stderr.isatty())
        if options.profile:
            sys.stderr.write(f"trace in {llm.stop_profile()}\n")
    rates = (result["requests_per_second"], result["tokens_per_second"], result["output_tokens_per_second"])
    print("Throughput: {:.2f} requests/s, {:.2f} total tokens/s, {:.2f} output tokens/s".format(*rates))
    print(f"Total num prompt tokens:  {result['total_prompt_tokens']}")
    print(f"Total num output tokens:  {result['total_output_tokens']}")
    if options.output_json is not None:
        write_json(Path(options.output_json), result)
        sys.stderr.write(f"wrote {options.output_json}\n")
    return 0


def _tokenizer(engine: Mapping[str, Any]) -> "Tokenizer":
    from jaxllm.config import EngineConfig
    from jaxllm.serving.llm.loading import load_tokenizer

    return load_tokenizer(EngineConfig.from_options(engine).model)
