"""Print the tables: `python -m scripts.vllm_surface FOLDER [--summary]`."""

import sys
from collections.abc import Sequence
from pathlib import Path

from jaxllm.flags import FlagParser
from scripts.vllm_surface import classes, imports, options, server
from scripts.vllm_surface.source import Source
from scripts.vllm_surface.tables import Table, summary

_TABLES = (
    options.flags, options.fields, options.environment, classes.parameters, classes.methods, classes.requests,
    server.routes, server.metrics, server.formats, imports.imports, imports.examples,
)  # fmt: skip


def tables(folder: Path) -> list[Table]:
    """All tables of the distribution in `folder`, which holds `vllm/` and `examples/`."""
    source = Source(folder)
    return [make(source) for make in _TABLES]


def main(arguments: Sequence[str]) -> int:
    """Print what of a vLLM source distribution is present, accepted or absent here, and why."""
    parser = FlagParser(prog="python -m scripts.vllm_surface", description=main.__doc__)
    parser.add_argument("folder", type=Path, help="An unpacked source distribution of vLLM.")
    parser.add_argument("--summary", action="store_true", help="Print only the numbers.")
    args = parser.parse(arguments)
    if not (args.folder / "vllm" / "engine" / "arg_utils.py").is_file():
        parser.error(f"{args.folder}: not a source distribution of vLLM, because vllm/engine/arg_utils.py is missing")
    found = tables(args.folder)
    sys.stdout.write(summary(found) + "\n")
    if not args.summary:
        sys.stdout.write("\n" + "\n".join(table.markdown() for table in found))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
