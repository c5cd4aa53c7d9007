"""What an option of vLLM's that jaxllm does not have is: what follows it, why it has no effect, what it may be."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from jaxllm.compat.vllm.options.translated import TRANSLATED, add_translated
from jaxllm.errors import ConfigError


class NoopOption(NamedTuple):
    """An option of vLLM's that is accepted, so that a command line or a script can be carried over.

    It changes nothing, for this `reason`; or if there are `neutral` values, only these change nothing, any other is an
    error, and `reason` says what to do. `short` is another name of the flag, with one dash. `several` values may
    follow the flag, or with `may_be_bare` none.
    """

    takes_value: bool
    reason: str
    neutral: tuple[Any, ...] | None = None
    short: str = ""
    several: bool = False
    may_be_bare: bool = False

    @property
    def nargs(self) -> str | int | None:
        """The number of values after the flag, as `argparse` counts it."""
        if not self.takes_value:
            return 0
        return "+" if self.several else "?" if self.may_be_bare else None

    def accepts(self, value: Any) -> bool:
        """Whether this value, as text or as it is, changes nothing."""
        if self.neutral is None or value is None:
            return True
        if isinstance(value, str):
            try:
                value = json.loads(value)
            except ValueError:
                value = None if value.lower() == "none" else value
        return value is None or value in self.neutral


def drop_noop_options(
    options: Mapping[str, Any], table: Mapping[str, NoopOption], say: Callable[[str], None]
) -> dict[str, Any]:
    """The options without those of the table; `say` is told, in a line, of each that was asked for and changes nothing.

    Names have underscores. Options that say in vLLM's way what jaxllm has an option for become that option. Raises
    `ConfigError` for a value that would change something.
    """
    kept = {}
    for name, value in _translated(options).items():
        known = table.get(name.replace("_", "-"))
        if known is None:
            kept[name] = value
        elif not known.accepts(value):
            raise ConfigError(f"{name}={value!r}: {known.reason}")
        elif value not in (None, False) and known.neutral is None:
            say(f"{name} has no effect: {known.reason}")
    return kept


_DEFAULTS = (None, False, "auto")
"""Defaults of the options that `TRANSLATED` ones stand for."""


def _translated(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options, with what is said in vLLM's way said in jaxllm's; what is said in both ways is jaxllm's.

    Defaults are not said: programs hand around all options, with their defaults.
    """
    found: dict[str, Any] = {}
    for name, value in options.items():
        if name.replace("_", "-") in TRANSLATED:
            add_translated(found, name.replace("_", "-"), value)
    for name, value in options.items():
        if name.replace("_", "-") not in TRANSLATED and not (name in found and value in _DEFAULTS):
            both = isinstance(value, Mapping) and isinstance(found.get(name), Mapping)
            found[name] = {**found[name], **value} if both else value
    return found


def values(reason: str, *names: str) -> dict[str, NoopOption]:
    """Flags with a value that change nothing; `compilation-config/cc` has a short form."""
    return {name: NoopOption(True, reason, short=short) for name, short in _with_short(names)}


def lists(reason: str, *names: str) -> dict[str, NoopOption]:
    """Flags with several values that change nothing."""
    return {name: NoopOption(True, reason, short=short, several=True) for name, short in _with_short(names)}


def switches(reason: str, *names: str) -> dict[str, NoopOption]:
    """Flags without a value that change nothing."""
    return {name: NoopOption(False, reason, short=short) for name, short in _with_short(names)}


def only(neutral: Iterable[Any], advice: str, *names: str) -> dict[str, NoopOption]:
    """Flags that change nothing with these values, and only with these."""
    return {name: NoopOption(True, advice, tuple(neutral), short) for name, short in _with_short(names)}


def off(advice: str, *names: str) -> dict[str, NoopOption]:
    """Flags without a value that must stay off."""
    return {name: NoopOption(False, advice, (False,)) for name in names}


def _with_short(names: Iterable[str]) -> Iterator[tuple[str, str]]:
    for each in names:
        name, _, short = each.partition("/")
        yield name, short
