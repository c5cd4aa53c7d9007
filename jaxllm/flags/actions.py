"""Actions of flags that are not plain values: several texts, flags without effect, flags that stand for others."""

import argparse
import json
import sys
from collections.abc import Sequence
from typing import Any

from jaxllm.compat.vllm.options import NoopOption, add_translated
from jaxllm.errors import ConfigError
from jaxllm.flags.rewriting import merged


class Ignore(argparse.Action):
    """Says that the flag has no effect, and goes on; rejects a value that would have one."""

    def __init__(self, option_strings: Sequence[str], dest: str, *, known: NoopOption, **settings: Any) -> None:
        super().__init__(option_strings, dest, **settings)
        self._known = known

    def __call__(self, parser: argparse.ArgumentParser, _namespace: Any, values: Any, flag: str | None = None) -> None:
        """Say so, or refuse."""
        value = values if self._known.takes_value else not str(flag).startswith("--no-")
        if not self._known.accepts(value):
            parser.error(f"{f'{flag} {value}' if self._known.takes_value else flag}: {self._known.reason}")
        if self._known.neutral is None and value is not False:
            sys.stderr.write(f"{parser.prog}: {flag} has no effect: {self._known.reason}\n")


class Translate(argparse.Action):
    """Gives the options that a flag of vLLM's stands for."""

    def __call__(self, parser: argparse.ArgumentParser, namespace: Any, values: Any, flag: str | None = None) -> None:
        """Translate, and go on."""
        given = values if self.nargs != 0 else not str(flag).startswith("--no-")
        try:
            add_translated(vars(namespace), str(self.option_strings[0]).removeprefix("--"), given)
        except ConfigError as error:
            parser.error(f"argument {flag}: {error}")


class Objects(argparse.Action):
    """Merges JSON objects: those of `--flag a --flag b`, and what flags that stand for others put there."""

    def __call__(self, parser: argparse.ArgumentParser, namespace: Any, values: Any, flag: str | None = None) -> None:
        """Merge one; None, and what is not an object, take the place of what is there."""
        old = getattr(namespace, self.dest, None)
        both = merged(old, values) if isinstance(old, dict) and isinstance(values, dict) else values
        setattr(namespace, self.dest, both)


class Texts(argparse.Action):
    """Collects the texts of `--flag a b --flag c`; a JSON list, as vLLM wants for some flags, counts as its items."""

    def __call__(self, parser: argparse.ArgumentParser, namespace: Any, values: Any, flag: str | None = None) -> None:
        """Add texts."""
        found = list(getattr(namespace, self.dest, ()))
        for value in values:
            items = _json_list(value)
            if not all(isinstance(item, str) for item in items):
                parser.error(f"argument {flag}: {value} is not a list of strings")
            found += items
        setattr(namespace, self.dest, tuple(found))


def _json_list(text: str) -> list[Any]:
    """The items of a JSON list; any other text is one item."""
    if text.startswith("[") and text.endswith("]"):
        try:
            return list(json.loads(text))
        except ValueError:
            return [text]
    return [text]
