"""`jaxllm run-batch`: answers a file of requests in OpenAI's batch format."""

import argparse
import sys
from typing import TYPE_CHECKING

from jaxllm.compat.vllm.options import NOOP_OPTIONS, NoopOption
from jaxllm.config import EngineConfig
from jaxllm.errors import ConfigError
from jaxllm.flags import Flag, FlagParser, add_engine_flags, add_flags, engine_flags, explicit_options, integer
from jaxllm.serving.cli.config_file import read_config
from jaxllm.serving.options.server import ServerOptions, server_flags

if TYPE_CHECKING:
    from jaxllm.serving.openai.batches.input import BatchInput
    from jaxllm.serving.openai.batches.record import BatchRecord

HELP = "Run a file of requests in OpenAI's batch format, offline."
USAGE = "-i FILE -o FILE [flags]"
EXAMPLES = """examples:
  jaxllm run-batch -i requests.jsonl -o answers.jsonl --model Qwen/Qwen3-0.6B
  jaxllm run-batch -i requests.jsonl -o answers.jsonl            run again to resume
  jaxllm run-batch --config server.yaml -i requests.jsonl -o answers.jsonl     flags from a file, as for `jaxllm serve`
  jaxllm run-batch -i requests.jsonl --validate                  only check the file; load no model
  make-requests | jaxllm run-batch -i - -o - > answers.jsonl

A line of the input is one request:
  {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions",
   "body": {"messages": [{"role": "user", "content": "What is 2 + 3?"}], "max_tokens": 20}}
and a line of the output is its response, as a server would have sent it:
  {"id": "batch_req_...", "custom_id": "a", "response": {"status_code": 200, "request_id": "...", "body": {...}},
   "error": null}

Responses are written as they finish, not in the order of the requests: custom_id identifies them, so each must be
unique. All lines are checked before the model is loaded, and nothing runs if one is not a request (exit code 2). A
request with an invalid body gets a response with status_code 400; the others continue.

The output file records what is done. After Ctrl-C (which lets running requests finish; a second one drops
them), or any other end of the process, the same command runs only the remaining requests."""

WITHOUT_MEANING = frozenset(
    {
        "host",
        "port",
        "uds",
        "root_path",
        "api_key",
        "api_key_file",
        "trusted_proxies",
        "isolate_prefix_cache",
        "allowed_origins",
        "allowed_methods",
        "allowed_headers",
        "allow_credentials",
        "ssl_keyfile",
        "ssl_certfile",
        "ssl_ca_certs",
        "ssl_cert_reqs",
        "ssl_ciphers",
        "middleware",
        "enable_force_include_usage",
        "enable_tokenizer_info_endpoint",
        "server_dev_mode",
        "enable_request_id_headers",
        "api_server_count",
        "h11_max_incomplete_event_size",
        "h11_max_header_count",
        "timeout_keep_alive",
        "timeout_headers",
        "timeout_body",
        "timeout_send",
        "min_body_rate",
        "max_connections",
        "max_connections_per_address",
        "max_buffered_body_bytes",
        "shutdown_timeout",
        "access_log",
        "disable_log_stats",
        "disable_docs",
        "ui",
        "max_queued_requests",
        "max_num_queued_reqs",
        "max_num_queued_tokens",
        "sse_keep_alive_interval",
        "max_stored_responses",
        "max_stored_response_bytes",
        "files_dir",
        "lora_dir",
        "lora_resolver_dir",
        "lora_resolver_hf_repos",
        "max_stored_files",
        "max_stored_file_bytes",
        "max_stored_file_share",
        "max_file_size",
        "stored_file_lifetime",
        "max_batches",
    }
)
"""Options of the server about connections and clients; there are none here."""


def add_arguments(parser: FlagParser) -> None:
    """Declare the files, and the options of server and engine that mean something here."""
    parser.epilog = EXAMPLES
    group = parser.add_argument_group("batch")
    group.add_argument(
        "-i", "--input-file", required=True, metavar="FILE", help="File of requests; '-' reads standard input."
    )
    group.add_argument(
        "-o",
        "--output-file",
        metavar="FILE",
        help="File of responses; requests it already answers are skipped. '-' writes to standard output.",
    )
    group.add_argument(
        "--concurrency",
        type=integer,
        metavar="INT",
        help="Number of requests in flight (default: twice --max-num-seqs; larger values only use more memory).",
    )
    group.add_argument("--validate", action="store_true", help="Only check the input file, then exit.")
    parser.add_argument(
        "--config", metavar="FILE", help="Read flags from a YAML file; one written for `jaxllm serve` works too."
    )
    add_flags(parser, "server", "Handling of requests, as in `jaxllm serve`.", _flags())
    add_engine_flags(parser, _meaningless())


def _meaningless() -> dict[str, NoopOption]:
    """Flags of other engines that have no effect here."""
    own = {flag.flag.removeprefix("--") for flag in _flags()}
    return {name: known for name, known in NOOP_OPTIONS.items() if name not in own}


def _flags() -> list[Flag]:
    return [flag for flag in server_flags() if flag.name not in WITHOUT_MEANING]


def run(args: argparse.Namespace) -> int:
    """Answer the file; 0 when every request has its answer, 130 when interrupted. Errors are raised."""
    if args.output_file is None and not args.validate:
        raise ConfigError("give --output-file, or --validate to only check the input")
    if args.concurrency is not None and args.concurrency < 1:
        raise ConfigError(f"--concurrency {args.concurrency}: must be at least 1")
    config, options = configuration(args)
    # From here on things take their time: a wrong flag should not have to wait for these.
    from jaxllm.serving.http.operation import batch_urls
    from jaxllm.serving.openai.batches.input import BatchInput
    from jaxllm.serving.openai.batches.record import BatchRecord
    from jaxllm.serving.server.interfaces import OPERATIONS

    with BatchInput(args.input_file, batch_urls(OPERATIONS)) as batch:
        batch.check()
        if args.validate:
            sys.stdout.write(f"{args.input_file}: {len(batch.ids)} requests\n")
            return 0
        with BatchRecord(args.output_file, batch.ids) as record:
            return _answer(args, config, options, batch, record)


def configuration(args: argparse.Namespace) -> tuple[EngineConfig, ServerOptions]:
    """The options from the file and the command line, which comes first. Raises `ConfigError`.

    What a file says of connections and clients is left out: it may be that of a server.
    """
    of_server, of_engine = _flags(), list(engine_flags())
    from_file = {} if args.config is None else read_config(args.config, (*of_engine, *server_flags()), _meaningless())
    given = {**from_file, **explicit_options(args, (*of_engine, *of_server))}
    config = EngineConfig.from_options({flag.name: given[flag.name] for flag in of_engine if flag.name in given})
    # Nobody will ask for a response again: it is in the file.
    server = {flag.name: given[flag.name] for flag in of_server if flag.name in given}
    return config, ServerOptions(**server, max_stored_responses=0, max_stored_files=0)


def _answer(
    args: argparse.Namespace,
    config: EngineConfig,
    options: ServerOptions,
    batch: "BatchInput",
    record: "BatchRecord",
) -> int:
    if len(record.done) == len(batch.ids):
        sys.stderr.write(f"jaxllm: all {len(batch.ids)} requests already have responses\n")
        return 0
    from jaxllm.serving.batch.worker import run_batch
    from jaxllm.serving.llm.progress import LoadProgress
    from jaxllm.serving.server.event_loop import run_on_fast_loop

    with LoadProgress() as progress:
        return run_on_fast_loop(
            run_batch(config, options, batch, record, concurrency=args.concurrency, progress=progress)
        )
