"""`--config FILE.yaml`: flags from a file."""

import argparse
from collections.abc import Callable, Container, Iterable, Mapping
from pathlib import Path
from typing import Any

from jaxllm.compat.vllm.options import NOOP_OPTIONS, NoopOption, drop_noop_options
from jaxllm.errors import ConfigError, nearest
from jaxllm.flags import Flag
from jaxllm.flags.rewriting import merged


def read_config(
    name: str,
    flags: Iterable[Flag],
    meaningless: Mapping[str, NoopOption] = NOOP_OPTIONS,
    say: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """The options in a YAML file of `flag: value` lines, the flag with dashes or underscores.

    Lists stand for flags with several values, and numbers may be written as on the command line (`8k`). `say` is told
    of those that are `meaningless`. Raises
    `ConfigError`, naming file and key, for what cannot be read, unknown keys, and values of a wrong type.
    """
    known = {
        key: flag for flag in flags for key in (flag.name, *(each.replace("-", "_") for each in flag.info.aliases))
    }
    given = _as_options(_read_yaml(name), known)
    try:
        given = drop_noop_options(given, meaningless, say)
    except ConfigError as error:
        raise ConfigError(f"{name}: {error}") from None
    options: dict[str, Any] = {}
    for option, value in given.items():
        key = option.replace("_", "-")
        if option not in known:
            raise ConfigError(f"{name}: unknown option {key!r}{nearest(option, known)}")
        try:
            options[known[option].name] = _value(known[option], value)
        except argparse.ArgumentTypeError as error:
            raise ConfigError(f"{name}: {key}: {error}") from None
    return options


def _as_options(found: Mapping[Any, Any], known: Container[str]) -> dict[str, Any]:
    """Options with underscores; `name.key: value` is a piece of an object, `disable-x: true` is `enable-x: false`."""
    given: dict[str, Any] = {}
    for key, written in found.items():
        option, *path = str(key).split(".")
        option, value = option.replace("-", "_"), written
        for start, inverse in (("enable_", "disable_"), ("disable_", "enable_")):
            other = inverse + option.removeprefix(start)
            if option.startswith(start) and option not in known and other in known and isinstance(written, bool):
                option, value = other, not written
                break
        for each in reversed(path):
            value = {each: value}
        given[option] = merged(given[option], value) if isinstance(given.get(option), dict) and path else value
    return given


def _read_yaml(name: str) -> dict[Any, Any]:
    # 26 ms that a start without --config does not need.
    import yaml

    try:
        found = yaml.safe_load(Path(name).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read --config: {error}") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{name}: not valid YAML: {error}") from None
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise ConfigError(f"{name}: expected a mapping with lines 'flag: value', got a {type(found).__name__}")
    return found


def _value(flag: Flag, value: Any) -> Any:
    """The value as the option takes it; what does not fit is left for the option to reject."""
    if flag.kind is tuple:
        # YAML reads `api-key: 1234` as a number.
        return tuple(map(str, value if isinstance(value, list) else [] if value is None else [value]))
    readers: dict[type, Callable[[str], Any]] = {int: flag.reader, float: _number}
    return readers[flag.kind](value) if flag.kind in readers and isinstance(value, str) else value


def _number(text: str) -> float:
    """YAML reads 1e-3 as a text."""
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None
