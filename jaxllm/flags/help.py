"""Help in pieces that fit a screen: `--help`, `--help=GROUP`, `--help=WORD`, `--help=all`."""

import argparse
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

from jaxllm.errors import nearest
from jaxllm.help_text import coloured, columns, shows_colours

MOST_FLAGS: Final = 30
"""Flags of a parser whose help is shown whole."""
_SECTION: Final = " options"
_THEIR_GROUPS: Final = {
    "compilation": "compile",
    "frontend": "http",
    "load": "model",
    "multimodal": "images",
    "speculative": "speculation",
    "structuredoutputs": "structured",
    "vllm": "all",
}
"""vLLM's names of groups, without `Config`."""


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Leaves examples as they are written, and shows that --help takes its word only after a `=`."""

    def _format_action_invocation(self, action: argparse.Action) -> str:
        if isinstance(action, ShowHelp):
            return "-h, --help[=WORD]"
        return super()._format_action_invocation(action)


Group = tuple[str, str, list[argparse.Action]]
"""A heading, what it is about, and the flags below it."""


class ShowHelp(argparse.Action):
    """Shows the help, or the part of it that a word names, and exits."""

    def __call__(self, parser: argparse.ArgumentParser, _namespace: Any, values: Any, _flag: str | None = None) -> None:
        """Show it; exits with 2 where nothing has the word."""
        text = HelpPages(parser).find(str(values or ""))
        if text is None:
            words = [name.strip("-") for _, _, actions in groups(parser) for each in actions for name in _names(each)]
            similar = nearest(str(values), [*words, *(name for name, _, _ in sections(parser))])
            parser.error(f"--help={values}: no group and no flag has it{similar}; --help lists the groups")
        sys.stdout.write(coloured(text) if shows_colours(sys.stdout) else text)
        parser.exit()


def groups(parser: argparse.ArgumentParser) -> list[Group]:
    """The groups with flags that help shows."""
    found = []
    for group in parser._action_groups:  # noqa: SLF001  argparse has no other way to them
        shown = [each for each in group._group_actions if each.help is not argparse.SUPPRESS]  # noqa: SLF001
        if shown:
            found.append((group.title or "", group.description or "", shown))
    return found


def sections(parser: argparse.ArgumentParser) -> list[Group]:
    """The groups made from sections of options, by their names."""
    return [(name.removesuffix(_SECTION), about, flags) for name, about, flags in groups(parser) if _is_section(name)]


class HelpPages:
    """The pages of a parser's help."""

    def __init__(self, parser: argparse.ArgumentParser) -> None:
        self._parser = parser
        self._groups = groups(parser)
        self._pages: dict[str, Callable[[], str]] = {
            "": self._first,
            "all": self._everything,
            "listgroup": self._first,
            "examples": lambda: f"{parser.epilog or ''}\n",
        }

    def find(self, word: str) -> str | None:
        """The page that `word` names: a group, or the flags with it in names or descriptions. None: there is none.

        Case does not matter, and `_` is `-`. vLLM's names of groups (`ModelConfig`) are understood as well.
        """
        key = word.lower().strip("-").replace("_", "-")
        key = _THEIR_GROUPS.get(key.removesuffix("config"), key.removesuffix("config") or key)
        if key in self._pages and (key != "examples" or self._parser.epilog):
            return self._pages[key]()
        named = [each for each in self._groups if key in (each[0].lower(), each[0].lower().removesuffix(_SECTION))]
        return self._page(named or self._with(lambda each: key in _keys(each)) or self._containing(key))

    def _containing(self, key: str) -> list[Group]:
        in_names = self._with(lambda each: any(key in name for name in _keys(each)))
        return in_names or self._with(lambda each: key in f"{each.help} {each.metavar}".lower())

    def _with(self, accepts: Callable[[argparse.Action], bool]) -> list[Group]:
        found = ((title, about, list(filter(accepts, flags))) for title, about, flags in self._groups)
        return [each for each in found if each[2]]

    def _first(self) -> str:
        """Everything if it is little; otherwise the sections in one line each, and how to see more."""
        if sum(len(flags) for _, _, flags in self._groups) <= MOST_FLAGS:
            return self._everything()
        shown = [each for each in self._groups if not _is_section(each[0])]
        first = (self._parser.epilog or "").split("\n\n")[0]
        parts = [self._intro(shown), "\n".join(self._listed()), first, "\n".join(self._hints())]
        return "\n\n".join(part.strip("\n") for part in parts if part) + "\n"

    def _everything(self) -> str:
        return self._intro(self._groups) + (f"\n{self._parser.epilog}\n" if self._parser.epilog else "")

    def _intro(self, shown: Sequence[Group]) -> str:
        formatter = _formatter(self._parser)
        formatter.add_usage(self._parser.usage, self._parser._actions, self._parser._mutually_exclusive_groups)  # noqa: SLF001
        formatter.add_text(_wrapped(self._parser.description or ""))
        _add(formatter, shown)
        return formatter.format_help()

    def _page(self, shown: Sequence[Group]) -> str | None:
        if not shown:
            return None
        formatter = _formatter(self._parser)
        _add(formatter, shown)
        return formatter.format_help()

    def _listed(self) -> Iterator[str]:
        every = sections(self._parser)
        width = max(len(name) for name, _, _ in every)
        yield "groups of flags:"
        for name, about, _ in every:
            indent = " " * (width + 4)
            yield textwrap.fill(about, columns(), initial_indent=f"  {name:{width}}  ", subsequent_indent=indent)

    def _hints(self) -> Iterator[str]:
        name = self._parser.prog
        some = sections(self._parser)[0][0]
        yield "more help:"
        yield f"  {name} --help={some:10}  the flags of a group"
        yield f"  {name} --help=WORD        flags with this word: --help=cache, --help=max-model-len"
        if "\n\n" in (self._parser.epilog or ""):
            yield f"  {name} --help=examples    more examples"
        yield f"  {name} --help=all         everything"


def _is_section(title: str) -> bool:
    return title.endswith(_SECTION)


def _names(action: argparse.Action) -> Sequence[str]:
    return action.option_strings or (action.dest,)


def _keys(action: argparse.Action) -> list[str]:
    """The names of a flag, as `HelpPages.find` compares them."""
    return [name.lower().strip("-").replace("_", "-") for name in _names(action)]


def _wrapped(text: str) -> str:
    return textwrap.fill(text, columns())


def _formatter(parser: argparse.ArgumentParser) -> argparse.HelpFormatter:
    width = columns()
    return HelpFormatter(parser.prog, width=width, max_help_position=24 if width > 60 else 6)


def _add(formatter: argparse.HelpFormatter, shown: Iterable[Group]) -> None:
    for title, about, flags in shown:
        formatter.start_section(title)
        formatter.add_text(_wrapped(about) if about else None)
        formatter.add_arguments(flags)
        formatter.end_section()
