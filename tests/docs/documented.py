"""The command blocks of the pages.

A block in a fence without a language, or of `bash` or `sh`, is a program. It is run, unless a comment before it says
why not: `<!-- not run: REASON -->`. `<!-- no command of this page is run: REASON -->` is for all blocks of a page.
"""

import re
from dataclasses import dataclass
from pathlib import Path

from jaxllm.flags import FlagParser
from jaxllm.serving.cli import serve
from tests.docs.replaced import OTHER_MODELS
from tests.docs.test_names import PAGES, name_of

_BLOCK = re.compile(r"^( *)```([^\n]*)\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
_MARK = re.compile(r"<!-- not run: (\S[^>]*?)\s*-->\s*\Z", re.DOTALL)
_PAGE_MARK = re.compile(r"<!-- no command of this page is run: (\S[^>]*?)\s*-->", re.DOTALL)
_MARKS = re.compile(r"(?<!`)<!-- (?:not run|no command).*?-->", re.DOTALL)
"""Not those that a text shows in code."""
_SHELL = ("", "bash", "sh")


@dataclass(frozen=True)
class Block:
    """Commands of a page."""

    page: str
    number: int
    text: str
    reason: str | None
    """Why they are not run; None where they are."""

    @property
    def name(self) -> str:
        """For a test's id."""
        return f"{self.page}:{self.number}"


def blocks_of(page: Path) -> tuple[list[Block], list[str]]:
    """The command blocks of a page, and the marks in it that are about none."""
    text = page.read_text(encoding="utf-8")
    found: list[Block] = []
    whole = _PAGE_MARK.search(text)
    stray = _MARKS.findall(text)
    for match in _BLOCK.finditer(text):
        if match[2].strip() not in _SHELL:
            continue
        mark = _MARK.search(text, max(text.rfind("<!--", 0, match.start()), 0), match.start())
        if mark is not None:
            stray.remove(mark[0].strip())
        reason = (mark or whole or [None, None])[1]
        found.append(Block(name_of(page), len(found) + 1, match[3], reason))
    if whole is not None and found:
        stray.remove(whole[0])
    return found, stray


BLOCKS = [block for page in PAGES for block in blocks_of(page)[0]]


def check_serve(arguments: list[str]) -> None:
    """Read the options of `jaxllm serve`, with `demo` in place of models that are not here. Raises `ConfigError`."""
    parser = FlagParser(prog="jaxllm serve")
    serve.add_arguments(parser)
    args = parser.parse_args(arguments)
    if args.model_tag is not None and OTHER_MODELS.fullmatch(args.model_tag):
        args.model_tag = "demo"
    serve.read_options(args)
