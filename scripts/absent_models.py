"""The page of decoders that transformers has and this package lacks: `python -m scripts.absent_models FILE` writes it.

With `--check` it compares, and fails where the page is not what it would write.
"""

import argparse
import sys
from collections import defaultdict
from pathlib import Path
from textwrap import wrap

from jaxllm.models.families.absent import ABSENT

COLUMNS = 100
HEADING = """# Models that are not here

Decoders of transformers 5.24 that jaxllm cannot run yet, by what they need. [Add a
model](add-a-model.md) explains how to write a family file, and `jaxllm models --missing CONFIG`
says what one configuration needs. `scripts/lint --fix` writes this page; do not edit it.
"""


def page() -> str:
    """The page: each reason once, with the architectures that it holds for."""
    by_reason: dict[str, list[str]] = defaultdict(list)
    for name, reason in ABSENT.items():
        by_reason[reason].append(name)
    lines = [HEADING]
    for reason, names in sorted(by_reason.items(), key=lambda each: (-len(each[1]), each[1])):
        text = f"- {reason[0].upper()}{reason[1:]}: {', '.join(f'`{name}`' for name in sorted(names))}"
        lines += wrap(text, COLUMNS, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
    return "\n".join(lines) + "\n"


def main() -> int:
    """Write the page, or compare it."""
    parser = argparse.ArgumentParser(prog="python -m scripts.absent_models", description=main.__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    if not args.check:
        args.file.write_text(page(), encoding="utf-8")
        return 0
    if args.file.read_text(encoding="utf-8") == page():
        return 0
    sys.stderr.write(f"{args.file} is out of date: run `python -m scripts.absent_models {args.file}`\n")
    return 1


if __name__ == "__main__":
    sys.exit(main())
