"""`jaxllm serve`: a server for any OpenAI client."""

import argparse
import os
import sys
from importlib import import_module

from jaxllm.config import EngineConfig
from jaxllm.errors import ConfigError
from jaxllm.flags import FlagParser, add_engine_flags, engine_flags, explicit_options
from jaxllm.serving.cli.config_file import read_config
from jaxllm.serving.cli.system_limits import raise_file_limit
from jaxllm.serving.options.origins import Origins
from jaxllm.serving.options.server import ServerOptions, add_server_flags, from_environment, noop_flags, server_flags

HELP = "Serve a model to any OpenAI client, over HTTP."
USAGE = "[MODEL] [flags]"
EXAMPLES = """examples:
  jaxllm serve                                    the model that ships with jaxllm, on port 8000
  jaxllm serve Qwen/Qwen3-0.6B --port 9000        a model of the Hugging Face Hub, or a local folder
  JAXLLM_API_KEY=secret jaxllm serve MODEL        require this API key
  jaxllm serve MODEL --served-model-name gpt-4o small --max-model-len 8K --max-num-seqs 128
  jaxllm serve --config server.yaml --port 9000   flags from a file; flags on the command line win
  jaxllm serve MODEL --disaggregate 1:1           prompts in one server, decoding in another, a router in front
  jaxllm serve MODEL --nnodes 2 --node-rank 1 --master-addr HOST0     second of two hosts that run one engine

Then, from another terminal:
  curl http://localhost:8000/v1/chat/completions -H 'Content-Type: application/json' \\
       -d '{"messages": [{"role": "user", "content": "What is 17 plus 25?"}]}'
  jaxllm chat --url http://localhost:8000/v1
  OPENAI_BASE_URL=http://localhost:8000/v1 OPENAI_API_KEY=secret python your_openai_program.py

A file for --config holds flags as keys:
  model: Qwen/Qwen3-0.6B
  max-model-len: 8k
  served-model-name: [gpt-4o, small]

/docs describes every route, /metrics is for Prometheus, /health and /ready are for probes. SIGTERM or Ctrl-C lets
running requests finish for --shutdown-timeout seconds; a second one exits at once."""


def add_arguments(parser: FlagParser) -> None:
    """Declare the model, the server's options and the engine's."""
    parser.epilog = EXAMPLES
    # Not `model`: a positional argument that is not given would hide the flag.
    parser.add_argument("model_tag", nargs="?", metavar="MODEL", help="The model, as with --model.")
    parser.add_argument("--config", metavar="FILE", help="Read flags from a YAML file.")
    add_server_flags(parser)
    add_engine_flags(parser, noop_flags())


def run(args: argparse.Namespace) -> int:
    """Serve until told to end; errors are raised."""
    origins, config, options = read_options(args)
    raise_file_limit()
    if options.fleet_sizes is not None:
        # A process without an engine.
        return int(import_module("jaxllm.serving.fleet.local").run_fleet(origins.values, config, options))
    # From here on things take their time: a wrong flag should not have to wait for these.
    from jaxllm.load import is_follower
    from jaxllm.serving.llm.progress import LoadProgress

    if is_follower(config):
        from jaxllm.serving.server.following import run_follower

        with LoadProgress() as progress:
            return run_follower(config, options, progress)
    from jaxllm.serving.server.server import run_server

    with LoadProgress() as progress:
        return run_server(config, options, progress, origins=origins)


def configuration(args: argparse.Namespace) -> tuple[EngineConfig, ServerOptions]:
    """The options from the preset, the environment, the file and the command line; later ones win.

    Raises `ConfigError`.
    """
    return read_options(args)[1:]


def read_options(args: argparse.Namespace) -> tuple[Origins, EngineConfig, ServerOptions]:
    """The options as in `configuration`, and where each came from."""
    flags = (*engine_flags(), *server_flags())
    given = explicit_options(args, flags)
    if args.model_tag is not None:
        if given.get("model", args.model_tag) != args.model_tag:
            raise ConfigError(f"the model is given twice: {args.model_tag!r} and --model {given['model']!r}")
        given["model"] = args.model_tag
    if "api_key" in given:
        _say("--api-key is visible to all users of this machine (ps): use --api-key-file or JAXLLM_API_KEY")
    from_file = {} if args.config is None else read_config(args.config, flags, noop_flags(), _say)
    origins = Origins.of(flags, from_environment(os.environ, _say), (args.config, from_file), given)
    every = origins.values
    if "api_key" in every and not every["api_key"]:
        # Without a key, everybody would be let in.
        raise ConfigError("api_key is given but contains no key; omit it to serve without keys")
    of_server = {flag.name for flag in server_flags()}
    engine = {name: value for name, value in every.items() if name not in of_server}
    server = {name: value for name, value in every.items() if name in of_server}
    return origins, EngineConfig.from_options(engine, _say), ServerOptions(**server)


def _say(line: str) -> None:
    sys.stderr.write(f"jaxllm serve: {line}\n")
