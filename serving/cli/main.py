"""`jaxllm SUB-COMMAND ...`: finds the sub-command, and turns errors into one line and an exit code.

A sub-command is a module in `COMMANDS`, imported only when it is asked for, with

    HELP: str                                                what it does, in one sentence: shown by its own --help
    def add_arguments(parser: FlagParser) -> None            its arguments; engine flags come from `add_engine_flags`
    def run(args: argparse.Namespace) -> int                 does it; the result is the exit code

and optionally `USAGE: str`, what follows `jaxllm NAME` in the first line of its help. A group of sub-commands
(`jaxllm bench serve`) is an entry with entries.
"""

import argparse
import os
import sys
import textwrap
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple, Protocol, cast

from jaxllm.errors import CapacityError, ConfigError, EngineError, RequestError, RequestFaultError, nearest
from jaxllm.help_text import coloured, columns, shows_colours
from jaxllm.serving.cli.system_limits import exhausted
from jaxllm.version import __version__

if TYPE_CHECKING:
    from jaxllm.flags import FlagParser


class Entry(NamedTuple):
    """Where a sub-command lives, and its line in the help of what it belongs to; a group has `commands` instead."""

    module: str
    summary: str
    commands: Mapping[str, "Entry"] = {}


class SubCommand(Protocol):
    """The interface of a sub-command's module."""

    HELP: str

    def add_arguments(self, parser: "FlagParser") -> None:
        """Declare the arguments."""
        ...

    def run(self, args: argparse.Namespace) -> int:
        """Do it; the result is the exit code."""
        ...


SWEEP = {
    "serve": Entry("jaxllm.serving.cli.bench.sweep_serve", "Load-test servers with many combinations of settings."),
    "plot": Entry("jaxllm.serving.cli.bench.sweep_plot", "Plot the results of `sweep serve`."),
}

BENCH = {
    "serve": Entry("jaxllm.serving.cli.bench.serve", "Measure throughput and latency of a server under load."),
    "latency": Entry("jaxllm.serving.cli.bench.latency", "Measure the latency of a batch, offline."),
    "throughput": Entry("jaxllm.serving.cli.bench.throughput", "Measure the throughput of many requests, offline."),
    "startup": Entry("jaxllm.serving.cli.bench.startup", "Measure how long an engine takes to start."),
    "sweep": Entry("", "Measure many combinations of settings.", SWEEP),
}

