"""`jaxllm models`: which architectures are known, what each is for, and what it is compared with."""

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from jaxllm.errors import ConfigError
from jaxllm.flags import FlagParser
from jaxllm.serving.cli.missing import steps

if TYPE_CHECKING:
    from jaxllm.models.families.family import Family
    from jaxllm.models.families.gaps import Gaps

HELP = "List the supported architectures, their tasks, and the supported quantization formats."
USAGE = "[NAME ...] [--missing CONFIG] [--json]"
EXAMPLES = """examples:
  jaxllm models               all
  jaxllm models gemma qwen    those whose names contain either word
  jaxllm models --json
  jaxllm models --missing some-model/config.json    what the model needs that is not here

A checkpoint names its architecture in config.json, under "architectures". Installed packages may add
architectures: see docs/add-a-model.md."""

USES = {
    "generate": "text",
    "embed": "embeddings",
    "classify": "classes",
    "token_embed": "embeddings of tokens",
    "token_classify": "classes of tokens",
}
"""The output, by `Family.use`."""


class Known(msgspec.Struct):
    """An architecture as it is printed."""

    architecture: str
    use: str
    compared_with: str


def add_arguments(parser: FlagParser) -> None:
    """Declare what to look for, and how to print."""
    parser.epilog = EXAMPLES
    parser.add_argument("names", metavar="NAME", nargs="*", help="Substrings of names to look for.")
    parser.add_argument(
        "--missing",
        metavar="CONFIG",
        type=Path,
        help="Say what a config.json, or that in a folder, needs that is not here; the exit code is 1 if it does.",
    )
    parser.add_argument("--json", action="store_true", help="Print JSON.")


def run(args: argparse.Namespace) -> int:
    """Print the list, or what a model needs. Raises `ConfigError` where nothing has such a name."""
    from jaxllm.models.families import gaps, registry

    if args.missing is not None:
        return _say_missing(gaps.find_gaps(_folder_of(args.missing, args.names)), as_json=args.json)
    known = [_known(name, family) for name, family in registry.families().items()]
    words = [word.lower() for word in args.names]
    found = [each for each in known if not words or any(word in each.architecture.lower() for word in words)]
    if not found:
        sought = " or ".join(map(repr, args.names))
        raise ConfigError(f"no architecture has {sought} in its name; `jaxllm models` lists all")
    footer = [] if words else _quantised()
    json = msgspec.json.format(msgspec.json.encode(found), indent=2).decode() if args.json else ""
    sys.stdout.write((json or "\n".join((*_text(found), *footer))) + "\n")
    return 0


def _folder_of(path: Path, names: Sequence[str]) -> Path:
    """The folder of the configuration that --missing is about. Raises `ConfigError`."""
    if names:
        raise ConfigError("--missing is about one configuration: leave out NAME")
    if path.is_file() and path.name != "config.json":
        raise ConfigError(f"--missing takes a config.json or the folder that it is in, not {path}")
    return path.parent if path.is_file() else path


def _say_missing(gaps: "Gaps", *, as_json: bool) -> int:
    """Print what a configuration needs; whether that is anything is the exit code."""
    if as_json:
        text = msgspec.json.format(msgspec.json.encode({**asdict(gaps), "nothing": gaps.are_none}), indent=2).decode()
    else:
        text = "\n".join(steps(gaps))
    sys.stdout.write(f"{text}\n")
    return 0 if gaps.are_none else 1


def _known(architecture: str, family: "Family") -> Known:
    compared = "transformers" if family.like is None else f"transformers' {family.like}, which computes the same"
    # Heads on decoders are one piece of code, which is compared for some of them.
    of_decoder = family.use != "generate" and family.make_encoder is None
    return Known(architecture, family.use, f"{compared}, as a generator" if of_decoder else compared)


def _quantised() -> list[str]:
    """Quantization methods and formats, which work with all of them."""
    from jaxllm.models.quantization.online import METHODS
    from jaxllm.models.quantization.registry import FORMATS

    return [
        "",
        f"quantized checkpoints: {', '.join(sorted(FORMATS))}",
        f"quantized while loading, or by `jaxllm quantize`: {', '.join(sorted(METHODS))}",
    ]


def _text(found: list[Known]) -> Iterator[str]:
    wide = max(len(each.architecture) for each in found)
    yield f"{'architecture':{wide}}  {'gives':20}  compared with"
    for each in found:
        yield f"{each.architecture:{wide}}  {USES[each.use]:20}  {each.compared_with}"
