"""The process of one stage: `python -m jaxllm.doctor.child MODULE`, with the settings as JSON on standard input.

Standard output carries JSON lines: `{"doing": "..."}` for what comes next, and one `{"outcome": {...}}`. What
libraries print there goes to standard error.
"""

import os
import sys
from importlib import import_module
from typing import TextIO

import msgspec

from jaxllm.doctor.result import Context, Outcome, Settings
from jaxllm.errors import CapacityError, ConfigError, EngineError


def main() -> None:
    """Run the stage whose module `sys.argv` names."""
    lines = private_stdout()

    def send(message: dict[str, object]) -> None:
        lines.write(msgspec.json.encode(message).decode() + "\n")
        lines.flush()

    context = Context(msgspec.json.decode(sys.stdin.buffer.read(), type=Settings), lambda text: send({"doing": text}))
    try:
        outcome = import_module(sys.argv[1]).run(context)
    except (CapacityError, ConfigError) as error:
        # These say themselves what to do.
        outcome = Outcome(str(error), status="failed", advice="correct what the message names, and try again")
    except EngineError as error:
        outcome = Outcome(str(error), status="failed")
    send({"outcome": outcome})


def private_stdout() -> TextIO:
    """Standard output for the caller alone: whatever else writes there writes to standard error from now on."""
    kept = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return kept


if __name__ == "__main__":
    main()