COMMANDS = {
    "serve": Entry("jaxllm.serving.cli.serve", "Serve a model to any OpenAI client."),
    "route": Entry("jaxllm.serving.cli.route", "Route requests to several servers, as one server."),
    "chat": Entry("jaxllm.serving.cli.chat", "Chat in the terminal, with a local model or with a server."),
    "complete": Entry("jaxllm.serving.cli.complete", "Complete texts in the terminal with a server's model."),
    "bench": Entry("", "Measure a server or an engine.", BENCH),
    "top": Entry("jaxllm.serving.cli.top", "Show what a server does, live in the terminal."),
    "generate": Entry("jaxllm.serving.cli.generate", "Generate text from prompts, offline."),
    "run-batch": Entry("jaxllm.serving.cli.run_batch", "Run a file of requests in OpenAI's batch format, offline."),
    "models": Entry(
        "jaxllm.serving.cli.models", "List supported architectures and the references they are tested against."
    ),
    "plan": Entry("jaxllm.serving.cli.plan", "Estimate whether a model fits given devices, and how fast it runs."),
    "compile": Entry("jaxllm.serving.cli.compile", "Compile executables ahead of time, for this machine or another."),
    "quantize": Entry(
        "jaxllm.serving.cli.quantize", "Write an 8-bit or 4-bit copy of a checkpoint, which vLLM can read too."
    ),
    "manifest": Entry("jaxllm.serving.cli.manifest", "Write Kubernetes manifests that serve a model."),
    "completion": Entry(
        "jaxllm.serving.cli.completion", "Write a script that makes bash, zsh or fish complete the command line."
    ),
    "doctor": Entry(
        "jaxllm.serving.cli.doctor", "Check this machine: devices, their speed, kernels, and a small run of a model."
    ),
    "collect-env": Entry(
        "jaxllm.serving.cli.collect_env", "Print the information a bug report needs: versions, devices, memory."
    ),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line (default: `sys.argv[1:]`) and return the exit code.

    0 success; 1 the engine failed, or its code for a request; 2 a wrong argument, option or request, or one that does
    not fit; 130 interrupted.
    Other exceptions are bugs and keep their traceback.
    """
    open_standard_streams()
    try:
        code = _dispatch(list(sys.argv[1:] if arguments is None else arguments))
        # Here, not at interpreter exit, so that a closed pipe is noticed where it can be handled.
        sys.stdout.flush()
        return code
    except (EngineError, RequestFaultError) as error:
        return _fail(error, 1)
    except (ConfigError, RequestError, CapacityError) as error:
        return _fail(error, 2)
    except KeyboardInterrupt:
        sys.stderr.write("\n")
        return 130
    except BrokenPipeError:
        # The reader went away (`| head`). Point stdout elsewhere, or Python complains again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (OSError, MemoryError, RuntimeError) as error:
        told = exhausted(error)
        if told is None:
            raise
        return _fail(told, 1)


def open_standard_streams() -> None:
    """Open those of the standard input, output and error that are closed, on nothing.

    Otherwise the next file that is opened takes the number, and libraries write their messages into it.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            # The lowest number that is free.
            os.open(os.devnull, os.O_RDWR)
    sys.stdin = sys.stdin or open(0, closefd=False)  # noqa: SIM115
    sys.stdout = sys.stdout or open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = sys.stderr or open(2, "w", closefd=False)  # noqa: SIM115


def _fail(error: Exception, code: int) -> int:
    sys.stderr.write(f"jaxllm: {' '.join(str(error).split())}\n")
    return code


def _dispatch(arguments: list[str]) -> int:
    if arguments and arguments[0] in ("-V", "--version"):
        sys.stdout.write(f"jaxllm {__version__}\n")
        return 0
    return _choose("jaxllm", "LLM inference and serving in JAX, for TPUs, GPUs and CPUs.", COMMANDS, arguments)


def _choose(program: str, purpose: str, commands: Mapping[str, Entry], arguments: list[str]) -> int:
    """Run the sub-command that the first argument names, perhaps one of a group."""
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        text = _overview(program, purpose, commands)
        sys.stdout.write(coloured(text) if shows_colours(sys.stdout) else text)
        return 0 if arguments else 2
    name, *rest = arguments
    if name not in commands:
        kind = "flag" if name.startswith("-") else "sub-command"
        known = ["--help", "--version"] if name.startswith("-") else list(commands)
        raise ConfigError(f"unknown {kind} {name!r}{nearest(name, known)} (see {program} --help)")
    if commands[name].commands:
        return _choose(f"{program} {name}", commands[name].summary, commands[name].commands, rest)
    # Only here: help on all sub-commands needs no options.
    from jaxllm.flags import FlagParser

    command = cast(SubCommand, import_module(commands[name].module))
    usage = getattr(command, "USAGE", "[flags]")
    parser = FlagParser(prog=f"{program} {name}", usage=f"%(prog)s {usage}", description=command.HELP)
    command.add_arguments(parser)
    return command.run(parser.parse(rest))


def _overview(program: str, purpose: str, commands: Mapping[str, Entry]) -> str:
    width = max(map(len, commands))
    indent = " " * (width + 4)
    lines = [
        textwrap.fill(entry.summary, columns(), initial_indent=f"  {name:{width}}  ", subsequent_indent=indent)
        for name, entry in commands.items()
    ]
    version = "; `jaxllm --version` prints the version" if program == "jaxllm" else ""
    return "\n".join(
        [
            f"usage: {program} SUB-COMMAND [flags]",
            "",
            purpose,
            "",
            "sub-commands:",
            *lines,
            "",
            f"`{program} SUB-COMMAND --help` lists its flags{version}.",
            "",
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
