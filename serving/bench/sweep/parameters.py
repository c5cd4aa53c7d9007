"""Settings of a sweep: JSON files with many sets of flags, and commands with those flags.

The format is that of `vllm bench sweep`: a list of objects, or an object of objects by their names.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from jaxllm.errors import ConfigError
from jaxllm.flags import engine_flags, section_flags
from jaxllm.serving.bench.options import DatasetOptions, LoadOptions, ReportOptions
from jaxllm.serving.options.server import server_flags

_NAME = "_benchmark_name"
_LONGEST_NAME = 200


@dataclass(frozen=True)
class Setting:
    """Some flags: their names, with hyphens or underscores, and values. Switches are true or false."""

    flags: Mapping[str, Any] = field(default_factory=dict)
    given_name: str | None = None

    @property
    def name(self) -> str:
        """What to call it, and the files that it makes."""
        shown = "-".join(f"{name}={_text(value)}" for name, value in self.flags.items())
        text = self.given_name if self.given_name is not None else shown
        return file_name(text)

    def applied_to(self, command: Sequence[str]) -> list[str]:
        """The command with these flags, in place of those of its own that have the same name."""
        result = list(command)
        for name, value in self.flags.items():
            flag = _flag_name(name)
            bare = name.replace("_", "-")
            result = _without(result, {flag}, several=flag in _several(), has_values=not isinstance(value, bool))
            if isinstance(value, bool):
                result = _without(result, {f"--no-{bare}"}, has_values=False)
            if isinstance(value, bool):
                result.append(flag if value else f"--no-{bare}")
            else:
                result += [flag, _text(value)]
        return result


def file_name(text: str) -> str:
    """A text as the name of a file, or a part of one."""
    return "".join(char if char.isalnum() or char in "=-_.," else "_" for char in text)[:_LONGEST_NAME]


def read_settings(path: str | None, option: str) -> list[Setting]:
    """The settings of a file; one without flags where there is none. Raises `ConfigError` that names the `option`."""
    if path is None:
        return [Setting()]
    try:
        given = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read --{option}: {error}") from None
    except ValueError as error:
        raise ConfigError(f"--{option} {path}: not valid JSON: {error}") from None
    if isinstance(given, dict):
        given = [{_NAME: name, **_object(value, option)} for name, value in given.items()]
    if not isinstance(given, list) or not given:
        raise ConfigError(f"--{option} {path}: expected a list of objects, or an object that names them")
    found = [_setting(_object(record, option)) for record in given]
    names = [setting.name for setting in found]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ConfigError(f"--{option} {path}: two settings have the name {twice!r}; {_NAME} sets a name")
    return found


def read_links(text: str) -> list[tuple[str, str]]:
    """`max_num_seqs=max_concurrency,...` as pairs of names, of the server's flags and of the test's."""
    pairs = [part.strip().partition("=") for part in text.split(",") if part.strip()]
    for name, equals, other in pairs:
        if not (name and equals and other):
            raise ConfigError(f"link_vars={text!r}: expected SERVER_FLAG=TEST_FLAG pairs separated by commas")
    return [(name, other) for name, _, other in pairs]


def are_linked(server: Setting, test: Setting, links: Sequence[tuple[str, str]]) -> bool:
    """Whether every pair of linked flags has one value."""
    missing = object()
    ours, theirs = ({_flag_name(name): value for name, value in each.flags.items()} for each in (server, test))
    return all(ours.get(_flag_name(name), missing) == theirs.get(_flag_name(other)) for name, other in links)


def _setting(record: Mapping[str, Any]) -> Setting:
    name = record.get(_NAME)
    return Setting({key: value for key, value in record.items() if key != _NAME}, None if name is None else str(name))


def _object(value: Any, option: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ConfigError(f"--{option}: {json.dumps(value)} is not an object of flags")
    return value


def _flag_name(name: str) -> str:
    """The flag of a name; what follows a dot is a key, which keeps its underscores."""
    head, dot, rest = name.partition(".")
    return f"--{head.replace('_', '-')}{dot}{rest}"


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


@cache
def _several() -> frozenset[str]:
    """Flags with any number of values, which cannot be told from a model's name after them."""
    ours = (
        flag for section in (LoadOptions, ReportOptions, DatasetOptions) for flag in section_flags("bench", section)
    )
    flags = (*engine_flags(), *server_flags(), *ours)
    return frozenset(name for flag in flags if flag.kind is tuple for name in flag.names)


def _without(command: Sequence[str], flags: set[str], *, has_values: bool, several: bool = False) -> list[str]:
    """The command less these flags, and where they have values, less the one after each, or `several`."""
    result: list[str] = []
    dropping = 0.0
    for word in command:
        if word.startswith("-") and not _is_number(word):
            name, equals, _ = word.partition("=")
            found = word.startswith("--") and _flag_name(name[2:]) in flags
            dropping = (math.inf if several else 1) if found and has_values and not equals else 0
            if found:
                continue
        elif dropping:
            dropping -= 1
            continue
        result.append(word)
    return result


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True
