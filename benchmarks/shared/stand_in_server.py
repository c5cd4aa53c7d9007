"""`jaxllm serve` before an engine that computes nothing: `python -m benchmarks.shared.stand_in_server [flags]`."""

import sys
from functools import partial

from jaxllm.flags import FlagParser
from jaxllm.serving.cli import serve
from jaxllm.serving.ipc.client.process import EngineProcess
from jaxllm.serving.server.server import run_server

STEP_MS = "JAXLLM_STAND_IN_STEP_MS"
"""Name of the environment variable with the length of the engine's step, in milliseconds."""
MODULE = "benchmarks.shared.stand_in_engine"
"""The program of the engine process."""


def main() -> int:
    """Serve until told to end."""
    parser = FlagParser(prog="stand_in_server")
    serve.add_arguments(parser)
    config, options = serve.configuration(parser.parse(sys.argv[1:]))
    return run_server(config, options, launch=partial(EngineProcess, module=MODULE))


if __name__ == "__main__":
    sys.exit(main())
